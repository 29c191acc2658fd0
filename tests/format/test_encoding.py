"""Geometry of encodings: sizes, names, refusals, and no NumPy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from larql.errors import EncodingError, UnsupportedRefusal
from larql.format.encoding import (
    ENCODINGS,
    Encoding,
    encodable_names,
    encoding,
    from_ggml_type,
)

# name, elements, bytes, ggml type, safetensors dtype, bits per weight
TABLE = [
    ("f32", 1, 4, 0, "F32", 32.0),
    ("f16", 1, 2, 1, "F16", 16.0),
    ("bf16", 1, 2, 30, "BF16", 16.0),
    ("q8_0", 32, 34, 8, "U8", 8.5),
    ("q4_0", 32, 18, 2, "U8", 4.5),
    ("q4_1", 32, 20, 3, "U8", 5.0),
    ("q5_0", 32, 22, 6, "U8", 5.5),
    ("q5_1", 32, 24, 7, "U8", 6.0),
    ("q2_k", 256, 84, 10, "U8", 2.625),
    ("q3_k", 256, 110, 11, "U8", 3.4375),
    ("q4_k", 256, 144, 12, "U8", 4.5),
    ("q5_k", 256, 176, 13, "U8", 5.5),
    ("q6_k", 256, 210, 14, "U8", 6.5625),
    ("iq4_nl", 32, 18, 20, "U8", 4.5),
    ("iq4_xs", 256, 136, 23, "U8", 4.25),
    ("mxfp4", 32, 17, 39, "U8", 4.25),
]
DECODE_ONLY = {"q2_k", "q3_k", "iq4_nl", "iq4_xs"}
REFUSED = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
    42: "Q2_0",
}
REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_table(row: tuple[str, int, int, int, str, float]) -> None:
    name, elements, stored, code, dtype, bits = row
    enc = encoding(name)
    assert enc == Encoding(name, elements, stored, code, dtype, name not in DECODE_ONLY)
    assert enc is ENCODINGS[name]
    assert enc is from_ggml_type(code, "m.gguf: t")
    assert enc.bits_per_weight == bits
    assert enc.is_block is (elements > 1)
    assert enc.row_bytes(3 * elements) == 3 * stored
    assert enc.nbytes((5, 7, 2 * elements)) == 70 * stored


def test_table_is_whole_and_fixed() -> None:
    by_rows = [name for name, enc in ENCODINGS.items() if enc.unpacked is None]
    assert [row[0] for row in TABLE] == by_rows
    assert set(by_rows) - set(encodable_names()) == DECODE_ONLY
    with pytest.raises(TypeError):
        ENCODINGS["f32"] = ENCODINGS["f16"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ENCODINGS["f32"].block_bytes = 8  # type: ignore[misc]


def test_row_and_shape_edges() -> None:
    q8_0, f32 = encoding("q8_0"), encoding("f32")
    assert q8_0.row_bytes(0) == 0
    assert f32.nbytes(()) == 4
    assert f32.nbytes((0, 8)) == 0
    assert q8_0.nbytes((1 << 40, 1 << 30)) == (1 << 70) // 32 * 34
    with pytest.raises(EncodingError, match="negative axis"):
        f32.nbytes((-2, -8))
    with pytest.raises(EncodingError, match="-8 columns"):
        f32.row_bytes(-8)
    with pytest.raises(EncodingError, match="1 columns are not a multiple"):
        q8_0.nbytes(())


@pytest.mark.parametrize("name", [row[0] for row in TABLE if row[1] > 1])
def test_columns_that_are_not_whole_blocks_are_refused(name: str) -> None:
    enc = encoding(name)
    for columns in (1, enc.block_elements - 1, enc.block_elements + 1):
        with pytest.raises(EncodingError) as caught:
            enc.row_bytes(columns)
        message = str(caught.value)
        assert message.startswith(f"{name}: {columns} columns")
        assert f"block of {enc.block_elements} elements" in message
        assert "\n" not in message


def test_unknown_names_are_refused() -> None:
    for name in ("q9_9", "Q8_0", "iq2_xxs", ""):
        with pytest.raises(EncodingError, match="not known to this build") as caught:
            encoding(name)
        assert repr(name) in str(caught.value)
        assert "q8_0" in str(caught.value)


def test_every_ggml_type_is_read_or_refused_by_name() -> None:
    read = {row[3] for row in TABLE}
    assert read | set(REFUSED) | set(REMOVED) == set(range(43))
    for code, name in REFUSED.items():
        with pytest.raises(UnsupportedRefusal) as caught:
            from_ggml_type(code, "m.gguf: blk.0.ffn_up.weight")
        message = str(caught.value)
        assert message.startswith("m.gguf: blk.0.ffn_up.weight: ")
        assert f"encoding {name} (ggml type {code}) has no decoder" in message
        assert "IQ4_XS, MXFP4; get or make" in message
        assert "\n" not in message
    for code, name in REMOVED.items():
        with pytest.raises(UnsupportedRefusal) as caught:
            from_ggml_type(code, "m.gguf: t")
        assert f"encoding {name} (ggml type {code}) was removed" in str(caught.value)


@pytest.mark.parametrize("code", [-1, 43, 255, 1 << 31])
def test_unknown_ggml_types_are_refused_by_number(code: int) -> None:
    with pytest.raises(UnsupportedRefusal, match=f"ggml type {code} is not known"):
        from_ggml_type(code, "m.gguf: t")


def test_geometry_does_not_import_numpy() -> None:
    program = "import sys, larql.format.encoding; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
