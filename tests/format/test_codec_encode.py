"""Encoding: against the scalar twin, independence of batches, error bounds, refusals."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from larql.errors import EncodingError, UnsupportedRefusal
from larql.format.codec import ENCODINGS, decode, encodable_names, encode
from larql.format.quants.blocks import clip_whole
from tests.format.codec_cases import ENCODED_BLOCKS, KINDS, NAMES, rows, same_floats
from tests.naive import codec_encode as naive

SUPER = tuple(name for name in ENCODED_BLOCKS if ENCODINGS[name].block_elements == 256)
SMALL = tuple(name for name in ENCODED_BLOCKS if name not in SUPER)
FLOATS = ("f32", "f16", "bf16")


def twin_rows(name: str, values: np.ndarray) -> np.ndarray:
    enc = ENCODINGS[name]
    stored = [naive.encode_block(name, b) for b in values.reshape(-1, enc.block_elements)]
    return np.frombuffer(b"".join(stored), np.uint8).reshape(len(values), -1)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=30, deadline=None)
@given(values=hnp.arrays(np.float32, (2, 32), elements=st.floats(-6e4, 6e4, width=32)))
def test_small_blocks_equal_scalar_twin(name: str, values: np.ndarray) -> None:
    assert np.array_equal(encode(ENCODINGS[name], values), twin_rows(name, values))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENCODED_BLOCKS)
def test_kinds_of_rows_equal_scalar_twin(name: str, kind: str) -> None:
    values = rows(kind, seed=3, count=1, columns=256)
    assert np.array_equal(encode(ENCODINGS[name], values), twin_rows(name, values))


@pytest.mark.parametrize("name", SUPER)
@settings(max_examples=8, deadline=None)
@given(
    values=hnp.arrays(
        np.float32, (1, 256), elements=st.floats(-1e3, 1e3, width=32), fill=st.just(np.float32(0))
    )
)
def test_super_blocks_equal_scalar_twin(name: str, values: np.ndarray) -> None:
    assert np.array_equal(encode(ENCODINGS[name], values), twin_rows(name, values))


@pytest.mark.parametrize("name", encodable_names())
def test_rows_do_not_depend_on_the_batch(name: str) -> None:
    """Every kind of row together, over several batches, in pairs, and alone."""
    enc = ENCODINGS[name]
    values = np.concatenate([rows(kind, 11, 8, 768) for kind in KINDS])
    whole = encode(enc, values)
    assert whole.shape == (len(values), enc.row_bytes(768))
    assert whole.dtype == np.uint8
    assert values.size > 65536
    assert np.array_equal(whole, np.stack([encode(enc, row) for row in values]))
    pairs = encode(enc, values.reshape(-1, 2, 768))
    assert np.array_equal(whole, pairs.reshape(len(values), -1))
    assert np.array_equal(whole, encode(enc, np.asfortranarray(values)))
    assert np.array_equal(whole[::3], encode(enc, values[::3]))
    before = values.copy()
    encode(enc, values)
    assert np.array_equal(before.view(np.uint32), values.view(np.uint32))


def test_clipping_gives_nan_the_lowest_step() -> None:
    """Converting NaN to an integer is undefined: it must be gone before."""
    values = np.array([np.nan, -9, 9, np.inf, -np.inf, 2], np.float32)
    assert clip_whole(values, -3, 4).tolist() == [-3, -3, 4, 4, -3, 2]


@pytest.mark.parametrize("name", encodable_names())
def test_empty_rows(name: str) -> None:
    enc = ENCODINGS[name]
    assert encode(enc, np.empty((0, 256), np.float32)).shape == (0, enc.row_bytes(256))
    assert encode(enc, np.empty((3, 0), np.float32)).shape == (3, 0)


@pytest.mark.parametrize("name", ENCODED_BLOCKS)
def test_zeros_stay_zero(name: str) -> None:
    enc = ENCODINGS[name]
    for value in (0.0, -0.0):
        zeros = np.full((2, 256), value, np.float32)
        assert not decode(enc, encode(enc, zeros), 256).any()


# --- how far off ----------------------------------------------------------------------------------

HALF_ERROR = 2.0**-11  # relative, of a float16 scale
HALF_STEP = 2.0**-25  # absolute, of a subnormal one


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 1 << 30))
def test_error_of_small_blocks(name: str, kind: str, seed: int) -> None:
    """Half a step, a whole one for the end without mirror image, and what the scale loses."""
    enc = ENCODINGS[name]
    x = rows(kind, seed, 8, 32).astype(np.float64)
    found = decode(enc, encode(enc, x.astype(np.float32)), 32)
    reach = np.abs(x).max(axis=1)
    spread = x.max(axis=1) - x.min(axis=1)
    steps, unit, share, offset = {
        "q8_0": (127, reach / 127, 0.5, 0.0),
        "q4_0": (8, reach / 8, 1.0, 0.0),
        "q5_0": (16, reach / 16, 1.0, 0.0),
        "q4_1": (15, spread / 15, 0.5, 1.0),
        "q5_1": (31, spread / 31, 0.5, 1.0),
    }[name]
    slack = steps * (unit * HALF_ERROR + HALF_STEP) + offset * (reach * HALF_ERROR + HALF_STEP)
    bound = (share * unit + slack) * 1.0001
    assert (np.abs(found - x) <= bound[:, None]).all()


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 1 << 30))
def test_error_of_mxfp4(kind: str, seed: int) -> None:
    """Largest magnitudes lie in [4, 8) scale units; the widest gap is 2, clipping loses below 2."""
    enc = ENCODINGS["mxfp4"]
    x = rows(kind, seed, 8, 32)
    stored = encode(enc, x)
    unit = 2.0 ** (stored[:, :1].astype(np.float64) - 127)
    error = np.abs(decode(enc, stored, 32) - x.astype(np.float64))
    magnitude = np.abs(x) / unit
    assert (magnitude < 8).all()
    assert (error <= np.where(magnitude > 6, 2, np.where(magnitude >= 2, 1, 0.25)) * unit).all()


@pytest.mark.parametrize(("name", "limit"), [("q4_k", 0.074), ("q5_k", 0.037), ("q6_k", 0.0182)])
def test_error_of_super_blocks(name: str, limit: float) -> None:
    """Root mean square over normal rows, as ggml's reference reaches; plain rounding is worse."""
    enc = ENCODINGS[name]
    x = rows("normal", 1, 16, 2048)
    error = decode(enc, encode(enc, x), 2048) - x
    assert np.sqrt(np.mean(error**2) / np.mean(x**2)) < limit


