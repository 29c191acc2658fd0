"""Geometry of the weight encodings that kernels can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BLOCKS", "Block", "block"]


@dataclass(frozen=True)
class Block:
    """One block of an encoding: `elements` consecutive weights in `nbytes` bytes.

    `step` is how many elements a kernel takes at a time, a multiple of 16 lanes; `scales` how many
    float32 numbers it prepares for a block before.
    """

    elements: int
    nbytes: int
    step: int
    scales: int

    def row_bytes(self, columns: int) -> int:
        """Return the stored size of a row.

        Raises
        ------
        ValueError
            When `columns` is not a whole number of blocks.
        """
        count, rest = divmod(columns, self.elements)
        if rest:
            raise ValueError(f"{columns} columns are no multiple of the block of {self.elements}")
        return count * self.nbytes


# Block layouts: GGUF specification and ggml's block structures.
BLOCKS: Mapping[str, Block] = {
    "f32": Block(1, 4, 16, 0),
    "f16": Block(1, 2, 16, 0),
    "bf16": Block(1, 2, 16, 0),
    "q8_0": Block(32, 34, 32, 1),
    "q4_0": Block(32, 18, 32, 1),
    "q4_1": Block(32, 20, 32, 2),
    "q5_0": Block(32, 22, 32, 1),
    "q5_1": Block(32, 24, 32, 2),
    "iq4_nl": Block(32, 18, 32, 1),
    "mxfp4": Block(32, 17, 32, 1),
    "q2_k": Block(256, 84, 256, 32),
    "q3_k": Block(256, 110, 256, 16),
    "q4_k": Block(256, 144, 256, 16),
    "q5_k": Block(256, 176, 256, 16),
    "q6_k": Block(256, 210, 256, 16),
    "iq4_xs": Block(256, 136, 256, 8),
}


def block(encoding: str) -> Block:
    """Return the geometry of `encoding`.

    Raises
    ------
    ValueError
        When no kernel reads it.
    """
    found = BLOCKS.get(encoding)
    if found is None:
        raise ValueError(f"no kernel reads the encoding {encoding!r}; known: {', '.join(BLOCKS)}")
    return found
