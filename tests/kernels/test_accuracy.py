"""How far a product with rows of units may be from the exact one.

With u = 2^-24 and gamma(k) = k u / (1 - k u), each term of a sum that takes at most k roundings is
off by at most gamma(k) of itself. Of n weights of a unit, a lane adds n / 4; three operations join
lanes and the term of `first`; then come one or two operations for each of U units. So the error is

    gamma(n / 4 + 3 + U) * sum of |scale| (bits_i + |first|) |x_i|, and, where there are shifts,
    gamma(n / 4 + 3 + 2 U) * sum of (|scale| bits_i + |shift|) |x_i|,

at most, beside 2^-150 for each operation whose result is subnormal. Bits and first, scaled bits and
shifts are added up apart: what cancels between them is part of the bound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from larql.kernels.parts import Part
from larql.kernels.product import products
from tests.kernels import units
from tests.kernels.decode import random_rows
from tests.kernels.same import normal
from tests.naive.unit_sums import Units

F64 = npt.NDArray[np.float64]
ROUNDING = 2.0**-24
COLUMNS = 768


def exact_and_bound(rows: Units, x: F64) -> tuple[F64, F64]:
    """The product in float64, and the largest error of the float32 one."""
    bits, scales = rows.bits.astype(float), rows.scales[..., None].astype(float)
    shifts = np.zeros_like(scales) if rows.shifts is None else rows.shifts[..., None].astype(float)
    weights = scales * (bits + rows.first) + shifts
    sizes = np.abs(scales) * (bits + abs(rows.first)) + np.abs(shifts)
    count, size = bits.shape[1:]
    roundings = size // 4 + 3 + count * (1 if rows.shifts is None else 2)
    gamma = roundings * ROUNDING / (1 - roundings * ROUNDING)
    below = count * 2.0**-148 * (1 + np.abs(scales).max())
    flat = len(bits), count * size
    return x @ weights.reshape(flat).T, gamma * (np.abs(x) @ sizes.reshape(flat).T) + below


def vectors(kind: str) -> npt.NDArray[np.float32]:
    x = normal(3, 9, COLUMNS)
    if kind == "of one sign":
        return np.abs(x) + np.float32(1)
    if kind == "alternating":
        return np.tile(np.array([1e4, -1e4], np.float32), COLUMNS // 2)[None] + x
    if kind == "with outliers":
        x[:, ::61] *= np.float32(1e5)
    return x * np.float32(2.0**-135) if kind == "subnormal" else x


@pytest.mark.parametrize(
    "kind", ["ordinary", "of one sign", "alternating", "with outliers", "subnormal"]
)
@pytest.mark.parametrize("encoding", units.BLOCKS)
def test_errors_stay_within_the_bound(encoding: str, kind: str) -> None:
    raw = random_rows(np.random.default_rng(2), encoding, 37, COLUMNS)
    x = vectors(kind)
    exact, bound = exact_and_bound(units.stacked(encoding, raw), x.astype(float))
    for count in (1, len(x)):
        out = np.empty((count, len(raw)), np.float32)
        products([Part(raw, encoding, len(raw), COLUMNS, out)], x[:count])
        assert (np.abs(out - exact[:count]) <= bound[:count]).all()


@pytest.mark.parametrize("encoding", units.BLOCKS)
def test_the_bound_sees_the_least_bit_of_a_weight(encoding: str) -> None:
    """It is no bound that anything keeps."""
    raw = random_rows(np.random.default_rng(2), encoding, 37, COLUMNS)
    rows, x = units.stacked(encoding, raw), vectors("ordinary").astype(float)
    exact, bound = exact_and_bound(rows, x)
    other = Units(rows.bits.copy(), rows.first, rows.scales, rows.shifts)
    other.bits[:, 0, 0] += 1
    changed, _ = exact_and_bound(other, x)
    assert np.median(np.abs(changed - exact) / bound) > 2
