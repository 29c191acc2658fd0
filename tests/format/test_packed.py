"""Packed rows: a bijection of the stored bytes that decodes to the same bits."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.errors import EncodingError, UnsupportedRefusal
from larql.format.codec import (
    ENCODINGS,
    decode,
    encodable_names,
    encode,
    pack,
    packed_form,
    take_rows,
    unpack,
)
from tests.format.codec_cases import NAMES, PACKED_NAMES, same_floats, stored_blocks
from tests.naive import packed as naive

# SHA-256 of the packed bytes of ``numbered`` rows: 32 rows of two blocks.
GOLDEN = {
    "q8_0_r16": "dc7160d7945d170f09f38f66fa8ede9323df8e90358a20e7a680711b05731d19",
    "q4_0_r16": "190d09360ec80d501eea4e2f31d4cd22a739f08525d021418d068fadf3f49023",
    "q4_1_r16": "56b573bc189d8daeeca2aceb90d165d6f31a5810c3eb3a01d56383ee405adcdb",
    "q5_0_r16": "34ac56f03225b726b368c854c7de40a0767c13c09ff86b6c303c503df6370366",
    "q5_1_r16": "4b7500e5f50ea5c5f8f69305f7b88982aef81deff95f7c2a894efa1a48044d82",
    "q4_k_r16": "86dc674fbbaea48240bf55bcced3ee82e1317817d9a916eb84653d3a1f40513f",
    "q5_k_r16": "dc67a7096c0ca508d806c70f3fc663b7b325472415631a50a32bfa5e2d6a482a",
    "q6_k_r16": "533d3ac15d74b1a6f62adf87ddd643fd65d425171015610f2abe64bf7b07b5ca",
}


def numbered(name: str) -> npt.NDArray[np.uint8]:
    """Rows whose every byte follows from its place, so that a misplaced one shows."""
    enc = ENCODINGS[name]
    at = np.arange(32 * enc.row_bytes(2 * enc.block_elements), dtype=np.uint64)
    mixed = (at * 2654435761 + 97) >> 5
    return mixed.astype(np.uint8).reshape(32, -1)


def random_rows(name: str, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    shape = (rows, ENCODINGS[name].row_bytes(columns))
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def test_the_table() -> None:
    assert tuple(f"{name}_r16" for name in naive.LAYOUTS) == PACKED_NAMES
    for name in PACKED_NAMES:
        enc = ENCODINGS[name]
        rows = ENCODINGS[name.removesuffix("_r16")]
        assert (enc.unpacked, enc.slab_rows, rows.slab_rows) == (rows.name, 16, 1)
        assert (enc.block_elements, enc.block_bytes) == (rows.block_elements, rows.block_bytes)
        assert enc.nbytes((48, 512)) == rows.nbytes((48, 512))
        assert packed_form(rows) is enc
        assert (enc.ggml_type, enc.safetensors_dtype) == (None, "U8")
        assert name not in encodable_names()
    assert not [
        name for name in NAMES if name not in naive.LAYOUTS and packed_form(ENCODINGS[name])
    ]


@pytest.mark.parametrize("name", PACKED_NAMES)
def test_exact_bytes(name: str) -> None:
    enc = ENCODINGS[name]
    packed = pack(enc, numbered(name), 2 * enc.block_elements)
    assert hashlib.sha256(packed.tobytes()).hexdigest() == GOLDEN[name]


@pytest.mark.parametrize("name", PACKED_NAMES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_packing_is_a_bijection(name: str, data: st.DataObject) -> None:
    enc = ENCODINGS[name]
    assert enc.unpacked is not None
    # Two slabs or three block columns; of large blocks no more than hypothesis draws at once.
    small = enc.block_elements < 256
    slabs, columns = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 3)] if small else [(1, 1)]))
    blocks = data.draw(stored_blocks(enc.unpacked, 16 * slabs * columns))
    rows = blocks.reshape(16 * slabs, -1)
    elements = columns * enc.block_elements
    packed = pack(enc, rows, elements)
    assert packed.shape == rows.shape
    twin = naive.pack(enc.unpacked, [row.tobytes() for row in rows], enc.block_bytes)
    assert packed.tobytes() == twin
    assert np.array_equal(unpack(enc, packed, elements), rows)
    assert np.array_equal(pack(enc, unpack(enc, rows, elements), elements), rows)
    plain = decode(ENCODINGS[enc.unpacked], rows, elements)
    assert same_floats(decode(enc, packed, elements), plain)
    ids = np.array(data.draw(st.lists(st.integers(0, 16 * slabs - 1), max_size=5)), np.int64)
    found, taken = take_rows(enc, packed, elements, ids)
    assert found is ENCODINGS[enc.unpacked]
    assert np.array_equal(taken, rows[ids])


@pytest.mark.parametrize("name", PACKED_NAMES)
def test_numbers_come_back(name: str) -> None:
    """Through the encoder, so that scales are such as occur."""
    enc = ENCODINGS[name]
    assert enc.unpacked is not None
    rows = ENCODINGS[enc.unpacked]
    values = np.random.default_rng(1).standard_normal((16, 512)).astype(np.float32)
    stored = encode(rows, values)
    found = decode(enc, pack(enc, stored, 512), 512)
    assert found.tobytes() == decode(rows, stored, 512).tobytes()


@pytest.mark.parametrize("name", PACKED_NAMES)
def test_slabs_do_not_depend_on_the_batch_or_layout(name: str) -> None:
    """208 rows of 768 make several batches; slabs are the same alone."""
    enc = ENCODINGS[name]
    assert enc.unpacked is not None
    rows = random_rows(name, 208, 768)
    packed = pack(enc, rows, 768)
    alone = [pack(enc, rows[at : at + 16], 768) for at in range(0, 208, 16)]
    assert np.array_equal(packed, np.concatenate(alone))
    plain = decode(ENCODINGS[enc.unpacked], rows, 768)
    assert same_floats(decode(enc, packed, 768), plain)
    assert same_floats(decode(enc, packed.reshape(13, 16, -1), 768), plain.reshape(13, 16, 768))
    assert same_floats(decode(enc, np.asfortranarray(packed), 768), plain)
    assert np.array_equal(pack(enc, np.asfortranarray(rows), 768), packed)
    assert np.array_equal(take_rows(enc, packed, 768, slice(30, 35))[1], rows[30:35])
    frozen = packed.copy()
    frozen.flags.writeable = False
    assert np.array_equal(unpack(enc, frozen, 768), rows)


@pytest.mark.parametrize("name", PACKED_NAMES)
def test_nothing_is_nothing(name: str) -> None:
    enc = ENCODINGS[name]
    for shape, columns in (((0, enc.row_bytes(256)), 256), ((32, 0), 0)):
        empty = np.empty(shape, np.uint8)
        assert pack(enc, empty, columns).shape == shape
        assert unpack(enc, empty, columns).shape == shape
        assert decode(enc, empty, columns).shape == (shape[0], columns)


@pytest.mark.parametrize("name", PACKED_NAMES)
def test_cut_slabs_are_refused(name: str) -> None:
    enc = ENCODINGS[name]
    said = f"{name}: 24 rows are not a multiple of its slab of 16 rows; use {enc.unpacked}"
    data = random_rows(name, 24, 256)
    ids = np.array([1])
    for refuse in (
        lambda: pack(enc, data, 256),
        lambda: unpack(enc, data, 256),
        lambda: decode(enc, data, 256),
        lambda: take_rows(enc, data, 256, ids),
        lambda: enc.nbytes((24, 256)),
    ):
        with pytest.raises(EncodingError) as caught:
            refuse()
        assert str(caught.value) == said
    with pytest.raises(EncodingError, match="1 rows are not a multiple"):
        decode(enc, data[0], 256)
    with pytest.raises(EncodingError, match="1 rows are not a multiple"):
        enc.nbytes((256,))


def test_other_refusals() -> None:
    enc, rows = ENCODINGS["q4_k_r16"], random_rows("q4_k", 16, 256)
    with pytest.raises(EncodingError, match="a row has 144 bytes, expected 288 for 512 columns"):
        pack(enc, rows, 512)
    with pytest.raises(EncodingError, match="q4_k: its rows are not packed"):
        pack(ENCODINGS["q4_k"], rows, 256)
    with pytest.raises(EncodingError, match="q4_k: its rows are not packed"):
        unpack(ENCODINGS["q4_k"], rows, 256)
    with pytest.raises(TypeError, match="uint8, not int8"):
        pack(enc, rows.view(np.int8), 256)
    with pytest.raises(UnsupportedRefusal, match="Q4_K_R16 but does not write it"):
        encode(enc, np.zeros((16, 256), np.float32))
