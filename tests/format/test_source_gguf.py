from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from larql.errors import LarqlError, SourceError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS
from larql.format.source import gguf_header, gguf_metadata
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.gguf import GgufCheckpoint, open_gguf
from tests.builders.gguf import (
    GGML_BF16,
    GGML_F16,
    GGML_F32,
    GGML_Q8_0,
    Tensor,
    Typed,
    f32,
    header_bytes,
    key_bytes,
    row_bytes,
    string_bytes,
    u32,
    write_gguf,
)
from tests.builders.measure import open_measured
from tests.builders.safetensors import safetensors_bytes

ARCHITECTURE = key_bytes("general.architecture", "llama")


def tensors() -> list[Tensor]:
    generator = np.random.default_rng(2)
    return [
        ("token_embd.weight", (3, 64), GGML_Q8_0, generator.bytes(3 * 2 * 34)),
        ("output_norm.weight", (5,), GGML_F32, generator.bytes(20)),
        ("blk.0.attn_q.weight", (2, 3, 4), GGML_F16, generator.bytes(48)),
        ("blk.0.scale", (), GGML_F32, generator.bytes(4)),
        ("blk.0.ffn_up.weight", (1, 7), GGML_BF16, generator.bytes(14)),
    ]


def refusal(path: Path, error: type[LarqlError] = SourceError) -> str:
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 900
    return message


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    def message(content: bytes) -> str:
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        text = refusal(path)
        assert str(tmp_path) in text
        return text.removeprefix(str(path))

    return message


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64, 1])
def test_tensors_have_their_shape_encoding_and_bytes(
    tmp_path: Path, version: int, alignment: int
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"a": "b"}, tensors(), version=version, alignment=alignment)
    with open_checkpoint(path) as checkpoint:
        assert isinstance(checkpoint, GgufCheckpoint)
        assert checkpoint.format == "gguf"
        assert checkpoint.version == version
        assert checkpoint.root == tmp_path
        assert checkpoint.weight_files == (path,)
        assert list(checkpoint.tensors) == [name for name, *_ in tensors()]
        for name, shape, ggml_type, data in tensors():
            tensor = checkpoint.tensors[name]
            assert tensor.shape == shape
            assert tensor.encoding.ggml_type == ggml_type
            assert tensor.dtype == tensor.encoding.name.upper()
            assert tensor.file == "m.gguf"
            assert tensor.offset % alignment == 0
            assert checkpoint.read(name).tobytes() == data
            assert b"".join(checkpoint.chunks(name, 5)) == data


def test_views_are_read_only_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"tokens": ["a", "b"]}, tensors())
    with open_checkpoint(tmp_path) as checkpoint:
        view = checkpoint.read("output_norm.weight")
        config = checkpoint.config
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    assert view.tobytes() == tensors()[1][3]
    assert config["tokens"] == ["a", "b"]
    with pytest.raises(ValueError, match="closed checkpoint"):
        checkpoint.read("output_norm.weight")


def test_a_file_that_changed_after_opening_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {}, tensors())
    with open_checkpoint(path) as checkpoint:
        path.write_bytes(path.read_bytes() + b"x")
        with pytest.raises(SourceError, match="changed since its header was read"):
            next(checkpoint.chunks("output_norm.weight"))


@pytest.mark.parametrize("fill", range(32))
def test_data_that_already_starts_aligned_gets_no_further_padding(
    tmp_path: Path, fill: int
) -> None:
    path = tmp_path / "m.gguf"
    data = b"12345678"
    header = header_bytes([key_bytes("k", "x" * fill)], [row_bytes("t", [2], GGML_F32, 0)])
    start = (len(header) + 31) // 32 * 32
    path.write_bytes(header.ljust(start, b"\0") + data)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["t"].offset == start
        assert checkpoint.read("t").tobytes() == data


