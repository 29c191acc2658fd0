"""What expert banks are filled from: one piece of a checkpoint for each expert and region."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from larql.errors import EncodingError
from larql.format.encoding import ENCODINGS, Encoding
from larql.format.lyrw.codes import Role
from larql.format.names import component_beside
from larql.format.rows import RowSelection
from larql.format.source.checkpoint import Checkpoint, SourceTensor

__all__ = ["BankBinding", "Piece", "piece_chunks"]

_CHUNK = 4 << 20
Told = Callable[[bytes], None]


@dataclass(frozen=True)
class Piece:
    """What one expert's region is made of.

    Attributes
    ----------
    sources : tuple of SourceTensor
        One; or the values and their scales; or two whose rows are one region.
    rows : tuple of RowSelection
        The rows of each that belong to the expert.
    form : {"rows", "columns", "values_and_scales", "stacked"}
        ``rows``: the region's rows as they are. ``columns``: the region's rows are the tensor's
        columns, which are turned. ``values_and_scales``: MXFP4 nibbles and scales in two tensors,
        which are joined to blocks. ``stacked``: the rows of the second tensor stand behind those of
        the first; of vectors, the numbers.
    """

    sources: tuple[SourceTensor, ...]
    rows: tuple[RowSelection, ...]
    form: Literal["rows", "columns", "values_and_scales", "stacked"] = "rows"

    @property
    def encoding(self) -> Encoding:
        """The encoding of the bytes that :func:`piece_chunks` yields.

        Raises
        ------
        UnsupportedRefusal
            If this build does not decode the tensor's form.
        """
        if self.form == "values_and_scales":
            return ENCODINGS["mxfp4"]
        return self.sources[0].encoding


@dataclass(frozen=True)
class BankBinding:
    """One operand that has an entry for each expert, and what of a checkpoint fills it.

    Attributes
    ----------
    operand : str
        ``<object>/<tensor>``.
    layer : int
    role : Role
        What its regions are for in a bank.
    number : int
        Which of the bank's region schemas it is.
    shape : tuple of int
        ``[experts, rows, columns]``, or ``[experts, columns]`` of vectors.
    source : str
        The tensor's name; ``{e}`` stands for the expert where each has one of its own.
    pieces : tuple of Piece
        One for each expert.
    """

    operand: str
    layer: int
    role: Role
    number: int
    shape: tuple[int, ...]
    source: str
    pieces: tuple[Piece, ...]

    @property
    def object(self) -> str:
        """The logical object, e.g. ``target.layer.007``."""
        return self.operand.split("/", 1)[0]

    @property
    def component(self) -> str | None:
        """Whose layer it is; None: that of the model proper."""
        return component_beside(self.operand)

    @property
    def rows(self) -> int:
        """Rows of an expert's region."""
        return self.shape[1] if len(self.shape) == 3 else 1

    @property
    def columns(self) -> int:
        """Columns of an expert's region."""
        return self.shape[-1]

    @property
    def encoding(self) -> Encoding:
        """The encoding in which the checkpoint has all experts.

        Raises
        ------
        EncodingError
            If they differ.
        UnsupportedRefusal
            As :attr:`Piece.encoding`.
        """
        first = self.pieces[0].encoding
        for number, piece in enumerate(self.pieces):
            if piece.encoding != first:
                raise EncodingError(
                    f"{self.operand}: expert {number} is stored as {piece.encoding.name}, expert 0 "
                    f"as {first.name}; expected one encoding"
                )
        return first

    @property
    def turned(self) -> bool:
        """Whether the stored bytes are the checkpoint's in another order."""
        return self.pieces[0].form != "rows"


def piece_chunks(
    checkpoint: Checkpoint, piece: Piece, rows: int, columns: int, told: Told
) -> Iterator[bytes]:
    """Yield the bytes of a region, whole rows at a time.

    Parameters
    ----------
    checkpoint : Checkpoint
    piece : Piece
    rows, columns : int
        The region's shape.
    told : callable
        Given all bytes that are read, as the checkpoint has them and in order.

    Raises
    ------
    SourceError
        If they cannot be read.
    EncodingError
        If they are no MXFP4, naming the tensor.
    """
    if piece.form in ("rows", "stacked"):
        for source, selection in zip(piece.sources, piece.rows, strict=True):
            row_bytes = source.encoding.row_bytes(source.shape[-1])
            size = max(1, _CHUNK // row_bytes) * row_bytes
            for chunk in checkpoint.chunks(source.name, size, selection):
                told(chunk)
                yield chunk
        return
    import numpy as np

    whole = []
    for source, selection in zip(piece.sources, piece.rows, strict=True):
        data = b"".join(checkpoint.chunks(source.name, _CHUNK, selection))
        told(data)
        whole.append(np.frombuffer(data, np.uint8))
    if piece.form == "columns":
        width = piece.encoding.block_bytes
        elements = whole[0].reshape(columns, rows, width)
        yield np.ascontiguousarray(elements.swapaxes(0, 1)).tobytes()
        return
    from larql.format.quants.blocks import BlockError
    from larql.format.quants.mxfp4 import repack

    nibbles, scales = whole
    out = np.empty((len(scales), ENCODINGS["mxfp4"].block_bytes), np.uint8)
    try:
        repack(nibbles.reshape(-1, 16), scales, out)
    except BlockError as error:
        scale = piece.sources[1]
        raise EncodingError(f"{scale.file}: tensor {scale.name}: {error.reason}") from None
    yield out.tobytes()
