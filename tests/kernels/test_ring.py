"""Keys and values written into blocks: against the NumPy twin, and rounded as NumPy rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels.ring import Stored, empty_keys, empty_values, write_rows
from larql.kernels.threads import set_threads, threads
from tests.kernels.same import normal
from tests.naive import kernels as naive

KINDS = ("f32", "f16")


def same_stored(a: Stored, b: Stored) -> bool:
    """Whether all numbers have equal bits; a NaN equals any NaN."""
    assert a.shape == b.shape and a.dtype == b.dtype
    return bool(a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes()) and bool(
        (np.isnan(a) == np.isnan(b)).all()
    )


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS), heads=st.integers(1, 3), dims=st.sampled_from([1, 15, 16, 33]),
    value_dims=st.sampled_from([1, 16, 20, 64]), blocks=st.integers(1, 3),
    counts=st.lists(st.integers(1, 192), min_size=1, max_size=5), start=st.integers(0, 1000),
)  # fmt: skip
def test_rows_stand_where_the_twin_puts_them(
    kind: str, heads: int, dims: int, value_dims: int, blocks: int, counts: list[int], start: int
) -> None:
    keys, values = (
        empty_keys(blocks, heads, dims, kind),
        empty_values(blocks, heads, value_dims, kind),
    )
    expected = keys.copy(), values.copy()
    for seed, count in enumerate(min(count, 64 * blocks) for count in counts):
        rows = normal(seed, count, heads, dims), normal(seed + 9, count, heads, value_dims)
        write_rows(*rows, keys, values, start)
        naive.keep(*rows, *expected, start)
        start += count
        assert (keys == expected[0]).all()
        assert (values == expected[1]).all()


def edges() -> np.ndarray:  # type: ignore[type-arg]
    """Every half and the float32 numbers around it and around the middle to the next one."""
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float32)
    ends = np.nextafter(np.float32(65504), np.float32(np.inf)), np.float32(65520)
    centres = [halves, (halves[:-1] + halves[1:]) / 2, np.array(ends, np.float32)]
    found = np.concatenate(centres)
    found = np.concatenate(
        [np.nextafter(found, np.float32(side)) for side in (-1, np.inf)] + centres
    )
    return np.concatenate([found, -found])


@pytest.mark.parametrize("source", ["edges", "random bits"])
def test_rounding_is_that_of_ieee_754(source: str) -> None:
    if source == "edges":
        numbers = edges()
    else:
        words = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, np.uint32)
        # As many again with exponents in the range of binary16, where rounding is not trivial.
        near = (words & 0x8FFFFFFF) | np.uint32(0x30000000)
        numbers = np.concatenate([words, near]).view(np.float32)
    width = 80
    numbers = np.resize(numbers, (-(-numbers.size // (64 * width)) * 64, 1, width))
    keys, values = empty_keys(len(numbers) // 64, 1, width, "f16"), None
    values = empty_values(len(numbers) // 64, 1, width, "f16")
    write_rows(numbers, numbers, keys, values, 0)
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float16)
    assert np.isinf(expected).any()
    assert (expected[np.isfinite(expected)] != 0).any()
    assert same_stored(
        np.ascontiguousarray(keys.transpose(0, 3, 1, 2).reshape(expected.shape)), expected
    )
    assert same_stored(
        np.ascontiguousarray(values.transpose(0, 2, 1, 3).reshape(expected.shape)), expected
    )


def test_threads_change_nothing() -> None:
    rows = normal(1, 300, 2, 24), normal(2, 300, 2, 24)
    before = threads()
    found = set()
    try:
        for count in (1, 2, 5):
            set_threads(count)
            keys, values = empty_keys(6, 2, 24, "f16"), empty_values(6, 2, 24, "f16")
            write_rows(*rows, keys, values, 40)
            found.add(keys.tobytes() + values.tobytes())
    finally:
        set_threads(before)
    assert len(found) == 1


def test_rows_that_do_not_fit() -> None:
    keys, values = empty_keys(1, 2, 3, "f32"), empty_values(1, 2, 5, "f32")
    k, v = normal(0, 4, 2, 3), normal(0, 4, 2, 5)
    write_rows(k, v, keys, values, 0)
    for new_keys, new_values, kept_keys, kept_values, start in (
        (normal(0, 65, 2, 3), normal(0, 65, 2, 5), keys, values, 0),
        (k, v, keys, values, -1),
        (k[:, :1], v[:, :1], keys, values, 0),
        (k, v[:3], keys, values, 0),
        (normal(0, 4, 2, 2), v, keys, values, 0),
        (k, v, keys, empty_values(1, 2, 17, "f32"), 0),
        (k, v, keys, empty_values(2, 2, 5, "f32"), 0),
        (k, v, keys, empty_values(1, 2, 5, "f16"), 0),
        (k, v, keys.astype(float), values.astype(float), 0),
        (k, v, np.zeros((1, 2, 64, 3), np.float32).swapaxes(2, 3), values, 0),
        (k, v, keys, np.zeros((1, 2, 16, 64), np.float32).swapaxes(2, 3), 0),
        (k.astype(float), v, keys, values, 0),
        (k, normal(0, 4, 2, 10)[:, :, ::2], keys, values, 0),
    ):
        with pytest.raises(ValueError, match=r"do not fit|contiguous"):
            write_rows(new_keys, new_values, kept_keys, kept_values, start)  # type: ignore[arg-type]