VALUES: dict[str, tuple[object, object, str]] = {
    "u8": (Typed("u8", 255), 255, "u8"),
    "i8": (Typed("i8", -128), -128, "i8"),
    "u16": (Typed("u16", 65535), 65535, "u16"),
    "i16": (Typed("i16", -2), -2, "i16"),
    "u32": (u32(4294967295), 4294967295, "u32"),
    "i32": (Typed("i32", -3), -3, "i32"),
    "u64": (Typed("u64", (1 << 64) - 1), (1 << 64) - 1, "u64"),
    "i64": (Typed("i64", -(1 << 63)), -(1 << 63), "i64"),
    "f32": (f32(0.1), float(np.float32(0.1)), "f32"),
    "f64": (Typed("f64", 0.1), 0.1, "f64"),
    "true": (True, True, "bool"),
    "false": (False, False, "bool"),
    "string": ("ünï\n", "ünï\n", "string"),
    "empty": ("", "", "string"),
    "bools": ([True, False], [True, False], "array of bool"),
    "ints": (Typed("i32", [1, -2]), [1, -2], "array of i32"),
    "floats": (Typed("f32", [0.5, -1.0]), [0.5, -1.0], "array of f32"),
    "doubles": (Typed("f64", [0.1]), [0.1], "array of f64"),
    "bytes": (Typed("u8", [0, 200]), [0, 200], "array of u8"),
    "strings": (["a", "", "▁é"], ["a", "", "▁é"], "array of string"),
    "no strings": (Typed("string", []), [], "array of string"),
    "no ints": (Typed("u64", []), [], "array of u64"),
    "nested": (
        Typed("array", [Typed("u32", [1, 2]), Typed("string", ["x"]), Typed("bool", [])]),
        [[1, 2], ["x"], []],
        "array of array of u32",
    ),
    "no arrays": (Typed("array", []), [], "array of array"),
}


def test_every_metadata_type_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {key: value for key, (value, _, _) in VALUES.items()}, tensors())
    with open_gguf(path) as checkpoint:
        assert list(checkpoint.config) == list(VALUES)
        assert len(checkpoint.config) == len(VALUES)
        for key, (_, expected, type_name) in VALUES.items():
            found = checkpoint.config[key]
            assert found == expected
            assert type(found) is type(expected)
            assert checkpoint.metadata.type_name(key) == type_name
        assert all(type(item) is bool for item in checkpoint.config["bools"])  # type: ignore[attr-defined]
        assert checkpoint.metadata.array_length("strings") == 3
        assert checkpoint.metadata.array_length("nested") == 3
        assert checkpoint.metadata.raw_strings("strings") == [b"a", b"", "▁é".encode()]
        assert "nope" not in checkpoint.config
        assert checkpoint.config.get("nope", 7) == 7
        with pytest.raises(KeyError):
            _ = checkpoint.config["nope"]
        with pytest.raises(SourceError, match="key 'u8' is u8; expected an array"):
            checkpoint.metadata.array_length("u8")
        with pytest.raises(SourceError, match="key 'ints' is array of i32; expected array of str"):
            checkpoint.metadata.raw_strings("ints")


