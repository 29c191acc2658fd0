"""Norms, rotations, embedding rows and elementwise sums against their naive twins, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.elementwise import add_scaled, scale, softcap
from larql.kernels.embedding import gather
from larql.kernels.encodings import BLOCKS
from larql.kernels.norm import layer_norm, rms_norm
from larql.kernels.rope import inverse_frequencies, rotate, rotation_table
from tests.kernels.decode import decode, random_rows
from tests.kernels.same import normal, same
from tests.naive import kernels as naive

widths = st.one_of(st.integers(1, 70), st.sampled_from([576, 640]))


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 9), width=widths, seed=st.integers(0, 999), offset=st.sampled_from([0, 1])
)
def test_rms_norm(rows: int, width: int, seed: int, offset: float) -> None:
    x, weight, out = (
        normal(seed, rows, width),
        normal(seed + 1, width),
        np.empty((rows, width), "f4"),
    )
    rms_norm(x, weight, offset, 1e-5, out)
    assert same(out, naive.rms_norm(x, weight, offset, 1e-5))
    rms_norm(x, None, 0.0, 1e-6, out)
    assert same(out, naive.rms_norm(x, None, 0.0, 1e-6))
    rms_norm(x, None, 0.0, 1e-6, x)
    assert same(out, x)


@settings(deadline=None, max_examples=50)
@given(rows=st.integers(1, 9), width=widths, seed=st.integers(0, 999))
def test_layer_norm(rows: int, width: int, seed: int) -> None:
    x, out = normal(seed, rows, width), np.empty((rows, width), np.float32)
    weight, bias = normal(seed + 1, width), normal(seed + 2, width)
    for w, b in ((weight, bias), (weight, None), (None, None), (None, bias)):
        layer_norm(x, w, b, 0.5, 1e-5, out)
        assert same(out, naive.layer_norm(x, w, b, 0.5, 1e-5))


def test_norm_carries_nan_in_its_row_alone() -> None:
    x = normal(0, 3, 40)
    x[1, 39] = np.nan
    out, other = np.empty_like(x), np.empty_like(x)
    rms_norm(x, None, 0, 0, out)
    layer_norm(x, None, None, 0, 0, other)
    for found in (out, other):
        assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_norm_refuses_what_does_not_fit() -> None:
    x = normal(0, 2, 8)
    with pytest.raises(ValueError, match="weight must be contiguous float32 \\(8,\\)"):
        rms_norm(x, normal(0, 7), 0, 0, x)
    with pytest.raises(ValueError, match="bias must be contiguous"):
        layer_norm(x, None, np.zeros(8), 0, 0, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must be contiguous"):
        rms_norm(x.T, None, 0, 0, np.empty((8, 2), np.float32))


def test_a_mapped_weight_may_be_unaligned() -> None:
    x, weight = normal(0, 2, 8), normal(1, 8)
    shifted = np.zeros(33, np.uint8)[1:].view(np.float32)
    shifted[:] = weight
    shifted.flags.writeable = False
    out, other = np.empty_like(x), np.empty_like(x)
    rms_norm(x, weight, 1, 1e-5, out)
    rms_norm(x, shifted, 1, 1e-5, other)
    assert same(out, other)


@pytest.mark.parametrize("theta", [1e4, 1e6, 5e5, 10007.5])
def test_frequencies_are_the_powers(theta: float) -> None:
    found = inverse_frequencies(theta, 128)
    assert found[0] == 1.0
    np.testing.assert_allclose(found, theta ** (-np.arange(64) / 64), rtol=4e-16)


@pytest.mark.parametrize("start", [0, 511, 131072, 4_000_003])
def test_tables_are_cos_and_sin(start: int) -> None:
    frequencies = inverse_frequencies(1e4, 64)
    cos, sin = np.empty((70, 32), np.float32), np.empty((70, 32), np.float32)
    rotation_table(frequencies, start, 70, cos, sin)
    angles = (np.arange(start, start + 70)[:, None] * frequencies).astype(np.longdouble)
    assert np.abs(cos - np.cos(angles)).max() <= 2.0**-25 + 1e-12
    assert np.abs(sin - np.sin(angles)).max() <= 2.0**-25 + 1e-12
    one, other = np.empty((1, 32), np.float32), np.empty((1, 32), np.float32)
    rotation_table(frequencies, start + 69, 1, one, other)
    assert same(one, cos[69:]) and same(other, sin[69:])


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(1, 5), heads=st.integers(1, 3), pairs=st.integers(1, 9),
    rest=st.integers(0, 3), layout=st.sampled_from(["half", "adjacent"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_rotate(count: int, heads: int, pairs: int, rest: int, layout: str, seed: int) -> None:
    x = normal(seed, count, heads, 2 * pairs + rest)
    cos, sin = normal(seed + 1, count, pairs), normal(seed + 2, count, pairs)
    expected = naive.rotate(x, cos, sin, layout)
    rotate(x, cos, sin, layout)
    assert same(x, expected)


def test_rope_refusals() -> None:
    x, table = normal(0, 2, 1, 8), normal(0, 2, 4)
    with pytest.raises(ValueError, match="layout must be"):
        rotate(x, table, table, "interleaved")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a head of 8 has no 5 pairs"):
        rotate(x, normal(0, 2, 5), normal(0, 2, 5), "half")
    with pytest.raises(ValueError, match="sin must be contiguous"):
        rotate(x, table, table[:1], "half")
    with pytest.raises(ValueError, match="even"):
        inverse_frequencies(1e4, 7)
    with pytest.raises(ValueError, match="positive and finite"):
        inverse_frequencies(0.0, 8)


@pytest.mark.parametrize("encoding", [name for name in BLOCKS if BLOCKS[name].together == 1])
def test_gather_decodes_exactly(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(1), encoding, 9, 256, False)
    ids = np.array([8, 0, 3, 3], np.int64)
    out = np.empty((4, 256), np.float32)
    expected = np.stack([decode(encoding, raw[i]) for i in ids])
    gather(raw, encoding, 9, 256, ids, 1.0, out)
    assert same(out, expected)
    with np.errstate(all="ignore"):
        gather(raw, encoding, 9, 256, ids, 25.3, out)
        assert same(out, expected * np.float32(25.3))


@pytest.mark.parametrize("columns", [1, 15, 16, 33])
def test_gather_of_odd_rows(columns: int) -> None:
    raw = random_rows(np.random.default_rng(2), "f16", 5, columns)
    out = np.empty((2, columns), np.float32)
    gather(raw.reshape(-1), "f16", 5, columns, np.array([4, 1]), 2.0, out)
    assert same(out, np.stack([decode("f16", raw[i]) for i in (4, 1)]) * np.float32(2))


def test_gather_refuses_ids_that_are_no_rows() -> None:
    raw, out = np.zeros(4 * 34, np.uint8), np.empty((1, 32), np.float32)
    for wrong in (4, -1):
        with pytest.raises(ValueError, match=f"ids must be 0..3, found {wrong}"):
            gather(raw, "q8_0", 4, 32, np.array([wrong]), 1.0, out)
    with pytest.raises(ValueError, match="int64 vector"):
        gather(raw, "q8_0", 4, 32, np.array([1], np.int32), 1.0, out)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 16, 40000])
def test_elementwise(size: int) -> None:
    x, delta = normal(1, size), normal(2, size)
    expected = naive.fma(delta, np.full_like(x, 0.3), x)
    add_scaled(x, delta, 0.3)
    assert same(x, expected)
    scale(x, 1.7)
    assert same(x, expected * np.float32(1.7))
    before = x.copy()
    softcap(x, 2.0)
    np.testing.assert_allclose(x, 2 * np.tanh(before.astype(float) / 2), rtol=4e-7)


def test_elementwise_refusals() -> None:
    x = normal(0, 2, 3)
    with pytest.raises(ValueError, match="delta must be contiguous float32"):
        add_scaled(x, x[:1], 1.0)
    with pytest.raises(ValueError, match="x must be contiguous float32"):
        scale(x[:, ::2], 1.0)
    with pytest.raises(ValueError, match="positive"):
        softcap(x, 0.0)