@pytest.mark.parametrize("name", SUPER)
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 1 << 30))
def test_error_of_each_super_block_element(name: str, kind: str, seed: int) -> None:
    """Within the widest sub-block's step, and the last step of scale and min."""
    enc = ENCODINGS[name]
    x = rows(kind, seed, 4, 256).astype(np.float64)
    found = decode(enc, encode(enc, x.astype(np.float32)), 256)
    reach = np.abs(x).max(axis=1, keepdims=True)
    top, coarse = {"q4_k": (15, 63), "q5_k": (31, 63), "q6_k": (32, 128)}[name]
    bound = reach * (2 / top + 1 / coarse) + 2048 * HALF_STEP
    assert (np.abs(found - x) <= bound).all()


# --- floats ---------------------------------------------------------------------------------------


def bf16_by_hand(value: np.float32) -> int:
    bits = int(np.float32(value).view(np.uint32))
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0
    low, high = bits & 0xFFFF, bits >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high & 1))


def f16_by_hand(value: np.float32) -> int:
    if np.isnan(value):
        return 0x7E00
    try:
        return int.from_bytes(struct.pack("<e", float(value)), "little")
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


EDGES = [
    *(0x00000000, 0x80000000, 0x00000001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000),
    *(0x7FC00000, 0xFFC12345, 0x7F800001, 0xFFFFFFFF),  # NaN, signalling too
    *(0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7F8000, 0x7F7F7FFF),  # ties of bf16
    *(0x3F801000, 0x3F803000, 0x3F801001, 0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001),  # f16
]


