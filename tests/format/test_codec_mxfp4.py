"""MXFP4: element values, scales, and the two orders of its nibbles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from larql.errors import EncodingError
from larql.format.codec import (
    ENCODINGS,
    decode,
    decode_mxfp4_checkpoint,
    repack_mxfp4_checkpoint,
)

MXFP4 = ENCODINGS["mxfp4"]
VALUES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def gguf_block(scale: int, *nibble_bytes: int) -> np.ndarray:
    return np.array([scale, *nibble_bytes], np.uint8)


def test_bytes_0x21_in_both_orders() -> None:
    nibbles = np.full((1, 16), 0x21, np.uint8)
    gguf = decode(MXFP4, gguf_block(127, *nibbles[0]), 32)
    assert gguf.tolist() == [0.5] * 16 + [1.0] * 16
    checkpoint = decode_mxfp4_checkpoint(nibbles, np.array([127], np.uint8))
    assert checkpoint.tolist() == [0.5, 1.0] * 16


@pytest.mark.parametrize("scale", [0, 1, 2, 126, 127, 128, 252])
def test_scale_is_a_power_of_two(scale: int) -> None:
    found = decode(MXFP4, gguf_block(scale, *([0x21] * 16)), 32).astype(np.float64)
    assert found[0] == 0.5 * 2.0 ** (scale - 127)
    assert found[31] == 2.0 ** (scale - 127)


def test_largest_scales_overflow_to_infinity_as_float32_does() -> None:
    found = decode(MXFP4, gguf_block(254, *([0x72] * 16)), 32)  # 1 and 6 times 2 ** 127
    assert found[0] == 2.0**127
    assert found[16] == np.inf


def test_every_code() -> None:
    codes = range(16)
    block = gguf_block(127, *(low | (15 - low) << 4 for low in codes))
    found = decode(MXFP4, block, 32)
    assert found.tolist() == VALUES + VALUES[::-1]
    assert not np.signbit(found[8]), "the code of negative zero is zero, as in ggml"


@pytest.mark.parametrize("row", [0, 3, 70])
def test_scale_255_is_refused_by_block(row: int) -> None:
    """Row 70 of 40 blocks lies beyond the first batch."""
    nibbles = np.zeros((80, 40, 16), np.uint8)
    scales = np.full((80, 40), 127, np.uint8)
    stored = repack_mxfp4_checkpoint(nibbles, scales)
    scales[row, 7] = scales[row, 9] = 255
    stored[row, 7 * 17] = stored[row, 9 * 17] = 255
    for attempt in (
        lambda: decode(MXFP4, stored, 1280),
        lambda: decode_mxfp4_checkpoint(nibbles, scales),
        lambda: repack_mxfp4_checkpoint(nibbles, scales),
    ):
        with pytest.raises(EncodingError) as caught:
            attempt()
        message = str(caught.value)
        assert message.startswith(f"mxfp4: row {row} block 7: its scale byte is 255")
        assert "\n" not in message


@settings(max_examples=50, deadline=None)
@given(
    nibbles=hnp.arrays(np.uint8, (2, 3, 16)),
    scales=hnp.arrays(np.uint8, (2, 3), elements=st.integers(0, 254)),
)
def test_repacking_loses_nothing(nibbles: np.ndarray, scales: np.ndarray) -> None:
    """Every nibble, element by element, lands where GGUF keeps that element."""
    stored = repack_mxfp4_checkpoint(nibbles, scales)
    assert stored.shape == (2, 51)
    blocks = stored.reshape(2, 3, 17)
    assert np.array_equal(blocks[..., 0], scales)
    for element in range(32):
        before = nibbles[..., element // 2] >> (4 if element % 2 else 0) & 15
        after = blocks[..., 1 + element % 16] >> (4 if element >= 16 else 0) & 15
        assert np.array_equal(before, after)
    decoded = decode_mxfp4_checkpoint(nibbles, scales)
    assert np.array_equal(decoded, decode(MXFP4, stored, 96))


def test_expert_tensors_keep_their_leading_axes() -> None:
    rng = np.random.default_rng(0)
    nibbles = rng.integers(0, 256, (2, 5, 3, 16), np.uint8)
    scales = rng.integers(100, 140, (2, 5, 3), np.uint8)
    whole = repack_mxfp4_checkpoint(nibbles, scales)
    assert whole.shape == (2, 5, 51)
    assert np.array_equal(whole[1, 2], repack_mxfp4_checkpoint(nibbles[1, 2], scales[1, 2]))
    assert decode_mxfp4_checkpoint(nibbles, scales).shape == (2, 5, 96)
    strided = repack_mxfp4_checkpoint(nibbles[:, ::2], scales[:, ::2])
    assert np.array_equal(strided, whole[:, ::2])
    nibbles.flags.writeable = scales.flags.writeable = False
    assert np.array_equal(whole, repack_mxfp4_checkpoint(nibbles, scales))


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [((2, 3, 16), (2, 4)), ((2, 3, 8), (2, 3)), ((3, 16), (2, 3)), ((16,), ()), ((6, 16), (2, 3))],
)
def test_shapes_that_do_not_belong_together_are_refused(
    blocks: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    with pytest.raises(EncodingError, match="mxfp4: blocks have shape"):
        repack_mxfp4_checkpoint(np.zeros(blocks, np.uint8), np.zeros(scales, np.uint8))


def test_checkpoint_dtypes_are_checked() -> None:
    with pytest.raises(TypeError, match="uint8, not int8"):
        repack_mxfp4_checkpoint(np.zeros((1, 16), np.int8), np.zeros(1, np.uint8))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="and int8"):
        repack_mxfp4_checkpoint(np.zeros((1, 16), np.uint8), np.zeros(1, np.int8))  # type: ignore[arg-type]
