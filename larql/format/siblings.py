"""Packed representations held against the ones that they were packed from, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from larql.errors import LarqlError
from larql.format.index import Index, Representation
from larql.format.moe.authority import Level, level_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.format.container import Container

    Rows = npt.NDArray[np.uint8]

__all__ = ["packed_fidelity", "sibling_problem", "stated_problem", "stored_slabs"]

_CHUNK = 4 << 20


def packed_fidelity(value: Representation) -> str:
    """Return the fidelity of what is packed from a representation: other bytes, equal values."""
    return max(level_of(value.fidelity), Level.SOURCE_EQUIVALENT).text


def stored_slabs(container: Container, value: Representation, rows: int) -> Iterator[Rows]:
    """Yield the stored bytes of a matrix, uint8 ``[n, row_bytes]``, whole slabs at a time.

    Parameters
    ----------
    container : Container
    value : Representation
        In a file of tensors.
    rows : int
        Rows of a slab.

    Raises
    ------
    ContainerError
        If the tensor is not stored as the index says.
    """
    segment = container.segment(value.segment)
    segment.check(value.tensor, value.encoding, value.shape)
    stored = segment.bytes_of(value.tensor).reshape(value.shape[0], -1)
    step = rows * max(1, _CHUNK // (rows * stored.shape[1]))
    for at in range(0, len(stored), step):
        yield stored[at : at + step]


def stated_problem(index: Index, value: Representation) -> str | None:
    """Return what is wrong with what the index says of a representation's packing, or None.

    What is in packed rows names what it packs, and nothing else does.
    """
    enc = value.encoding
    if enc.unpacked is None:
        if value.packs is None:
            return None
        return f"packs {value.packs!r:.80}, but {enc.name} is no packed encoding"
    if value.packs is None:
        return f"is in {enc.name} and does not say what it packs"
    other = index.representations.get(value.packs)
    if other is None:
        return f"packs {value.packs!r:.80}, which is not in the container"
    if (other.operand, other.shape, other.encoding.name) != (
        value.operand, value.shape, enc.unpacked,
    ):  # fmt: skip
        return f"packs {other.id}, which is not the same operand in {enc.unpacked}"
    if level_of(value.fidelity) < level_of(packed_fidelity(other)):
        return f"is called {value.fidelity}, but packs {other.id}, which is {other.fidelity}"
    return None


def sibling_problem(container: Container, value: Representation) -> str | None:
    """Return what is wrong with a representation that says what it packs, None if nothing is.

    Its bytes are unpacked again and compared with those of the one that it names.
    """
    import numpy as np

    from larql.format.codec import unpack

    problem, enc = stated_problem(container.index, value), value.encoding
    if problem is not None:
        return problem
    other = container.index.representations[str(value.packs)]
    try:
        pairs = zip(
            stored_slabs(container, value, enc.slab_rows),
            stored_slabs(container, other, enc.slab_rows),
            strict=True,
        )
        for packed, rows in pairs:
            if not np.array_equal(unpack(enc, packed, value.shape[-1]), rows):
                return f"does not unpack to the bytes of {other.id}"
    except LarqlError as error:
        return str(error).removeprefix(f"{container.path}/")
    return None
