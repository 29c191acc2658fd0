"""Rows that lie interleaved by sixteen: the same bits as the rows that were interleaved."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.embedding import gather
from larql.kernels.encodings import BLOCKS
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.latent import absorb
from larql.kernels.parts import Part
from larql.kernels.product import products
from larql.kernels.product_q8 import products_q8, takes_integers
from larql.kernels.rounding import quantize_rows
from larql.kernels.threads import scratch, set_threads, threads
from tests.kernels import units
from tests.kernels.decode import decode, random_rows
from tests.kernels.same import normal, same
from tests.naive.packed import pack

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
SOURCES = {name: form.source for name, form in INTERLEAVED.items()}


def both(encoding: str, seed: int, rows: int, columns: int, plain: bool) -> tuple[Bytes, Bytes]:
    """The same matrix as plain rows, and interleaved."""
    source = SOURCES[encoding]
    raw = random_rows(np.random.default_rng(seed), source, rows, columns, plain)
    raw = raw.reshape(rows, -1)
    packed = pack(source, [row.tobytes() for row in raw], BLOCKS[source].nbytes)
    return raw, np.frombuffer(packed, np.uint8).reshape(raw.shape)


def multiply(
    raw: Bytes, encoding: str, x: Floats, policy: str = "f32", stored: int | None = None
) -> Floats:
    place, slot = scratch(1 << 20)
    ctypes.memset(place, 255, slot * threads())  # what is not written must not be read
    out = np.full((len(x), len(raw)), 7, np.float32)
    part = Part(raw, encoding, len(raw), x.shape[1], out, stored)
    if policy == "f32":
        products([part], x)
    else:
        products_q8([part], quantize_rows(x))
    return out


@pytest.mark.parametrize("plain", [True, False], ids=["ordinary", "any bytes"])
@pytest.mark.parametrize("encoding", INTERLEAVED)
def test_each_encoding_has_the_bits_of_its_rows(encoding: str, plain: bool) -> None:
    raw, packed = both(encoding, 1, 48, 512, plain)
    weights = np.stack([decode(SOURCES[encoding], row) for row in raw])
    for count in (1, 2, 3, 5, 6, 19, 37):
        x = normal(count, count, 512)
        found = multiply(packed, encoding, x)
        assert same(found, multiply(raw, SOURCES[encoding], x)), count
        if count in (1, 2, 19):
            assert same(found, units.product(encoding, raw, x)), count
        rounded = multiply(packed, encoding, x, "q8")
        assert same(rounded, multiply(raw, SOURCES[encoding], x, "q8")), count
    out, ids = np.empty((4, 512), np.float32), np.array([47, 0, 17, 17], np.int64)
    gather(packed, encoding, 48, 512, ids, 1.0, out)
    assert same(out, weights[ids])


@settings(deadline=None, max_examples=40)
@given(
    encoding=st.sampled_from(tuple(INTERLEAVED)),
    slabs=st.integers(1, 4),
    blocks=st.integers(1, 4),
    count=st.integers(1, 40),
    policy=st.sampled_from(["f32", "q8"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_shapes(encoding: str, slabs: int, blocks: int, count: int, policy: str, seed: int) -> None:
    columns = blocks * BLOCKS[encoding].elements
    raw, packed = both(encoding, seed, 16 * slabs, columns, True)
    x = normal(seed, count, columns)
    expected = multiply(raw, SOURCES[encoding], x, policy)
    assert same(multiply(packed, encoding, x, policy), expected)


@pytest.mark.parametrize("columns", [16, 240, 272, 496])
@pytest.mark.parametrize("encoding", INTERLEAVED)
def test_columns_that_end_inside_a_block(encoding: str, columns: int) -> None:
    raw, packed = both(encoding, 7, 32, 512, True)
    for count in (1, 2, 19):
        x = normal(count, count, columns)
        found = multiply(packed, encoding, x, stored=512)
        assert same(found, multiply(raw, SOURCES[encoding], x, stored=512)), count
        assert same(found, units.product(encoding, raw, x)), count


@pytest.mark.parametrize("policy", ["f32", "q8"])
def test_threads_vectors_and_neighbours_change_no_bit(policy: str) -> None:
    before = threads()
    _, packed = both("q5_k_r16", 2, 320, 512, True)
    other, _ = both("q4_0_r16", 3, 24 * 16, 512, True)
    x = normal(4, 23, 512)
    together = multiply(packed, "q5_k_r16", x, policy)
    try:
        for count in (1, 3):
            set_threads(count)
            for c in (0, 22):
                assert same(multiply(packed, "q5_k_r16", x[c : c + 1], policy), together[c : c + 1])
            parts = [
                Part(packed, "q5_k_r16", 320, 512, np.empty((23, 320), np.float32)),
                Part(other, "q4_0", len(other), 512, np.empty((23, len(other)), np.float32)),
            ]
            if policy == "f32":
                products(parts, x)
            else:
                products_q8(parts, quantize_rows(x))
            assert same(parts[0].out, together)
            assert same(parts[1].out, multiply(other, "q4_0", x, policy))
    finally:
        set_threads(before)


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-130, 1e30])
@pytest.mark.parametrize("encoding", INTERLEAVED)
def test_tiny_and_huge_vectors_have_the_bits_of_plain_rows(encoding: str, size: float) -> None:
    raw, packed = both(encoding, 5, 32, 256, True)
    x = normal(6, 19, 256) * np.float32(size)
    x[1] = np.abs(x[1])
    for count in (1, 2, 19):
        found = multiply(packed, encoding, x[:count])
        assert same(found, multiply(raw, SOURCES[encoding], x[:count])), count
        assert same(found, units.product(encoding, raw, x[:count])), count


@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
@pytest.mark.parametrize("encoding", ["q8_0_r16", "q6_k_r16"])
def test_extreme_weights_and_activations(encoding: str, byte: int) -> None:
    """The least weight times the largest activations: no sum of an integer product wraps."""
    raw, packed = (np.full((16, BLOCKS[encoding].row_bytes(256)), byte, np.uint8) for _ in range(2))
    x = np.where(np.arange(256) % 3 == 0, np.float32(-9), np.float32(9))[None].astype(np.float32)
    for policy in ("f32", "q8"):
        for count in (1, 7):
            many = np.repeat(x, count, 0)
            expected = multiply(raw, SOURCES[encoding], many, policy)
            assert same(multiply(packed, encoding, many, policy), expected)


def test_slabs_are_whole() -> None:
    out = np.empty((1, 24), np.float32)
    part = Part(np.zeros((24, 34), np.uint8), "q8_0_r16", 24, 32, out)
    with pytest.raises(ValueError, match="rows of q8_0_r16 come by 16, found a matrix of 24"):
        products([part], normal(1, 1, 32))
    with pytest.raises(ValueError, match="rows of q8_0_r16 come by 16, found a matrix of 24"):
        products_q8([part], quantize_rows(normal(1, 1, 32)))
    with pytest.raises(ValueError, match="rows of q8_0_r16 come by 16, found a matrix of 24"):
        gather(part.weight, "q8_0_r16", 24, 32, np.zeros(1, np.int64), 1.0, np.empty((1, 32), "f4"))
    q = np.zeros((1, 2, 16), np.float32)
    with pytest.raises(ValueError, match="those of q8_0_r16 lie together"):
        absorb(q, q, part.weight, "q8_0_r16", 32, np.zeros((1, 2, 48), np.float32))
    assert takes_integers("q4_k_r16", 512)
    assert not takes_integers("q4_k_r16", 128)