def test_bad_text_and_bools_are_refused_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    two = struct.pack("<I", 7) + b"\2"
    twos = struct.pack("<IIQ", 9, 7, 2) + b"\1\2"
    keys = [key_bytes("t", [b"a", b"\xff\xfe"]), key_bytes("s", b"\xff")]
    keys += [string_bytes("b") + two, string_bytes("bs") + twos]
    header = header_bytes(keys, [row_bytes("w", [1], GGML_F32, 0)])
    path.write_bytes(header.ljust((len(header) + 31) // 32 * 32, b"\0") + bytes(4))
    with open_gguf(path) as checkpoint:
        for key in ("t", "s"):
            with pytest.raises(SourceError, match=rf"m\.gguf: metadata key '{key}' holds b'.xff"):
                _ = checkpoint.config[key]
        assert checkpoint.metadata.raw_strings("t") == [b"a", b"\xff\xfe"]
        for key in ("b", "bs"):
            with pytest.raises(SourceError, match=f"metadata key '{key}' holds bool 2"):
                _ = checkpoint.config[key]


def one(
    dims: list[int] | None = None,
    ggml_type: int = GGML_F32,
    offset: int = 0,
    keys: list[bytes] | None = None,
    data: bytes = bytes(64),
) -> bytes:
    """A file with one tensor."""
    row = row_bytes("w", [4] if dims is None else dims, ggml_type, offset)
    header = header_bytes([ARCHITECTURE] if keys is None else keys, [row])
    return header.ljust((len(header) + 31) // 32 * 32, b"\0") + data


def several(*rows: bytes, data: bytes = bytes(256)) -> bytes:
    header = header_bytes([], rows)
    return header.ljust((len(header) + 31) // 32 * 32, b"\0") + data


HUGE = 1 << 62
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ": 0 bytes are too few for a GGUF file"),
    "magic only": (b"GGUF", ": 4 bytes are too few"),
    "other magic": (bytes(40), ": begins with b'\\x00\\x00\\x00\\x00', expected b'GGUF'"),
    "before GGUF": (b"tjgg" + bytes(40), ": is a GGML file from before GGUF (magic b'tjgg')"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 9876\n",
        f": is a Git LFS pointer to sha256:{'ab' * 32} of 9876 bytes",
    ),
    "version 1": (header_bytes([], [], version=1), ": is GGUF version 1, expected 2 or 3"),
    "version 4": (header_bytes([], [], version=4), ": is GGUF version 4, which is unknown"),
    "version 0": (header_bytes([], [], version=0), ": is a big-endian GGUF file (version 0)"),
    "big-endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        ": is a big-endian GGUF file (version 3)",
    ),
    "no tensors": (header_bytes([ARCHITECTURE], []), "holds no tensors"),
    "2^62 tensors": (
        header_bytes([], [], tensor_count=HUGE),
        f": declares {HUGE} tensors, but the file of 24 bytes has room for 0",
    ),
    "2^62 keys": (
        header_bytes([], [], key_count=HUGE),
        f": declares {HUGE} metadata keys, but the file of 24 bytes has room for 0",
    ),
    "key longer than the file": (
        header_bytes([struct.pack("<Q", HUGE) + bytes(50)], []),
        f": a metadata key needs {HUGE} bytes at byte 32, but the file has 82",
    ),
    "empty key": (one(keys=[key_bytes("", 1)]), ": a metadata key at byte 32 has 0 bytes"),
    "long key": (one(keys=[key_bytes("k" * 65536, 1)]), "has 65536 bytes; expected 1 to 65535"),
    "key not UTF-8": (one(keys=[key_bytes(b"\xff", 1)]), ": a metadata key b'\\xff' is not UTF-8"),
    "duplicate key": (one(keys=[ARCHITECTURE] * 2), ": duplicate metadata key 'general.architectu"),
    "unknown value type": (
        one(keys=[string_bytes("k") + struct.pack("<I", 13)]),
        ": metadata key 'k' has unknown value type 13",
    ),
    "unknown array type": (
        one(keys=[string_bytes("k") + struct.pack("<IIQ", 9, 99, 1)]),
        ": metadata key 'k' has unknown value type 99",
    ),
    "unknown type of an empty array": (
        one(keys=[string_bytes("k") + struct.pack("<IIQ", 9, 99, 0)]),
        ": metadata key 'k' has unknown value type 99",
    ),
    "string of 2^62": (
        one(keys=[string_bytes("k") + struct.pack("<IQ", 8, HUGE)]),
        ": a string of metadata key 'k' reaches beyond the file",
    ),
    "string of 2^64 - 1": (
        one(keys=[string_bytes("k") + struct.pack("<IQ", 8, (1 << 64) - 1)]),
        ": a string of metadata key 'k' reaches beyond the file",
    ),
    "array of 2^62 numbers": (
        one(keys=[string_bytes("k") + struct.pack("<IIQ", 9, 4, HUGE)]),
        f": array 'k' of {HUGE} items needs {HUGE * 4} bytes",
    ),
    "array of 2^62 strings": (
        one(keys=[string_bytes("k") + struct.pack("<IIQ", 9, 8, HUGE)]),
        f": array 'k' of {HUGE} items needs",
    ),
    "array of 2^62 arrays": (
        one(keys=[string_bytes("k") + struct.pack("<IIQ", 9, 9, HUGE)]),
        f": array 'k' of {HUGE} items needs",
    ),
    "second string outside": (
        one(keys=[string_bytes("k") + struct.pack("<IIQQQ", 9, 8, 3, 0, 1 << 40) + bytes(9)]),
        ": a string of metadata key 'k' reaches beyond the file",
    ),
    "strings end with the file": (
        header_bytes([string_bytes("k") + struct.pack("<IIQQ", 9, 8, 2, 3) + b"abcdefgh"], []),
        ": a string of metadata key 'k' reaches beyond the file",
    ),
    "arrays 5 deep": (
        one(keys=[string_bytes("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5]),
        ": metadata key 'k' nests arrays more than 4 deep",
    ),
    "alignment 0": (
        one(keys=[key_bytes("general.alignment", 0)]),
        ": general.alignment is 0; expected a power of two",
    ),
    "alignment 48": (one(keys=[key_bytes("general.alignment", 48)]), ": general.alignment is 48"),
    "alignment -32": (
        one(keys=[key_bytes("general.alignment", Typed("i32", -32))]),
        ": general.alignment is -32",
    ),
    "alignment a string": (
        one(keys=[key_bytes("general.alignment", "32")]),
        ": general.alignment is string; expected u32",
    ),
    "alignment a bool": (
        one(keys=[key_bytes("general.alignment", True)]),
        ": general.alignment is bool; expected u32",
    ),
    "alignment 2^63": (
        one(keys=[key_bytes("general.alignment", Typed("u64", 1 << 63))]),
        ": tensor 'w' ends at byte 9223372036854775824, but the file has",
    ),
    "n_dims 1e6": (
        several(string_bytes("w") + struct.pack("<I", 1_000_000)),
        ": tensor 'w' has 1000000 axes; expected at most 4",
    ),
    "5 axes": (one([1] * 5), ": tensor 'w' has 5 axes; expected at most 4"),
    "zero axis": (one([4, 0]), ": tensor 'w' has shape [0, 4] with a zero axis"),
    "overflow": (one([1 << 32, 1 << 32]), ": tensor 'w' has shape [4294967296, 4294967296], whose"),
    "overflow at 2^63": (one([1 << 62, 2]), "whose product overflows 64 bits"),
    "empty tensor name": (several(row_bytes("", [4], 0, 0)), ": a tensor name at byte 32 has 0"),
    "duplicate tensor": (
        several(row_bytes("w", [4], 0, 0), row_bytes("w", [4], 0, 32)),
        ": duplicate tensor 'w'",
    ),
    "rows that are not whole blocks": (
        one([33], GGML_Q8_0),
        ": tensor 'w' is Q8_0 with rows of 33 elements; expected a multiple of 32",
    ),
    "scalar of blocks": (one([], GGML_Q8_0), "with rows of 1 elements"),
    "unaligned offset": (
        one(offset=8),
        ": tensor 'w' has offset 8, which is not a multiple of the",
    ),
    "overlap": (
        several(row_bytes("a", [16], 0, 0), row_bytes("b", [4], 0, 32)),
        ": tensor 'b' at offset 32 overlaps tensor 'a', which ends at 64",
    ),
    "same place": (
        several(row_bytes("a", [4], 0, 0), row_bytes("b", [4], 0, 0)),
        ": tensor 'b' at offset 0 overlaps tensor 'a', which ends at 16",
    ),
    "hole": (
        several(row_bytes("a", [4], 0, 0), row_bytes("b", [4], 0, 64)),
        ": tensor 'b' has offset 64, expected 32: there is a hole before it",
    ),
    "hole at the start": (one(offset=32), ": tensor 'w' has offset 32, expected 0"),
    "offset near 2^64": (one(offset=(1 << 64) - 32), ": tensor 'w' ends at byte"),
    "outside the file": (
        several(row_bytes("a", [8], 0, 0), row_bytes("b", [8], 0, 32), data=bytes(60)),
        ": tensor 'b' ends at byte 160, but the file has 156 bytes (all tensors need 160)",
    ),
    "second of three outside the file": (
        several(
            row_bytes("c", [8], 0, 64),
            row_bytes("b", [8], 0, 32),
            row_bytes("a", [8], 0, 0),
            data=bytes(40),
        ),
        ": tensor 'b' ends at byte 192, but the file has 168 bytes (all tensors need 224)",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_what_is_wrong(
    case: str, refused: Callable[[bytes], str]
) -> None:
    content, words = HOSTILE[case]
    assert words in refused(content)


@pytest.mark.parametrize(
    ("code", "name"), [(16, "IQ2_XXS"), (34, "TQ1_0"), (4, "Q4_2"), (26, "I32"), (99, "99")]
)
def test_an_encoding_without_a_decoder_is_refused_by_name_and_tensor(
    tmp_path: Path, code: int, name: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(one([256], code, data=bytes(2048)))
    message = refusal(path, UnsupportedRefusal)
    assert message.startswith(f"{path}: tensor 'w': ")
    assert name in message


def test_counts_of_small_things_are_limited(
    tmp_path: Path, refused: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_bytes(name, 1) for name in "abc"]
    monkeypatch.setattr(gguf_header, "MAX_KEYS", 2)
    assert "declares 3 metadata keys, above the limit of 2" in refused(one(keys=keys))
    rows = [row_bytes(name, [8], 0, 32 * number) for number, name in enumerate("abc")]
    monkeypatch.setattr(gguf_header, "MAX_TENSORS", 2)
    assert "declares 3 tensors, above the limit of 2" in refused(several(*rows))
    monkeypatch.setattr(gguf_metadata, "MAX_ALL_NAMES_BYTES", 20)
    assert "names take more than 20 bytes" in refused(one())
    monkeypatch.setattr(gguf_metadata, "MAX_ARRAY_ITEMS", 3)
    lists = [key_bytes("a", ["x", "y"]), key_bytes("b", ["x", "y"])]
    assert "arrays up to 'b' have more than 3 strings" in refused(one(keys=lists))


def test_parts_open_as_one_model_whichever_is_named(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "m.gguf", {"a": "b"}, tensors(), parts=3, alignment=64)
    assert [file.name for file in files] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for path in (*files, tmp_path):
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.weight_files == files
            assert checkpoint.config["a"] == "b"
            assert list(checkpoint.tensors) == [name for name, *_ in tensors()]
            for name, _, _, data in tensors():
                assert checkpoint.read(name).tobytes() == data
            assert checkpoint.tensors["blk.0.ffn_up.weight"].file == files[2].name


def test_a_first_part_may_hold_metadata_only(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "m.gguf", {"a": "b"}, tensors()[:1], parts=2)
    with open_checkpoint(files[1]) as checkpoint:
        assert list(checkpoint.tensors) == ["token_embd.weight"]
        assert checkpoint.config["a"] == "b"


def test_a_model_in_one_part_needs_no_split_keys(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00001-of-00001.gguf", {}, tensors())
    open_checkpoint(tmp_path).close()


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    files = write_gguf(tmp_path / "m.gguf", {"a": "b"}, tensors(), parts=3)
    files[missing - 1].unlink()
    left = files[missing % 3]
    expected = f"{files[missing - 1]}: part {missing} of 3 is missing"
    assert refusal(left).startswith(expected)
    assert refusal(tmp_path).startswith(expected)


def test_a_part_that_is_a_large_file_pointer_is_refused(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "m.gguf", {"a": "b"}, tensors(), parts=2)
    files[1].write_bytes(HOSTILE["pointer"][0])
    assert refusal(files[0]).startswith(f"{files[1]}: is a Git LFS pointer to sha256:abab")


def split_keys(number: int, count: int, total: int) -> dict[str, object]:
    return {
        "split.no": Typed("u16", number),
        "split.count": Typed("u16", count),
        "split.tensors.count": Typed("i32", total),
    }


def write_pair(
    tmp_path: Path, second: dict[str, object], second_tensors: list[Tensor], alignment: int = 32
) -> tuple[Path, Path]:
    paths = (tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf")
    write_gguf(paths[0], {"a": "b", **split_keys(0, 2, 5)}, tensors()[:3])
    write_gguf(paths[1], second, second_tensors, alignment=alignment)
    return paths


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    rest = tensors()[3:]
    first, second = write_pair(tmp_path, split_keys(1, 2, 5), rest)
    open_checkpoint(first).close()
    write_pair(tmp_path, split_keys(0, 2, 5), rest)
    assert refusal(first).startswith(f"{second}: split.no is 0, expected 1 by its name")
    write_pair(tmp_path, split_keys(1, 3, 5), rest)
    assert refusal(first).startswith(f"{second}: split.count is 3, expected 2")
    assert refusal(second).startswith(f"{second}: split.count is 3, expected 2")
    write_pair(tmp_path, {}, rest)
    assert refusal(first).startswith(f"{second}: split.count is absent, expected 2")
    write_pair(tmp_path, {**split_keys(1, 2, 5), "split.no": "1"}, rest)
    assert refusal(first).startswith(f"{second}: split.no is string; expected an integer")
    write_pair(tmp_path, split_keys(1, 2, 5), rest[:1])
    assert refusal(first).startswith(f"{first}: split.tensors.count is 5, but the 2 parts hold 4")
    write_pair(tmp_path, split_keys(1, 2, 5), [rest[0], tensors()[0]])
    assert f"{second}: tensor 'token_embd.weight' also stands in {first.name}" in refusal(first)
    write_pair(tmp_path, {**split_keys(1, 2, 5), "a": "c"}, rest)
    assert refusal(first).startswith(f"{second}: metadata key 'a' differs from {first.name}")
    write_pair(tmp_path, {**split_keys(1, 2, 5), "new": "c"}, rest)
    assert refusal(first).startswith(f"{second}: metadata key 'new' differs from {first.name}")
    write_pair(tmp_path, split_keys(1, 2, 5), rest, alignment=64)
    assert refusal(first).startswith(f"{second}: alignment is 64, but 32 in {first.name}")
    write_pair(tmp_path, {**split_keys(1, 2, 5), "a": "b"}, rest)
    open_checkpoint(first).close()


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    files = write_gguf(tmp_path / "m.gguf", {"a": "b"}, tensors(), parts=2)
    files[0].rename(tmp_path / "x.gguf")
    assert "is one part of 2 (split.count), but its name" in refusal(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").rename(tmp_path / "x-00001-of-00001.gguf")
    assert "split.count is 2, expected 1 by its name" in refusal(tmp_path / "x-00001-of-00001.gguf")


def test_a_directory_must_hold_one_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {}, tensors())
    write_gguf(tmp_path / "b.gguf", {}, tensors(), parts=2)
    (tmp_path / "._a.gguf").write_bytes(b"not opened")
    message = refusal(tmp_path)
    assert "holds 2 GGUF models ('a.gguf', 'b-00001-of-00002.gguf'); name one file" in message
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": np.ones(1)}))
    assert "holds both safetensors and a.gguf" in refusal(tmp_path)


def test_a_file_is_recognised_by_its_magic(tmp_path: Path) -> None:
    write_gguf(tmp_path / "0123abcd", {}, tensors())
    with open_checkpoint(tmp_path / "0123abcd") as checkpoint:
        assert checkpoint.format == "gguf"


def test_side_files_are_licences_only(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {}, tensors())
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "LICENSE").write_text("free")
    with open_checkpoint(tmp_path) as checkpoint:
        assert dict(checkpoint.side_files) == {"LICENSE": tmp_path / "LICENSE"}


def test_a_file_that_cannot_be_mapped_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "a.gguf", {}, tensors())

    def shrunk(*_: object, **__: object) -> None:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(mmap, "mmap", shrunk)
    assert "cannot map the file: mmap length" in refusal(tmp_path / "a.gguf")


def sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


STRINGS = string_bytes("k") + struct.pack("<IIQ", 9, 8, 20_000_000)
NESTED = string_bytes("k") + struct.pack("<IIQ", 9, 9, 10_000_000)
LARGE: dict[str, bytes] = {
    "20 million empty strings": header_bytes([STRINGS], []),
    "10 million arrays": header_bytes([NESTED], []),
    "10 million keys": header_bytes([], [], key_count=10_000_000),
    "5 million tensors": header_bytes([], [], tensor_count=5_000_000),
    "most strings, then cut": header_bytes(
        [string_bytes("k") + struct.pack("<IIQ", 9, 8, 1 << 21)], [], key_count=2
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_hostile_files_cost_little(tmp_path: Path, case: str) -> None:
    path = tmp_path / "x.gguf"
    sparse(path, LARGE[case], 250_000_000)
    measured = open_measured(path)
    assert measured.kind == "SourceError"
    assert measured.seconds < 1
    assert measured.peak_mb < 200
    assert measured.heavy_modules == []


def _valid_file(tmp_path: Path) -> bytes:
    path = tmp_path / "valid.gguf"
    metadata = {"a": "b", "n": 3, "l": ["x", "y"], "nested": Typed("array", [Typed("u8", [1])])}
    write_gguf(path, metadata, tensors()[:3])
    return path.read_bytes()


def check_no_other_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        with open_gguf(path) as checkpoint:
            for key in checkpoint.config:
                try:
                    _ = checkpoint.config[key]
                except SourceError as error:
                    assert "\n" not in str(error)
            for tensor in checkpoint.tensors.values():
                assert tensor.offset + tensor.nbytes <= len(content)
                assert checkpoint.read(tensor.name).size == tensor.nbytes
    except (SourceError, UnsupportedRefusal) as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000


def test_truncation_at_every_byte_is_refused(tmp_path: Path) -> None:
    content = _valid_file(tmp_path)
    last = tensors()[2][3]
    end = content.rindex(last) + len(last)
    path = tmp_path / "x.gguf"
    for length in range(end):
        path.write_bytes(content[:length])
        with pytest.raises(SourceError):
            open_gguf(path)
    path.write_bytes(content[:end])
    open_gguf(path).close()


FUZZ = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_raise_nothing_but_named_errors(
    tmp_path: Path, changes: list[tuple[float, int]]
) -> None:
    content = bytearray(_valid_file(tmp_path))
    for position, byte in changes:
        content[int(position * 420)] = byte
    check_no_other_error(tmp_path / "x.gguf", bytes(content))


@FUZZ
@given(position=st.floats(0, 1), value=st.integers(0, (1 << 64) - 1), width=st.sampled_from([4, 8]))
def test_changed_integers_raise_nothing_but_named_errors(
    tmp_path: Path, position: float, value: int, width: int
) -> None:
    content = bytearray(_valid_file(tmp_path))
    start = int(position * 420)
    content[start : start + width] = value.to_bytes(8, "little")[:width]
    check_no_other_error(tmp_path / "x.gguf", bytes(content))


@pytest.mark.real
def test_the_smollm2_file_has_the_published_layout(s_gguf: Path) -> None:
    measured = open_measured(s_gguf)
    assert measured.kind == "opened"
    assert measured.seconds < 0.5
    with open_gguf(s_gguf) as checkpoint:
        tensors = checkpoint.tensors
        assert min(tensor.offset for tensor in tensors.values()) == 1_785_664
        assert tensors["token_embd.weight"].encoding is ENCODINGS["q8_0"]
        assert tensors["token_embd.weight"].shape == (49152, 576)
        assert tensors["blk.0.attn_q.weight"].encoding is ENCODINGS["q4_1"]
        assert checkpoint.config["general.architecture"] == "llama"
        assert checkpoint.metadata.array_length("tokenizer.ggml.tokens") == 49152
        assert checkpoint.config["tokenizer.ggml.tokens"][504] == "The"  # type: ignore[index]
        assert sum(tensor.nbytes for tensor in tensors.values()) <= 98_362_432 - 1_785_664


@pytest.mark.real
def test_the_gemma_file_has_the_published_layout_and_opens_fast(g_gguf: Path) -> None:
    measured = open_measured(g_gguf)
    assert measured.kind == "opened"
    assert measured.seconds < 0.5
    assert measured.peak_mb < 60
    assert measured.heavy_modules == []
    with open_gguf(g_gguf) as checkpoint:
        tensors = checkpoint.tensors
        assert min(tensor.offset for tensor in tensors.values()) == 6_525_120
        assert tensors["blk.0.attn_q.weight"].shape == (1024, 640)
        norm = checkpoint.read("output_norm.weight").view(np.float32)
        assert norm[0] == 7.125
        assert checkpoint.metadata.array_length("tokenizer.ggml.scores") == 262_144
        last = max(tensors.values(), key=lambda tensor: tensor.offset)
        assert last.offset + last.nbytes <= 253_113_024


@pytest.mark.real
def test_the_gemma_file_cut_after_two_parts_is_refused(tmp_path: Path, g_gguf: Path) -> None:
    cut = 127_926_272
    path = tmp_path / "g.gguf"
    with g_gguf.open("rb") as whole:
        path.write_bytes(whole.read(cut))
    measured = open_measured(path)
    with open_gguf(g_gguf) as checkpoint:
        in_order = sorted(checkpoint.tensors.values(), key=lambda tensor: tensor.offset)
    first = next(tensor for tensor in in_order if tensor.offset + tensor.nbytes > cut)
    whole_end = in_order[-1].offset + in_order[-1].nbytes
    assert measured.kind == "SourceError"
    assert measured.message == (
        f"{path}: tensor {first.name!r} ends at byte {first.offset + first.nbytes}, but the file "
        f"has {cut} bytes (all tensors need {whole_end}); it is cut short, fetch it again"
    )
    assert measured.seconds < 1
    assert measured.peak_mb < 200
