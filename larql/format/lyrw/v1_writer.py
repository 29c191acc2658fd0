"""Writing a LYRW version 1 file entry by entry, without holding a matrix."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from larql.errors import ContainerError
from larql.format.encoding import Encoding
from larql.format.generation import Generation
from larql.format.lyrw.codes import format_code
from larql.format.lyrw.extents import pack_numbers
from larql.format.lyrw.pieces import Pieces, open_output, write_pieces
from larql.format.lyrw.prelude import MAGIC, lyrw_version
from larql.format.lyrw.v1 import (
    ENTRY_BYTES,
    HEADER,
    LayerShape,
    LayerWeights,
    check_shape,
    part_bytes,
)

__all__ = ["LayerWriter", "shard_of", "write_layer"]


class LayerWriter:
    """Takes the entries of a file one after another; made by :func:`write_layer`."""

    def __init__(self, stream: BinaryIO, shape: LayerShape, lengths: tuple[int, int], where: str):
        self._stream = stream
        self._shape = shape
        self._lengths = lengths
        self._where = where
        self.written = 0

    def entry(self, gate: Pieces, up: Pieces, down: Pieces) -> None:
        """Write the next entry from three matrices.

        Parameters
        ----------
        gate, up : iterable of bytes or memoryview
            Stored bytes of ``[intermediate, hidden]``, row-major.
        down : iterable of bytes or memoryview
            Stored bytes of ``[hidden, intermediate]``.

        Raises
        ------
        ContainerError
            If a matrix has another number of bytes, or there is an entry too many.
        """
        half = self._lengths[0] // 2
        self._begin()
        write_pieces(self._stream, gate, half, self._what("gate"))
        write_pieces(self._stream, up, half, self._what("up"))
        self._down(down)

    def fused_entry(self, gate_up: Pieces, down: Pieces) -> None:
        """Write the next entry from a matrix that holds the rows of gate, then those of up.

        Raises
        ------
        ContainerError
            As :meth:`entry`.
        """
        self._begin()
        write_pieces(self._stream, gate_up, self._lengths[0], self._what("gate_up"))
        self._down(down)

    def _begin(self) -> None:
        if self.written == self._shape.num_entries:
            raise ContainerError(
                f"{self._where}: one entry more than the {self._shape.num_entries} planned"
            )

    def _down(self, down: Pieces) -> None:
        write_pieces(self._stream, down, self._lengths[1], self._what("down"))
        self.written += 1

    def _what(self, part: str) -> str:
        return f"{self._where}: entry {self.written}, {part}"


def _tables(shape: LayerShape, table: array[int]) -> bytes:
    header = HEADER.pack(
        MAGIC,
        lyrw_version(Generation.VINDEX2),
        shape.quant_format,
        shape.num_entries,
        shape.intermediate,
        shape.hidden,
    )
    return header + pack_numbers(table)


def shard_of(file: LayerWeights, first: int, end: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Return of what a file with some of a layer's experts is made.

    The population stays what it was; in the table, entries that are elsewhere are zeros.

    Parameters
    ----------
    file : LayerWeights
        That has them.
    first, end : int
        Half-open range of entries.

    Returns
    -------
    bytes
        Header and table.
    list of (int, int)
        Offset and length of what follows, in ``file``.
    """
    at = HEADER.size + file.shape.num_entries * ENTRY_BYTES
    table = array("Q", bytes(file.shape.num_entries * ENTRY_BYTES))
    ranges: list[tuple[int, int]] = []
    for entry in range(first, end):
        for place, part in enumerate(("gate_up", "down")):
            offset, length = file.extent(entry, part)
            ranges.append((offset, length))
            table[4 * entry + 2 * place : 4 * entry + 2 * place + 2] = array("Q", (at, length))
            at += length
    return _tables(file.shape, table), ranges


@contextmanager
def write_layer(
    path: Path, encoding: Encoding, *, num_entries: int, intermediate: int, hidden: int
) -> Iterator[LayerWriter]:
    """Yield a writer of one file, which appears when the body has given every entry.

    Parameters
    ----------
    path : Path
        The file; replaced if it exists.
    encoding : Encoding
        Of every matrix.
    num_entries, intermediate, hidden : int
        As in :class:`LayerShape`.

    Raises
    ------
    ContainerError
        Before anything is written: a count or width that no file can have. At the end: fewer
        entries than planned, naming both counts.
    OutputError
        If the file cannot be written.
    """
    where = str(path)
    shape = LayerShape(format_code(encoding), num_entries, intermediate, hidden)
    check_shape(shape, where)
    lengths = part_bytes(encoding, intermediate, hidden)
    start = HEADER.size + num_entries * ENTRY_BYTES
    table = array("Q")
    for entry in range(num_entries):
        begin = start + entry * sum(lengths)
        table.extend((begin, lengths[0], begin + lengths[0], lengths[1]))
    with open_output(path) as stream:
        stream.write(_tables(shape, table))
        writer = LayerWriter(stream, shape, lengths, where)
        yield writer
        if writer.written != num_entries:
            raise ContainerError(
                f"{where}: {writer.written} of {num_entries} entries were given; a layer must have "
                "all of its experts"
            )