@settings(max_examples=300, deadline=None)
@given(bits=st.lists(st.integers(0, 0xFFFFFFFF) | st.sampled_from(EDGES), min_size=1, max_size=8))
def test_floats_round_to_nearest_even(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    for name, by_hand in (("bf16", bf16_by_hand), ("f16", f16_by_hand)):
        stored = encode(ENCODINGS[name], values).view("<u2")
        assert stored.tolist() == [by_hand(v) for v in values]
    assert np.array_equal(encode(ENCODINGS["f32"], values).view("<u4"), bits)


def test_floats_at_the_edges() -> None:
    values = np.array(EDGES, np.uint32).view(np.float32)
    for name, by_hand in (("bf16", bf16_by_hand), ("f16", f16_by_hand)):
        stored = encode(ENCODINGS[name], values).view("<u2")
        assert stored.tolist() == [by_hand(v) for v in values]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_sixteen_bit_float_survives(name: str) -> None:
    enc = ENCODINGS[name]
    words = np.arange(65536, dtype="<u2")
    values = decode(enc, words.view(np.uint8), 65536)
    back = encode(enc, values).view("<u2")
    numbers = ~np.isnan(values)
    assert np.array_equal(back[numbers], words[numbers])
    assert set(back[~numbers].tolist()) == {0x7E00 if name == "f16" else 0x7FC0}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ENCODED_BLOCKS)
def test_values_that_are_not_finite_are_refused_by_place(name: str, bad: float) -> None:
    values = np.zeros((400, 256), np.float32)  # row 390 is in the second batch
    values[390, 77] = bad
    values[391, 2] = np.nan
    with pytest.raises(EncodingError) as caught:
        encode(ENCODINGS[name], values)
    message = str(caught.value)
    assert message.startswith(f"{name}: row 390 column 77 is {np.float32(bad)},")
    assert "\n" not in message


@pytest.mark.parametrize("name", FLOATS)
def test_floats_carry_what_is_not_finite(name: str) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)
    assert same_floats(decode(ENCODINGS[name], encode(ENCODINGS[name], values), 4), values)


@pytest.mark.parametrize("big", [3e38, 1e30, 1e20, 1e13, -1e10])
@pytest.mark.parametrize("name", [name for name in ENCODED_BLOCKS if name != "mxfp4"])
def test_values_beyond_the_scale_are_refused_by_block(name: str, big: float) -> None:
    """One element or a whole block; a scale of infinity would decode to NaN."""
    enc = ENCODINGS[name]
    per_row = 512 // enc.block_elements
    for spread in (1, enc.block_elements):
        values = rows("normal", 2, 200, 512)
        values[170, 256 : 256 + spread] = big
        with pytest.raises(EncodingError) as caught:
            encode(enc, values)
        assert str(caught.value).startswith(f"{name}: row 170 block {per_row // 2}: values too")


def test_large_values_fit_mxfp4() -> None:
    enc = ENCODINGS["mxfp4"]
    values = np.full((1, 32), np.finfo(np.float32).max, np.float32)
    values[0, 1] = -(2.0**126)
    found = decode(enc, encode(enc, values), 32)
    assert found[0, 0] == 1.5 * 2.0**127
    assert found[0, 1] == -(2.0**126)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(encodable_names())))
def test_decode_only_encodings_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedRefusal) as caught:
        encode(ENCODINGS[name], np.zeros((1, 256), np.float32))
    assert str(caught.value).startswith(f"{name}: this build reads {name.upper()} but does not")
    assert "q8_0" in str(caught.value)


def test_columns_and_dtype_are_checked() -> None:
    with pytest.raises(EncodingError, match=r"q4_k: 576 columns .* block of 256"):
        encode(ENCODINGS["q4_k"], np.zeros((2, 576), np.float32))
    with pytest.raises(TypeError, match="float32, not float64"):
        encode(ENCODINGS["f32"], np.zeros((2, 4)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not a scalar"):
        encode(ENCODINGS["f32"], np.array(1, np.float32))
