"""Products with eight-bit activations: their definition, and independence of the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import INTEGERS
from larql.kernels.product_q8 import QuantizedRows, product_q8, quantize_rows
from larql.kernels.threads import set_threads, threads
from tests.kernels.decode import decode, fives, half, random_rows
from tests.kernels.same import normal, same
from tests.naive import kernels as naive

F = np.float32


def multiply(raw: np.ndarray, encoding: str, x: QuantizedRows) -> np.ndarray:  # type: ignore[type-arg]
    out = np.full((len(x.values), len(raw)), 7, np.float32)
    product_q8(raw, encoding, len(raw), x.values.shape[1], x, out)
    return out


def part(x: QuantizedRows, a: int, b: int) -> QuantizedRows:
    return QuantizedRows(x.values[a:b], x.scales[a:b], x.sums[a:b])


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 5), blocks=st.integers(1, 9), seed=st.integers(0, 999))
def test_rounding(count: int, blocks: int, seed: int) -> None:
    x = normal(seed, count, 32 * blocks)
    x[0, :32] = 0
    found = quantize_rows(x)
    groups = x.reshape(count, blocks, 32)
    scales = np.abs(groups).max(2) / F(127)
    assert same(found.scales, scales)
    with np.errstate(invalid="ignore"):
        values = np.where(scales[..., None] > 0, np.rint(groups / scales[..., None]), 0)
    assert (found.values.reshape(groups.shape) == values).all()
    assert np.abs(values).max() <= 127
    assert (found.sums == found.values.reshape(count, -1, 4).astype(int).sum(2)).all()


def test_rounding_of_extremes() -> None:
    x = np.zeros((1, 160), np.float32)
    x[0, 3], x[0, 40], x[0, 64], x[0, 96:98], x[0, 128] = (
        1e-45,
        np.nan,
        -np.inf,
        (3e38, -3e38),
        -190 * 2.0**-149,
    )
    found = quantize_rows(x)
    assert np.isnan(found.scales[0, 1:3]).all() and np.isfinite(found.scales[0, [0, 3, 4]]).all()
    assert (found.values[0, 32:96] == 0).all()
    assert found.values[0, 96:98].tolist() == [127, -127]
    # 190 steps of the least number over a scale of one such step
    assert found.values[0, 128] == -127
    assert np.abs(found.values.astype(int)).max() <= 127


@pytest.mark.parametrize("encoding", INTEGERS)
def test_it_is_the_product_with_the_rounded_vector(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(1), encoding, 7, 512)
    x = quantize_rows(normal(2, 3, 512))
    weights = np.stack([decode(encoding, row) for row in raw]).astype(float)
    vectors = x.values * np.repeat(x.scales, 32, axis=1).astype(float)
    exact = vectors @ weights.T
    room = np.abs(vectors) @ np.abs(weights.T)
    # shifts are added apart from their scales, so terms cancel that are larger than the weights
    assert (np.abs(multiply(raw, encoding, x) - exact) <= 3e-6 * room + 1e-5 * np.abs(exact)).all()


def groups_of(encoding: str, row: np.ndarray) -> list[tuple[list[int], list[F], F | None]]:  # type: ignore[type-arg]
    """Integers, scale for each of the eight lanes, and shift, of each 32 weights."""
    found: list[tuple[list[int], list[F], F | None]] = []
    for b in row.reshape(-1, BLOCKS[encoding].nbytes):
        if encoding == "q8_0":
            found.append((b[2:].view(np.int8).tolist(), [half(b, 0)] * 8, None))
        elif encoding == "q5_1":
            found.append((fives(b, 4), [half(b, 0)] * 8, half(b, 2)))
        else:
            scales = [half(b, 208) * F(s) for s in b[192:208].view(np.int8)]
            ones = b.copy()
            ones[192:208], ones[208:210] = 1, np.array([1], np.float16).view(np.uint8)
            integers = decode("q6_k", ones).astype(int).reshape(8, 32)
            for g in range(8):
                pair = [scales[2 * g]] * 4 + [scales[2 * g + 1]] * 4
                found.append((integers[g].tolist(), pair, None))
    return found


@pytest.mark.parametrize("encoding", ["q8_0", "q5_1", "q6_k"])
def test_bits_of_the_definition(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(3), encoding, 5, 768)
    x = quantize_rows(normal(4, 3, 768))
    expected = np.empty((3, 5), np.float32)
    for r, row in enumerate(raw):
        for c in range(3):
            lanes = np.zeros(8, np.float32)
            for g, (integers, scales, shift) in enumerate(groups_of(encoding, row)):
                values = x.values[c, 32 * g : 32 * g + 32].astype(int)
                dot = (np.array(integers) * values).reshape(8, 4).sum(1)
                d = x.scales[c, g]
                lanes = naive.fma(dot.astype(F), np.array(scales, F) * d, lanes)
                if shift is not None:
                    total = values.reshape(8, 4).sum(1)
                    lanes = naive.fma(total.astype(F), np.full(8, shift * d, F), lanes)
            expected[c, r] = naive.lane_sum(lanes)
    assert same(multiply(raw, encoding, x), expected)


@pytest.mark.parametrize("encoding", ["q4_1", "q6_k", "q8_0", "iq4_xs"])
def test_threads_columns_and_rows_change_no_bit(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(5), encoding, 203, 512)
    x = quantize_rows(normal(6, 7, 512))
    expected = multiply(raw, encoding, x)
    before = threads()
    try:
        for count in (1, 2, 3, 16):
            set_threads(count)
            assert same(multiply(raw, encoding, x), expected)
            for a, b in ((0, 1), (1, 4), (4, 7)):
                assert same(multiply(raw, encoding, part(x, a, b)), expected[a:b])
            some = multiply(raw[7:32], encoding, x)
            assert same(some, np.ascontiguousarray(expected[:, 7:32]))
    finally:
        set_threads(before)


def test_nan_is_carried() -> None:
    vectors = normal(7, 3, 64)
    vectors[1, 40] = np.nan
    raw = random_rows(np.random.default_rng(8), "q4_0", 3, 64)
    out = multiply(raw, "q4_0", quantize_rows(vectors))
    assert np.isnan(out[1]).all() and np.isfinite(out[[0, 2]]).all()


def test_refusals() -> None:
    x = quantize_rows(normal(0, 1, 32))
    out = np.empty((1, 2), np.float32)
    with pytest.raises(ValueError, match="'f16' has no integer products"):
        product_q8(np.zeros(128, np.uint8), "f16", 2, 32, x, out)
    with pytest.raises(ValueError, match="x must have 64 columns, found 32"):
        product_q8(np.zeros(136, np.uint8), "q8_0", 2, 64, x, out)
    with pytest.raises(ValueError, match="out must be contiguous"):
        product_q8(np.zeros(68, np.uint8), "q8_0", 2, 32, x, out[:, :1])
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_rows(normal(0, 1, 33))
    with pytest.raises(ValueError, match="x must be contiguous"):
        quantize_rows(normal(0, 64, 2).T)
