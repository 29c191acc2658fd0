"""Packing rows again, word by word, from the layout as the format page tells it."""

from __future__ import annotations

# name -> positions of the float16s, then of the words, in a block as stored by rows. Words have
# four bytes, of q8_0 one.
LAYOUTS: dict[str, tuple[list[int], list[int]]] = {
    "q8_0": ([0], [2 + i for i in range(32)]),
    "q4_0": ([0], [2 + 4 * i for i in range(4)]),
    "q4_1": ([0, 2], [4 + 4 * i for i in range(4)]),
    "q5_0": ([0], [2] + [6 + 4 * i for i in range(4)]),
    "q5_1": ([0, 2], [4] + [8 + 4 * i for i in range(4)]),
    "q4_k": ([0, 2], [4 + 4 * i for i in range(35)]),
    "q5_k": ([0, 2], [4 + 4 * i for i in range(43)]),
    "q6_k": (
        [208],
        [192 + 4 * i for i in range(4)]
        + [4 * i for i in range(32)]
        + [128 + 4 * i for i in range(16)],
    ),
}


def stored_word(name: str, index: int, word: int) -> int:
    """A word as a slab stores it."""
    if name in ("q5_0", "q5_1") and index == 0:
        return sum((word >> k & 1) << (8 * (k % 4) + k // 4) for k in range(32))
    return word


def pack(name: str, rows: list[bytes], block_bytes: int) -> bytes:
    """Pack rows of an encoding, 16 at a time."""
    halves, words = LAYOUTS[name]
    size = 1 if name == "q8_0" else 4
    out = bytearray()
    for first in range(0, len(rows), 16):
        slab = rows[first : first + 16]
        for at in range(0, len(rows[0]), block_bytes):
            blocks = [row[at : at + block_bytes] for row in slab]
            for half in halves:
                for block in blocks:
                    out += block[half : half + 2]
            for index, word in enumerate(words):
                for block in blocks:
                    value = int.from_bytes(block[word : word + size], "little")
                    out += stored_word(name, index, value).to_bytes(size, "little")
    return bytes(out)
