"""``down_meta.bin``: which tokens each feature writes.

A header ``"DMET"``, u32 version, u32 num_layers, u32 top_k; then a record for each dense feature,
layer after layer: u32 top token, f32 score, u8 n, and ``top_k`` pairs of u32 token and f32 score,
of which the first n mean something. All numbers are little-endian; records are not padded.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from larql.errors import ContainerError, UnsupportedRefusal, UsageError
from larql.format.segment import map_file
from larql.format.untrusted import open_regular, read_exactly

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.format.encoding import Encoding

    Float32 = npt.NDArray[np.float32]
    Tokens = npt.NDArray[np.uint32]

__all__ = [
    "HEADER",
    "VERSION",
    "DownMeta",
    "FeatureTokens",
    "cut_records",
    "packed_records",
    "record_bytes",
]

HEADER = struct.Struct("<4s3I")
MAGIC = b"DMET"
VERSION = 1


class FeatureTokens(Protocol):
    """Says which tokens directions of the carrier write; the runtime has the arithmetic for it."""

    def begin(
        self, encoding: Encoding, shape: tuple[int, int], data: npt.NDArray[np.uint8]
    ) -> None:
        """Take the matrix that turns the carrier into logits, as stored.

        Parameters
        ----------
        encoding : Encoding
        shape : (int, int)
            ``[vocab, hidden]``.
        data : uint8 ``[nbytes]``
            Mapped; it stays valid until the last call of :meth:`of`.
        """

    def of(self, directions: Float32, top: int) -> tuple[Tokens, Float32]:
        """Return the tokens of the largest products with the matrix's rows.

        Parameters
        ----------
        directions : float32 ``[n, hidden]``
        top : int
            At most the vocabulary.

        Returns
        -------
        uint32 ``[n, top]``
            Largest first, of equals the smaller token.
        float32 ``[n, top]``
            Their products.

        Raises
        ------
        EncodingError
            If a product is not finite, naming the row of ``directions``.
        """


def record_bytes(top_k: int) -> int:
    """Return the bytes of one record."""
    return 9 + 8 * top_k


def _record_dtype(top_k: int) -> np.dtype[np.void]:
    import numpy as np

    pair = np.dtype([("token", "<u4"), ("score", "<f4")])
    return np.dtype([("token", "<u4"), ("score", "<f4"), ("n", "u1"), ("top", pair, (top_k,))])


def packed_records(tokens: Tokens, scores: Float32, top_k: int) -> bytes:
    """Return the records of some features.

    Parameters
    ----------
    tokens, scores : uint32 and float32 ``[features, n]``
        Largest score first; ``1 <= n <= top_k``.
    top_k : int
        Pairs of a record; those behind the n given are zeros.
    """
    import numpy as np

    count, n = tokens.shape
    records = np.zeros(count, _record_dtype(top_k))
    records["token"], records["score"], records["n"] = tokens[:, 0], scores[:, 0], n
    records["top"]["token"][:, :n] = tokens
    records["top"]["score"][:, :n] = scores
    return records.tobytes()


def cut_records(
    records: DownMeta, num_layers: int, kept: Collection[int]
) -> list[bytes | tuple[int, int]]:
    """Return of what a file with the records of some layers is made.

    Parameters
    ----------
    records : DownMeta
    num_layers : int
        That the new file is of; those that are not kept have no records in it.
    kept : collection of int

    Returns
    -------
    list of bytes or (int, int)
        The header, and ranges of the old file: offset and length.
    """
    pieces: list[bytes | tuple[int, int]] = [HEADER.pack(MAGIC, VERSION, num_layers, records.top_k)]
    at = HEADER.size
    for layer, count in enumerate(records.counts):
        length = count * record_bytes(records.top_k)
        if layer in kept and length:
            pieces.append((at, length))
        at += length
    return pieces


class DownMeta:
    """The records of a directory, mapped.

    Parameters
    ----------
    path : Path
        The file.
    counts : sequence of int
        Features of each layer, as the index has them.
    top_k, vocab_size : int
        As the index has them.

    Raises
    ------
    UnsupportedRefusal
        If the file has another version than this build reads.
    ContainerError
        If it is missing, not of this kind, or contradicts the index in layers, top_k or length.
    """

    def __init__(self, path: Path, counts: Sequence[int], top_k: int, vocab_size: int) -> None:
        self.path = path
        self.vocab_size = vocab_size
        self.counts = tuple(counts)
        self.top_k = top_k
        with open_regular(path, ContainerError) as (descriptor, status):
            size = status.st_size
            if size < HEADER.size:
                raise ContainerError(
                    f"{path}: has {size} bytes, expected a header of {HEADER.size}; it is cut short"
                )
            head = read_exactly(descriptor, 0, HEADER.size, str(path), ContainerError)
        magic, version, layers, stored_k = HEADER.unpack(head)
        if magic != MAGIC:
            raise ContainerError(f"{path}: begins with {magic!r}, expected {MAGIC!r}")
        if version != VERSION:
            raise UnsupportedRefusal(
                f"{path}: is of version {version}, this build reads {VERSION}; use a newer larql"
            )
        for name, stored, stated in (
            ("num_layers", layers, len(self.counts)),
            ("top_k", stored_k, top_k),
        ):
            if stored != stated:
                raise ContainerError(f"{path}: {name} is {stored}, the index says {stated}")
        expected = HEADER.size + sum(self.counts) * record_bytes(top_k)
        if size != expected:
            raise ContainerError(
                f"{path}: has {size} bytes, expected {expected} for {sum(self.counts)} features "
                f"with {top_k} tokens each"
            )
        self._size = size
        self._data: npt.NDArray[np.uint8] | None = None
        self._checked: dict[int, npt.NDArray[np.void]] = {}

    def layer(self, layer: int) -> npt.NDArray[np.void]:
        """Return the records of a layer, a mapped view ``[features]``.

        Fields: ``token`` u32, ``score`` f32, ``n`` u8, and ``top`` ``[top_k]`` of ``token`` and
        ``score``.

        Raises
        ------
        UsageError
            If there is no such layer.
        ContainerError
            If a record says that it has more tokens than there is room for, has one outside the
            vocabulary or a score that is not finite, or the file changed.
        """
        import numpy as np

        if not 0 <= layer < len(self.counts):
            raise UsageError(f"{self.path}: layer {layer}: expected 0 to {len(self.counts) - 1}")
        if layer in self._checked:
            return self._checked[layer]
        if self._data is None:
            self._data = np.frombuffer(map_file(self.path, self._size), np.uint8)
        first = sum(self.counts[:layer])
        dtype = _record_dtype(self.top_k)
        start = HEADER.size + first * dtype.itemsize
        stop = start + self.counts[layer] * dtype.itemsize
        records = self._data[start:stop].view(dtype)
        wrong = np.flatnonzero(records["n"] > self.top_k)
        if wrong.size:
            feature = int(wrong[0])
            raise ContainerError(
                f"{self.path}: layer {layer}, feature {feature}: has {records['n'][feature]} "
                f"tokens, expected at most {self.top_k}"
            )
        counted = np.arange(self.top_k) < records["n"][:, None]
        told = records["top"]
        strange = counted & ((told["token"] >= self.vocab_size) | ~np.isfinite(told["score"]))
        wrong = np.flatnonzero(strange.any(axis=1))
        if wrong.size:
            feature = int(wrong[0])
            one = told[feature][strange[feature]][0]
            raise ContainerError(
                f"{self.path}: layer {layer}, feature {feature}: has token {one['token']} with "
                f"score {one['score']}, expected one below {self.vocab_size} and a finite score; "
                f"extract the model again"
            )
        self._checked[layer] = records
        return records

    def tokens(self, layer: int, feature: int) -> Iterator[tuple[int, float]]:
        """Yield tokens and scores of a feature, largest score first.

        Raises
        ------
        UsageError
            If there is no such layer or feature.
        ContainerError
            As :meth:`layer`.
        """
        records = self.layer(layer)
        if not 0 <= feature < len(records):
            raise UsageError(
                f"{self.path}: layer {layer} has features 0 to {len(records) - 1}, found {feature}"
            )
        record = records[feature]
        for pair in record["top"][: record["n"]]:
            yield int(pair["token"]), float(pair["score"])
