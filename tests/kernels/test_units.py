"""The twin of products with rows of units, against exact rational numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kernels import units
from tests.kernels.decode import SIZES, decode, random_rows
from tests.kernels.same import normal, same
from tests.naive import kernels as naive
from tests.naive import rational

F = np.float32
F32 = npt.NDArray[np.float32]
MOST = float(np.finfo(F).max)
# Their product is 2^46 + 1: beside half a step it is a tie for all that keep fewer bits.
NEAR_A_TIE = (8392705.0, 8384513.0)

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def one(value: float) -> F32:
    return np.array([value], F)


def fused(a: float, b: float, c: float) -> float:
    return float(naive.fma(one(a), one(b), one(c))[0])


@settings(deadline=None, max_examples=500)
@given(a=numbers, b=numbers, c=numbers)
@example(MOST, 2.0, -MOST)  # what overflows in between does not
@example(MOST, 1.0, 2.0**103)  # half a step past the largest
@example(MOST, 1.0, float(np.nextafter(F(2.0**103), F(0))))
@example(2.0**-149, 0.5, 0.0)
@example(2.0**-149, 0.5, 2.0**-149)
@example(3 * 2.0**-149, 0.5, 2.0**-126)
def test_fused_operations_are_rounded_once(a: float, b: float, c: float) -> None:
    assert fused(a, b, c) == rational.rounded(Fraction(a) * Fraction(b) + Fraction(c))


@settings(deadline=None, max_examples=300)
@given(
    c=st.floats(-(2.0**60), 2.0**60, width=32),
    sign=st.sampled_from([1, -1]),
    exponent=st.integers(-20, 20),
)
@example(1.0, 1, 0)
@example(-1.0, -1, 0)
def test_what_is_nearly_a_tie_is_rounded_once(c: float, sign: int, exponent: int) -> None:
    a, b = NEAR_A_TIE
    half = float(np.spacing(F(c))) / 2
    scale = 2.0 ** (exponent - 35)
    x, y = float(F(a * scale)), sign * float(F(b * half * 2.0**-46 / scale))
    assert fused(x, y, c) == rational.rounded(Fraction(x) * Fraction(y) + Fraction(c))


def test_two_roundings_would_be_seen() -> None:
    a, b = (value * 2.0**-35 for value in NEAR_A_TIE)
    assert F(a * b + 1.0) == 1
    assert fused(a, b, 1.0) == 1 + 2.0**-23


def test_what_is_not_finite_is_fused() -> None:
    inf, nan = float("inf"), float("nan")
    assert fused(MOST, MOST, -inf) == -inf and fused(MOST, MOST, -MOST) == inf
    assert all(np.isnan(fused(*of)) for of in ((inf, 0, 1), (1, inf, -inf), (nan, 0, 0)))
    assert np.signbit(fused(-0.0, 1.0, -0.0)) and not np.signbit(fused(-0.0, 1.0, 0.0))


@pytest.mark.parametrize("encoding", units.BLOCKS)
def test_units_stand_for_the_weights(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(1), encoding, 5, 512)
    found = units.stacked(encoding, raw)
    weights = (found.bits + F(found.first)) * found.scales[..., None]
    if found.shifts is not None:
        weights = weights + found.shifts[..., None]
    assert same(weights.reshape(5, 512), np.stack([decode(encoding, row) for row in raw]))


def exact(encoding: str, row: npt.NDArray[np.uint8], x: F32) -> Fraction:
    found = [
        (bits, Fraction(float(scale)), None if shift is None else Fraction(float(shift)))
        for bits, scale, shift in units.units(encoding, row)
    ]
    values = [Fraction(float(value)) for value in x]
    first = units.FIRST.get(encoding, 0)
    return rational.unit_product(found, first, values)


def vectors(kind: str, seed: int, columns: int) -> F32:
    x = normal(seed, 1, columns)
    if kind == "mixed":
        powers = np.random.default_rng(seed).integers(-20, 20, columns)
        return x * F(2) ** powers.astype(F)
    return x * F({"ordinary": 1, "subnormal": 2.0**-140, "large": 1e26}[kind])


@pytest.mark.parametrize("kind", ["ordinary", "mixed", "subnormal", "large"])
@pytest.mark.parametrize("encoding", units.BLOCKS)
def test_each_operation_is_rounded_once(encoding: str, kind: str) -> None:
    block = SIZES[encoding][0]
    for seed, columns in enumerate((block, 2 * block, block + 16, 2 * block - 16, 16)):
        stored = -(-columns // block) * block
        raw = random_rows(np.random.default_rng(seed), encoding, 2, stored)
        x = vectors(kind, seed, columns)
        found = units.product(encoding, raw, x)
        for r, row in enumerate(raw):
            assert found[0, r] == exact(encoding, row, x[0])


def test_the_order_is_seen() -> None:
    """Vectors of mixed size tell the order of the lanes and of the units."""
    raw = random_rows(np.random.default_rng(2), "q4_1", 4, 256)
    x = vectors("mixed", 3, 256)
    backwards = raw.reshape(4, 8, -1)[:, ::-1].reshape(4, -1)
    turned = np.ascontiguousarray(x.reshape(1, 8, 32)[:, ::-1].reshape(1, 256))
    assert not same(units.product("q4_1", backwards, turned), units.product("q4_1", raw, x))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("encoding", units.BLOCKS)
def test_what_is_not_finite_is_carried(encoding: str, bad: float) -> None:
    raw = random_rows(np.random.default_rng(4), encoding, 3, 256)
    for at in (0, 200, 255):
        x = normal(at, 1, 256)
        x[0, at] = bad
        assert not np.isfinite(units.product(encoding, raw, x)).any()


@pytest.mark.parametrize("encoding", ["q8_0", "iq4_nl"])
def test_others_keep_their_definition(encoding: str) -> None:
    raw, x = random_rows(np.random.default_rng(5), encoding, 3, 64), normal(6, 2, 48)
    weights = np.stack([decode(encoding, row) for row in raw])
    assert same(units.product(encoding, raw, x), naive.product(weights[:, :48], x))


def test_packed_rows_have_the_products_of_plain_ones() -> None:
    raw, x = random_rows(np.random.default_rng(7), "q5_k", 3, 256), normal(8, 2, 256)
    assert same(units.product("q5_k_r16", raw, x), units.product("q5_k", raw, x))
