"""Products with eight-bit activations: their definition, and independence of the cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.encodings import BLOCKS
from larql.kernels.expand import PREPARED
from larql.kernels.integers import INTEGERS
from larql.kernels.parts import Part
from larql.kernels.product_q8 import products_q8, takes_integers
from larql.kernels.rounding import QuantizedRows, quantize_rows
from larql.kernels.threads import set_threads, threads
from tests.kernels.decode import IQ4, decode, fives, half, k_scale, nibbles, random_rows
from tests.kernels.same import normal, same
from tests.naive import kernels as naive

F = np.float32
F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


def multiply(raw: U8, encoding: str, x: F32) -> F32:
    out = np.full((len(x), len(raw)), 7, np.float32)
    products_q8([Part(raw, encoding, len(raw), x.shape[1], out)], quantize_rows(x))
    return out


@dataclass(frozen=True)
class Rounded:
    """Rounded vectors with one axis for each thing: values [C, G, 32], scales and the rest."""

    values: npt.NDArray[np.int64]
    scales: F32
    terms: F32
    sums: npt.NDArray[np.int64]


def natural(x: QuantizedRows) -> Rounded:
    """Undo the layout that kernels read."""
    count, groups = x.count, x.columns // 32
    values = x.values.transpose(0, 3, 1, 2, 4).reshape(-1, groups, 32)
    terms = x.terms.transpose(0, 3, 1, 2).reshape(-1, groups, 2)
    sums = x.sums.transpose(0, 3, 1, 2).reshape(-1, groups, 3)
    assert not values[count:].any() and not terms[count:].any() and not sums[count:].any()
    return Rounded(
        values[:count].astype(int), terms[:count, :, 0], terms[:count, :, 1],
        sums[:count].astype(int),
    )  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 37), blocks=st.integers(1, 9), seed=st.integers(0, 999))
def test_rounding(count: int, blocks: int, seed: int) -> None:
    x = normal(seed, count, 32 * blocks)
    x[0, :32] = 0
    found = natural(quantize_rows(x))
    groups = x.reshape(count, blocks, 32)
    scales = np.abs(groups).max(2) / F(127)
    assert same(np.ascontiguousarray(found.scales), scales)
    with np.errstate(invalid="ignore"):
        values = np.where(scales[..., None] > 0, np.rint(groups / scales[..., None]), 0)
    assert (found.values == values).all()
    assert np.abs(values).max() <= 127
    halves = values.reshape(count, blocks, 2, 16).sum(3)
    assert (found.sums[..., :2] == halves).all() and (found.sums[..., 2] == halves.sum(2)).all()
    assert same(np.ascontiguousarray(found.terms), scales * halves.sum(2).astype(F))


def test_rounding_of_extremes() -> None:
    x = np.zeros((1, 160), np.float32)
    x[0, 3], x[0, 40], x[0, 64], x[0, 96:98], x[0, 128] = (
        1e-45,
        np.nan,
        -np.inf,
        (3e38, -3e38),
        -190 * 2.0**-149,
    )
    found = natural(quantize_rows(x))
    values = found.values.reshape(1, 160)
    assert np.isnan(found.scales[0, 1:3]).all() and np.isfinite(found.scales[0, [0, 3, 4]]).all()
    assert (values[0, 32:96] == 0).all()
    assert values[0, 96:98].tolist() == [127, -127]
    # 190 steps of the least number over a scale of one such step
    assert values[0, 128] == -127
    assert np.abs(values).max() <= 127


@pytest.mark.parametrize("encoding", INTEGERS)
def test_it_is_the_product_with_the_rounded_vector(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(1), encoding, 11, 512)
    x = normal(2, 18, 512)
    rounded = natural(quantize_rows(x))
    weights = np.stack([decode(encoding, row) for row in raw]).astype(float)
    vectors = (rounded.values * rounded.scales[..., None].astype(float)).reshape(18, 512)
    exact = vectors @ weights.T
    room = np.abs(vectors) @ np.abs(weights.T)
    # shifts are added apart from their scales, so terms cancel that are larger than the weights
    error = np.abs(multiply(raw, encoding, x) - exact)
    assert (error <= 3e-6 * room + 1e-5 * np.abs(exact)).all()


Unit = tuple[list[int], F, F | None]  # integers, scale, shift


def units_of(encoding: str, row: U8) -> list[Unit]:
    """Units of a row in order: integers less their bias, scale, shift."""
    found: list[Unit] = []
    for b in row.reshape(-1, BLOCKS[encoding].nbytes):
        if encoding == "q8_0":
            found.append((b[2:].view(np.int8).tolist(), half(b, 0), None))
        elif encoding == "q4_0":
            found.append(([q - 8 for q in nibbles(b[2:])], half(b, 0), None))
        elif encoding == "q5_1":
            found.append((fives(b, 4), half(b, 0), half(b, 2)))
        elif encoding == "iq4_nl":
            found.append(([IQ4[q] for q in nibbles(b[2:])], half(b, 0), None))
        elif encoding == "q4_k":
            for j in range(8):
                scale, least = k_scale(b[4:16], j)
                packed = b[16 + 32 * (j // 2) :][:32]
                integers = [int(q) >> 4 if j % 2 else int(q) & 15 for q in packed]
                found.append((integers, half(b, 0) * F(scale), -half(b, 2) * F(least)))
        elif encoding == "q2_k":
            for g in range(16):
                packed = b[16 + 32 * (g // 8) + 16 * (g % 2) :][:16]
                integers = [int(q) >> 2 * (g % 8 // 2) & 3 for q in packed]
                scale, least = int(b[g]) & 15, int(b[g]) >> 4
                found.append((integers, half(b, 80) * F(scale), -half(b, 82) * F(least)))
        else:
            ones = b.copy()
            ones[192:208], ones[208:210] = 1, np.array([1], np.float16).view(np.uint8)
            integers = decode("q6_k", ones).astype(int).reshape(16, 16)
            for g, scale in enumerate(b[192:208].view(np.int8)):
                found.append((integers[g].tolist(), half(b, 208) * F(scale), None))
    return found


def one(value: float | F) -> F32:
    return np.array([value], F)


@pytest.mark.parametrize("count", [2, 19])
@pytest.mark.parametrize("encoding", ["q8_0", "q4_0", "q5_1", "iq4_nl", "q4_k", "q2_k", "q6_k"])
def test_bits_of_the_definition(encoding: str, count: int) -> None:
    raw = random_rows(np.random.default_rng(3), encoding, 11, 768)
    x = normal(4, count, 768)
    rounded = natural(quantize_rows(x))
    expected = np.empty((count, 11), np.float32)
    for r, row in enumerate(raw):
        units = units_of(encoding, row)
        size = 768 // len(units)
        for c in range(count):
            result = one(0)
            for u, (integers, scale, shift) in enumerate(units):
                values = rounded.values[c].reshape(-1, size)[u]
                d = rounded.scales[c, u * size // 32]
                dot = int(np.array(integers) @ values)
                result = naive.fma(one(dot), one(scale * d), result)
                if shift is not None:
                    result = naive.fma(one(d * F(values.sum())), one(shift), result)
            expected[c, r] = result[0]
    assert same(multiply(raw, encoding, x), expected)


def test_extreme_integers_are_exact() -> None:
    # -128 * 127 and 127 * 127: what saturates in 16 bits where a level has no 32-bit products
    for value in (-128, 127):
        block = np.zeros(34, np.uint8)
        block[:2] = np.array([1], np.float16).view(np.uint8)
        block[2:] = np.full(32, value, np.int8).view(np.uint8)
        for count in (1, 17):
            for sign in (1, -1):
                x = np.full((count, 32), sign * 127, np.float32)
                assert (multiply(block[None], "q8_0", x) == 32 * value * sign * 127).all()


@settings(deadline=None, max_examples=40)
@given(
    encoding=st.sampled_from(tuple(INTEGERS)),
    rows=st.integers(1, 40),
    blocks=st.integers(1, 3),
    count=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_odd_shapes(encoding: str, rows: int, blocks: int, count: int, seed: int) -> None:
    columns = blocks * BLOCKS[encoding].elements
    raw = random_rows(np.random.default_rng(seed), encoding, rows, columns)
    x = normal(seed, count, columns)
    together = multiply(raw, encoding, x)
    some = sorted({0, count // 2, count - 1})
    alone = np.concatenate([multiply(raw, encoding, x[c : c + 1]) for c in some])
    assert same(np.ascontiguousarray(together[some]), alone)
    last = multiply(raw[-1:], encoding, x)
    assert same(np.ascontiguousarray(together[:, -1:]), last)


@pytest.mark.parametrize("encoding", ["q4_1", "q6_k", "q8_0", "iq4_xs"])
def test_threads_columns_and_rows_change_no_bit(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(5), encoding, 203, 512)
    x = normal(6, 51, 512)
    expected = multiply(raw, encoding, x)
    before = threads()
    try:
        for count in (1, 2, 3, 16):
            set_threads(count)
            assert same(multiply(raw, encoding, x), expected)
            for a, b in ((0, 1), (1, 4), (4, 11), (11, 51)):
                assert same(multiply(raw, encoding, x[a:b]), expected[a:b])
            some = multiply(raw[7:32], encoding, x)
            assert same(some, np.ascontiguousarray(expected[:, 7:32]))
    finally:
        set_threads(before)


@pytest.mark.parametrize("count", [1, 20])
def test_matrices_that_are_multiplied_together_change_no_bit(count: int) -> None:
    x = normal(11, count, 256)
    raws = [
        (encoding, random_rows(np.random.default_rng(12), encoding, rows, 256))
        for encoding, rows in (("q4_1", 37), ("q6_k", 5), ("q8_0", 90), ("q4_1", 1))
    ]
    parts = [
        Part(raw, name, len(raw), 256, np.empty((count, len(raw)), np.float32))
        for name, raw in raws
    ]
    products_q8(parts, quantize_rows(x))
    for part, (name, raw) in zip(parts, raws, strict=True):
        assert same(part.out, multiply(raw, name, x))


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("encoding", ["q4_0", "q4_1", "q6_k"])
def test_nan_is_carried(encoding: str, count: int) -> None:
    vectors = normal(7, count, 256)
    vectors[1, 40] = np.nan
    raw = random_rows(np.random.default_rng(8), encoding, 3, 256)
    out = multiply(raw, encoding, vectors)
    assert np.isnan(out[1]).all() and np.isfinite(np.delete(out, 1, 0)).all()


def test_nothing_to_do() -> None:
    x = quantize_rows(normal(1, 1, 32))
    products_q8([], x)
    none = np.empty((1, 0), np.float32)
    products_q8([Part(np.empty(0, np.uint8), "q8_0", 0, 32, none)], x)


def test_refusals() -> None:
    x = quantize_rows(normal(0, 1, 32))
    out = np.empty((1, 2), np.float32)
    with pytest.raises(ValueError, match="'f16' has no integer products"):
        products_q8([Part(np.zeros(128, np.uint8), "f16", 2, 32, out)], x)
    with pytest.raises(ValueError, match="x must have 64 columns, found 32"):
        products_q8([Part(np.zeros(136, np.uint8), "q8_0", 2, 64, out)], x)
    with pytest.raises(ValueError, match="out must be contiguous"):
        products_q8([Part(np.zeros(68, np.uint8), "q8_0", 2, 32, out[:, :1])], x)
    with pytest.raises(ValueError, match="multiple of 32"):
        quantize_rows(normal(0, 1, 33))
    with pytest.raises(ValueError, match="x must be contiguous"):
        quantize_rows(normal(0, 64, 2).T)


def test_rows_whose_scales_do_not_fit_are_refused() -> None:
    columns = 32 * PREPARED
    assert takes_integers("q4_1", 4096) and not takes_integers("q4_1", columns)
    part = Part(np.zeros(20 * PREPARED, np.uint8), "q4_1", 1, columns, np.empty((1, 1), np.float32))
    with pytest.raises(ValueError, match="too long for integer products"):
        products_q8([part], quantize_rows(np.zeros((1, columns), np.float32)))
