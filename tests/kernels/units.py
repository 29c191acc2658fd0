"""Rows as units of weights of one scale, block by block, after ggml's reference loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tests.kernels.decode import SIZES, U8, F, decode, fives, half, k_scale, nibbles
from tests.naive import kernels as naive
from tests.naive import unit_sums
from tests.naive.unit_sums import Units

Unit = tuple[list[int], F, F | None]  # bits, scale, shift


def q4_0(b: U8) -> list[Unit]:
    return [(nibbles(b[2:]), half(b, 0), None)]


def q4_1(b: U8) -> list[Unit]:
    return [(nibbles(b[4:]), half(b, 0), half(b, 2))]


def q5_0(b: U8) -> list[Unit]:
    return [(fives(b, 2), half(b, 0), None)]


def q5_1(b: U8) -> list[Unit]:
    return [(fives(b, 4), half(b, 0), half(b, 2))]


def packed6(b: U8, bits: Callable[[int], list[int]]) -> list[Unit]:
    """Units of a block whose scales and minima have six bits."""
    found: list[Unit] = []
    for j in range(8):
        scale, least = k_scale(b[4:16], j)
        found.append((bits(j), half(b, 0) * F(scale), -half(b, 2) * F(least)))
    return found


def fours(b: U8, at: int, j: int) -> list[int]:
    """Bits of a unit whose high and low halves of bytes two units share."""
    return [int(q) >> 4 if j % 2 else int(q) & 15 for q in b[at + 32 * (j // 2) :][:32]]


def q4_k(b: U8) -> list[Unit]:
    return packed6(b, lambda j: fours(b, 16, j))


def q5_k(b: U8) -> list[Unit]:
    def bits(j: int) -> list[int]:
        return [q + 16 * (int(b[16 + i]) >> j & 1) for i, q in enumerate(fours(b, 48, j))]

    return packed6(b, bits)


def q6_k(b: U8) -> list[Unit]:
    ones = b.copy()
    ones[192:208], ones[208:210] = 1, np.array([1], np.float16).view(np.uint8)
    bits = (decode("q6_k", ones).astype(int) + 32).reshape(16, 16)
    scales = [half(b, 208) * F(q) for q in b[192:208].view(np.int8)]
    return [(row.tolist(), scale, None) for row, scale in zip(bits, scales, strict=True)]


BLOCKS: dict[str, Callable[[U8], list[Unit]]] = {
    f.__name__: f for f in (q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k)
}
FIRST = {"q4_0": -8, "q5_0": -16, "q6_k": -32}


def units(encoding: str, row: U8) -> list[Unit]:
    """The units of one row in order."""
    with np.errstate(all="ignore"):
        return [
            unit for part in row.reshape(-1, SIZES[encoding][1]) for unit in BLOCKS[encoding](part)
        ]


def stacked(encoding: str, raw: U8) -> Units:
    """Stored bytes [rows, row_bytes] -> their units."""
    rows = [units(encoding, row) for row in raw]
    shifts = [[shift for _, _, shift in row] for row in rows]
    return Units(
        np.array([[bits for bits, _, _ in row] for row in rows], F),
        FIRST.get(encoding, 0),
        np.array([[scale for _, scale, _ in row] for row in rows], F),
        None if shifts[0][0] is None else np.array(shifts, F),
    )


def product(encoding: str, raw: U8, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Plain rows [rows, row_bytes] times x [C, columns], by the definition of their encoding.

    `encoding` may be that of packed rows, which have the products of those that were packed. Rows
    end with the block that their columns end in, whatever else is stored of them.
    """
    encoding = encoding.removesuffix("_r16")
    if encoding in BLOCKS:
        elements, size = SIZES[encoding]
        blocks = -(-x.shape[1] // elements)
        return unit_sums.product(stacked(encoding, raw[:, : blocks * size]), x)
    weights = np.stack([decode(encoding, row) for row in raw])
    return naive.product(weights[:, : x.shape[1]], x)
