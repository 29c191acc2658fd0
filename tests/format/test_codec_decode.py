"""Decoding: against the scalar twin, over layouts of the input, and what is refused."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.errors import EncodingError
from larql.format.codec import ENCODINGS, decode
from tests.format.codec_cases import BLOCK_NAMES, HALF_AT, NAMES, same_floats, stored_blocks
from tests.naive import codec as naive


@pytest.mark.parametrize("name", BLOCK_NAMES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_equals_scalar_twin(name: str, data: st.DataObject) -> None:
    enc = ENCODINGS[name]
    blocks = data.draw(stored_blocks(name, 2))
    found = decode(enc, blocks.reshape(-1), 2 * enc.block_elements)
    twin = [naive.decode_block(name, block.tobytes(), enc.block_elements) for block in blocks]
    assert found.dtype == np.float32
    assert same_floats(found, np.array(twin, np.float32).reshape(-1))


@pytest.mark.parametrize("name", HALF_AT)
def test_bad_scales_are_carried(name: str) -> None:
    """A NaN or infinite scale must show in the result, never come out as plausible numbers."""
    enc = ENCODINGS[name]
    for word in (0x7E00, 0x7C00, 0xFC00):
        block = np.full(enc.block_bytes, 0x55, np.uint8)
        for at in HALF_AT[name]:
            block[at : at + 2] = (0x00, 0x3C)
        block[HALF_AT[name][0]] = word & 255
        block[HALF_AT[name][0] + 1] = word >> 8
        assert not np.isfinite(decode(enc, block, enc.block_elements)).any()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_sixteen_bit_float(name: str) -> None:
    words = np.arange(65536, dtype="<u2")
    found = decode(ENCODINGS[name], words.view(np.uint8), 65536)
    twin = [naive.decode_element(name, word.tobytes(), 0) for word in words]
    assert same_floats(found, np.array(twin, np.float32))
    assert np.isnan(found).sum() == {"f16": 2 * 1023, "bf16": 2 * 127}[name]
    signs = np.signbit(found)
    assert np.array_equal(signs[~np.isnan(found)], (words >= 32768)[~np.isnan(found)])


def test_f32_keeps_every_bit() -> None:
    words = np.array([0, 1, 0x80000000, 0x7F800001, 0xFFC12345, 0x7F7FFFFF], "<u4")
    found = decode(ENCODINGS["f32"], words.view(np.uint8), 6)
    assert np.array_equal(found.view(np.uint32), words)


def random_rows(name: str, rows: int, columns: int) -> np.ndarray:
    enc = ENCODINGS[name]
    data = np.random.default_rng(5).integers(0, 256, (rows, enc.row_bytes(columns)), np.uint8)
    if name == "mxfp4":
        data[:, ::17] %= 255
    return data


@pytest.mark.parametrize("name", NAMES)
def test_layout_of_the_input_does_not_matter(name: str) -> None:
    enc = ENCODINGS[name]
    data = random_rows(name, 6, 512)
    plain = decode(enc, data, 512)
    assert plain.shape == (6, 512)
    assert plain.flags.c_contiguous

    frozen = data.copy()
    frozen.flags.writeable = False
    assert same_floats(decode(enc, frozen, 512), plain)
    wide = np.zeros((6, data.shape[1] + 3), np.uint8)
    wide[:, 1:-2] = data
    assert same_floats(decode(enc, wide[:, 1:-2], 512), plain)
    assert same_floats(decode(enc, data[::-2], 512), plain[::-2])
    assert same_floats(decode(enc, np.asfortranarray(data), 512), plain)
    backwards = np.ascontiguousarray(data[:, ::-1])
    assert same_floats(decode(enc, backwards[:, ::-1], 512), plain)
    assert same_floats(decode(enc, backwards[2, ::-1], 512), plain[2])
    assert same_floats(decode(enc, data.reshape(2, 3, -1), 512), plain.reshape(2, 3, 512))
    assert same_floats(decode(enc, data[4], 512), plain[4])


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_the_batch(name: str) -> None:
    """230 rows of 768 make several batches with an uneven last one."""
    enc = ENCODINGS[name]
    data = random_rows(name, 230, 768)
    whole = decode(enc, data, 768)
    alone = np.stack([decode(enc, row, 768) for row in data])
    assert same_floats(whole, alone)


@pytest.mark.parametrize("name", NAMES)
def test_empty_rows(name: str) -> None:
    enc = ENCODINGS[name]
    assert decode(enc, np.empty((0, enc.row_bytes(256)), np.uint8), 256).shape == (0, 256)
    assert decode(enc, np.empty((3, 0), np.uint8), 0).shape == (3, 0)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_row_length_is_refused(name: str) -> None:
    enc = ENCODINGS[name]
    expected = enc.row_bytes(256)
    for length in (expected - 1, expected + 1, 0, 2 * expected):
        with pytest.raises(EncodingError) as caught:
            decode(enc, np.zeros((4, length), np.uint8), 256)
        message = str(caught.value)
        assert message.startswith(f"{name}: a row has {length} bytes, expected {expected} ")
        assert "256 columns" in message


def test_columns_and_dtype_are_checked() -> None:
    enc = ENCODINGS["q4_k"]
    with pytest.raises(EncodingError, match=r"q4_k: 576 columns .* block of 256"):
        decode(enc, np.zeros((1, 324), np.uint8), 576)
    with pytest.raises(TypeError, match="uint8, not int8"):
        decode(enc, np.zeros(144, np.int8), 256)
    with pytest.raises(EncodingError, match="0 bytes, expected 144"):
        decode(enc, np.array(0, np.uint8), 256)


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "mxfp4", "q5_1_r16", "q6_k_r16"])
def test_working_memory_is_small(name: str) -> None:
    data = random_rows(name, 512, 8192)
    tracemalloc.start()
    try:
        out = decode(ENCODINGS[name], data, 8192)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - out.nbytes < 2 << 20


# Blocks small enough to work out by hand: d = 0.5 is 0x3800, m = -1 is 0xbc00.
HAND = {
    "q8_0": ("0038" + "00017f80" + "00" * 28, {0: 0.0, 1: 0.5, 2: 63.5, 3: -64.0, 31: 0.0}),
    "q4_0": ("0038" + "21" + "f0" * 15, {0: -3.5, 16: -3.0, 1: -4.0, 17: 3.5}),
    "q4_1": ("0038" + "00bc" + "21" + "f0" * 15, {0: -0.5, 16: 0.0, 1: -1.0, 17: 6.5}),
    "q5_0": ("0038" + "01000280" + "21" + "f0" * 15, {0: 0.5, 16: -7.0, 17: 7.5, 31: 7.5}),
    "q5_1": ("0038" + "00bc" + "01000280" + "21" + "f0" * 15, {0: 7.5, 16: 0.0, 17: 14.5, 1: -1.0}),
    "iq4_nl": ("0038" + "80" + "7f" * 15, {0: -63.5, 16: 0.5, 1: 56.5, 17: -5.0}),
}


@pytest.mark.parametrize("name", HAND)
def test_by_hand(name: str) -> None:
    text, expected = HAND[name]
    found = decode(ENCODINGS[name], np.frombuffer(bytes.fromhex(text), np.uint8), 32)
    assert {i: float(found[i]) for i in expected} == expected
