"""Reading dumps of logits back, a few rows at a time, each held to its sidecar."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.errors import DumpError
from larql.format.json_object import JsonObject
from larql.format.safetensors_header import parse_header
from larql.format.untrusted import open_regular, read_exactly, read_json_object
from larql.provenance import sidecar_path
from larql.runtime.dump import SUFFIXES

__all__ = ["LogitDump", "open_dump"]

Rows = npt.NDArray[np.float32]

_NPY_HEADER = 4096  # more than the header of any dump takes
_SIDECAR_LIMIT = 64 << 20  # it lists every token


@dataclass(frozen=True)
class LogitDump:
    """A dump of logits and what its sidecar says of it.

    Attributes
    ----------
    path : Path
    sidecar : mapping
        As read; ``kind``, ``shape``, ``payload_sha256`` and ``tokens`` have been checked.
    shape : (int, int)
        Positions and vocabulary.
    tokens : tuple of int
        One for each position.
    data_start : int
        Where the float32 values begin in the file.
    """

    path: Path
    sidecar: Mapping[str, object]
    shape: tuple[int, int]
    tokens: tuple[int, ...]
    data_start: int

    def rows(self, count: int) -> Iterator[Rows]:
        """Yield consecutive pieces of at most ``count`` rows, float32 ``[n, vocab]``.

        Raises
        ------
        DumpError
            If the file cannot be read, or, after the last piece, is not what the sidecar hashed.
        """
        digest = hashlib.sha256()
        positions, vocab = self.shape
        with open_regular(self.path, DumpError) as (descriptor, _):
            for first in range(0, positions, count):
                number = min(count, positions - first)
                at = self.data_start + first * vocab * 4
                raw = read_exactly(descriptor, at, number * vocab * 4, str(self.path), DumpError)
                digest.update(raw)
                yield np.frombuffer(raw, "<f4").astype(np.float32).reshape(number, vocab)
        expected = self.sidecar["payload_sha256"]
        if digest.hexdigest() != expected:
            raise DumpError(
                f"{self.path}: its values have sha256 {digest.hexdigest()}, and its sidecar says "
                f"{expected}; it was changed since: make the dump again"
            )


def open_dump(path: Path) -> LogitDump:
    """Open a dump of logits by its sidecar; its values are not read yet.

    Raises
    ------
    DumpError
        If file or sidecar is missing, is something else, or they contradict each other.
    """
    beside = sidecar_path(path)
    if path.suffix not in SUFFIXES:
        raise DumpError(f"{path}: is no dump; expected a name that ends in {', '.join(SUFFIXES)}")
    sidecar = read_json_object(beside, DumpError, limit=_SIDECAR_LIMIT)
    document = JsonObject(sidecar, "", str(beside), DumpError)
    if document.text("kind") != "logits":
        raise DumpError(f"{beside}: `kind` is {sidecar['kind']!r:.60}, expected 'logits'")
    document.sha256("payload_sha256")
    shape = document.extents("shape")
    tokens = sidecar.get("tokens")
    if len(shape) != 2:
        raise DumpError(f"{beside}: `shape` has {len(shape)} extents, expected positions and vocab")
    if (
        not isinstance(tokens, list)
        or len(tokens) != shape[0]
        or not all(type(token) is int and token >= 0 for token in tokens)
    ):
        raise DumpError(f"{beside}: `tokens` is not a list of {shape[0]} ids")
    positions, vocab = shape
    with open_regular(path, DumpError) as (descriptor, status):
        start = _data_start(path, descriptor, status, (positions, vocab))
        if status.st_size != start + positions * vocab * 4:
            raise DumpError(
                f"{path}: {status.st_size} bytes, expected {start + positions * vocab * 4} for the "
                f"shape [{positions}, {vocab}] of its sidecar; make the dump again"
            )
    return LogitDump(path, sidecar, (positions, vocab), tuple(tokens), start)


def _data_start(path: Path, descriptor: int, status: os.stat_result, shape: tuple[int, int]) -> int:
    """Return where the values begin, after a header that says what the sidecar says."""
    if path.suffix == ".f32":
        return 0
    if path.suffix == ".safetensors":
        header = parse_header(descriptor, status.st_size, str(path), DumpError)
        found = {name: (entry.dtype, entry.shape) for name, entry in header.entries.items()}
        if found != {"logits": ("F32", shape)}:
            raise DumpError(f"{path}: does not hold just the tensor logits, F32 {list(shape)}")
        return header.data_start
    head = read_exactly(descriptor, 0, min(_NPY_HEADER, status.st_size), str(path), DumpError)
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        found_shape, by_columns, kind = np.lib.format.read_array_header_1_0(stream)
    except ValueError as error:
        raise DumpError(f"{path}: is no .npy file: {error}") from None
    if (version, found_shape, by_columns, kind) != ((1, 0), shape, False, np.dtype("<f4")):
        order = "by columns" if by_columns else "by rows"
        raise DumpError(
            f"{path}: holds {kind} {list(found_shape)} {order}, expected float32 {list(shape)} "
            f"by rows"
        )
    return stream.tell()
