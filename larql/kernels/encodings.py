"""Geometry of the weight encodings that kernels can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BLOCKS", "Block", "block"]


@dataclass(frozen=True)
class Block:
    """One block of an encoding: `elements` consecutive weights in `nbytes` bytes.

    `step` is how many elements a kernel takes at a time, a multiple of 16 lanes; `scales` how many
    float32 numbers it prepares for a block before; `together` how many rows lie interleaved, as
    many as a matrix has a multiple of.
    """

    elements: int
    nbytes: int
    step: int
    scales: int
    together: int = 1

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

    def check_rows(self, name: str, rows: int) -> None:
        """Refuse a matrix of part of a slab.

        Raises
        ------
        ValueError
            When `rows` is no multiple of `together`.
        """
        if rows % self.together:
            raise ValueError(f"rows of {name} come by {self.together}, found a matrix of {rows}")


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
    "q8_0_r16": Block(32, 34, 32, 0, 16),
    "q4_0_r16": Block(32, 18, 32, 0, 16),
    "q4_1_r16": Block(32, 20, 32, 0, 16),
    "q5_0_r16": Block(32, 22, 32, 0, 16),
    "q5_1_r16": Block(32, 24, 32, 0, 16),
    "q4_k_r16": Block(256, 144, 256, 0, 16),
    "q5_k_r16": Block(256, 176, 256, 0, 16),
    "q6_k_r16": Block(256, 210, 256, 0, 16),
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
