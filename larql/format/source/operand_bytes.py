"""The bytes of an operand as its checkpoint had them, read back from a container a piece at a time.

What was carried is compared with the hash that the index recorded of the checkpoint's bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import prod
from typing import Any, Literal

from larql.errors import ContainerError, EncodingError
from larql.format.container import Container
from larql.format.encoding import ENCODINGS
from larql.format.index import Representation

__all__ = ["OperandBytes"]

_CHUNK = 4 << 20
Half = Literal["whole", "values", "scales"]
Digest = Any  # hashlib's objects have no public type


class OperandBytes:
    """Reads operands back and keeps the hash of what it gave.

    Parameters
    ----------
    container : Container
        Opened; it is not changed.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._digests: dict[str, Digest] = {}

    def chunks(
        self, value: Representation, entry: int | None = None, half: Half = "whole"
    ) -> Iterator[bytes]:
        """Yield an operand's bytes in the checkpoint's encoding and order.

        Parameters
        ----------
        value : Representation
        entry : int or None
            One entry of an expert bank; None: the whole operand.
        half : {"whole", "values", "scales"}
            Of blocks that were joined from two tensors, which of these. Reading the values counts
            for the hash, as it comes to both.

        Raises
        ------
        ContainerError, LarqlError
            If the file is missing, malformed or changed, or a region is not in it.
        EncodingError
            Naming the operand, if stored values cannot be encoded as the checkpoint had them.
        """
        digest = hashlib.sha256()
        if half != "scales":
            digest = self._digests.setdefault(value.id, digest)
        for rows in self._rows(value, entry):
            data = self._encoded(value, rows)
            if value.source.form == "values_and_scales":
                values, scales = _unpacked(data)
                digest.update(values)
                digest.update(scales)
                yield values if half == "values" else scales
                continue
            if value.source.form == "columns":
                data = _turned(data, value)
            digest.update(data)
            yield data

    def check(self, value: Representation) -> None:
        """Refuse an operand whose bytes, all of them read, are not those of the checkpoint.

        The next reading is hashed for itself. What was encoded anew on the way into the container
        cannot be held against them.

        Raises
        ------
        ContainerError
            Naming operand and tensor.
        """
        found = self._digests.pop(value.id).hexdigest()
        if value.encoding.name == value.source.encoding and found != value.source.sha256:
            raise ContainerError(
                f"{self._container.path / value.segment}: operand {value.operand} gives bytes of "
                f"sha256 {found} for tensor {value.source.tensor}, the index recorded "
                f"{value.source.sha256}; the container is damaged, extract the checkpoint again"
            )

    def _rows(self, value: Representation, entry: int | None) -> Iterator[bytes]:
        """Yield stored bytes: of banks an entry at a time, else some whole rows at a time."""
        container = self._container
        if container.index.holds_banks(value.segment):
            regions = container.entries(value)
            for number in range(value.shape[0]) if entry is None else (entry,):
                yield regions.stored(number).tobytes()
            return
        segment = container.segment(value.segment)
        segment.check(value.tensor, value.encoding, value.shape)
        row = value.encoding.row_bytes(value.shape[-1])
        waiting = bytearray()
        for chunk in segment.chunks(value.tensor):
            waiting += chunk
            whole = len(waiting) // row * row
            if whole:
                yield bytes(waiting[:whole])
                del waiting[:whole]

    def _encoded(self, value: Representation, data: bytes) -> bytes:
        """Return whole rows in the encoding that the checkpoint had."""
        source = ENCODINGS[value.source.encoding]
        columns, stored = value.shape[-1], value.stored_shape[-1]
        if value.encoding == source and columns == stored:
            return data
        import numpy as np

        from larql.format.codec import decode, encode

        rows = np.frombuffer(data, np.uint8).reshape(-1, value.encoding.row_bytes(stored))
        if value.encoding == source:
            return rows[:, : source.row_bytes(columns)].tobytes()
        step = max(1, _CHUNK // (4 * columns))
        try:
            return b"".join(
                encode(
                    source, decode(value.encoding, rows[at : at + step], stored)[:, :columns]
                ).tobytes()
                for at in range(0, len(rows), step)
            )
        except EncodingError as error:
            raise EncodingError(f"{self._container.path}: {value.operand}: {error}") from None


def _turned(data: bytes, value: Representation) -> bytes:
    import numpy as np

    width = prod(value.shape[1:])
    elements = np.frombuffer(data, np.uint8).reshape(
        value.shape[1], value.shape[2], len(data) // width
    )
    return np.ascontiguousarray(elements.swapaxes(0, 1)).tobytes()


def _unpacked(data: bytes) -> tuple[bytes, bytes]:
    import numpy as np

    from larql.format.quants.mxfp4 import unpack

    blocks = np.frombuffer(data, np.uint8).reshape(-1, ENCODINGS["mxfp4"].block_bytes)
    nibbles = np.empty((len(blocks), 16), np.uint8)
    scales = np.empty(len(blocks), np.uint8)
    unpack(blocks, nibbles, scales)
    return nibbles.tobytes(), scales.tobytes()
