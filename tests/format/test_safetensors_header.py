from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from larql.errors import ContainerError, LarqlError, SourceError
from larql.format import safetensors_header
from larql.format.json_scan import JsonScanner
from larql.format.safetensors_header import (
    DTYPE_BITS,
    Header,
    HeaderEntry,
    contiguous_entries,
    parse_header,
    serialize_header,
)
from larql.format.untrusted import read_json_object
from tests.builders.safetensors import bf16, raw_file, safetensors_bytes

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 269060552\n"
)


def parse(path: Path, content: bytes, error: type[LarqlError] = SourceError) -> Header:
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return parse_header(descriptor, len(content), "some.safetensors", error)
    finally:
        os.close(descriptor)


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes], str]:
    def message(content: bytes) -> str:
        with pytest.raises(SourceError) as caught:
            parse(tmp_path / "x", content)
        text = str(caught.value)
        assert text.startswith("some.safetensors")
        assert "\n" not in text
        assert len(text) < 700
        return text

    return message


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    tensors = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(4, dtype=np.float16),
        "c.bytes": np.arange(5, dtype=np.uint8),
        "scalar": np.array(3, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float32),
        'ünï\n"\\': np.ones(1, dtype=np.int8),
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np", "k\u00e9y": 'v"\n'})
    content = path.read_bytes()
    header = parse(path, content)
    assert header.metadata == {"format": "np", "k\u00e9y": 'v"\n'}
    assert set(header.entries) == set(tensors)
    for name, found in header.entries.items():
        assert found.shape == tensors[name].shape
        start = header.data_start
        assert content[start + found.begin : start + found.end] == tensors[name].tobytes()
    begins = [found.begin for found in header.entries.values()]
    assert begins == sorted(begins)


@pytest.mark.parametrize("align", [1, 8, 64, 4096])
def test_the_safetensors_library_reads_what_is_serialised(tmp_path: Path, align: int) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    blocks = np.arange(34, dtype=np.uint8).reshape(1, 34)
    entries = contiguous_entries([("weight", "F32", (2, 3)), ("q\u00e9", "U8", (1, 34))])
    head = serialize_header(entries, {"b": "2", "a": "1"}, align=align)
    assert len(head) % align == 0
    path = tmp_path / "m.safetensors"
    path.write_bytes(head + values.tobytes() + blocks.tobytes())
    with safetensors.safe_open(path, "numpy") as opened:
        assert opened.metadata() == {"a": "1", "b": "2"}
        assert np.array_equal(opened.get_tensor("weight"), values)
        assert np.array_equal(opened.get_tensor("q\u00e9"), blocks)


def test_serialisation_is_deterministic_and_round_trips(tmp_path: Path) -> None:
    entries = contiguous_entries([("z", "BF16", (3,)), ("a", "F32", ()), ("e", "U8", (0, 7))])
    head = serialize_header(entries, {"y": "1", "x": "2"})
    assert head == serialize_header(dict(entries), {"x": "2", "y": "1"})
    assert len(head) % 64 == 0
    assert head[8:].rstrip(b" ") == (
        b'{"__metadata__":{"x":"2","y":"1"},'
        b'"z":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},'
        b'"a":{"dtype":"F32","shape":[],"data_offsets":[6,10]},'
        b'"e":{"dtype":"U8","shape":[0,7],"data_offsets":[10,10]}}'
    )
    header = parse(tmp_path / "m", head + bytes(10))
    assert header.entries == entries
    assert list(header.entries) == ["z", "a", "e"]
    assert header.metadata == {"x": "2", "y": "1"}
    assert header.data_start == len(head)


def test_an_empty_file_of_no_tensors_round_trips(tmp_path: Path) -> None:
    head = serialize_header({})
    assert len(head) == 64
    assert parse(tmp_path / "m", head).entries == {}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"": HeaderEntry("U8", (1,), 0, 1)}, "cannot be named"),
        ({"__metadata__": HeaderEntry("U8", (1,), 0, 1)}, "cannot be named"),
        ({"a": HeaderEntry("F32", (1,), 0, 1)}, "4 bytes, but its offsets hold 1"),
        ({"a": HeaderEntry("F5", (1,), 0, 1)}, "unknown dtype"),
        ({"a": HeaderEntry("U8", (1,), 1, 2)}, "hole"),
        ({"a": HeaderEntry("U8", (2,), 0, 2), "b": HeaderEntry("U8", (1,), 1, 2)}, "overlap"),
        ({"\ud800": HeaderEntry("U8", (1,), 0, 1)}, "surrogate"),
    ],
)
def test_a_header_that_would_be_refused_is_not_written(
    entries: dict[str, HeaderEntry], words: str
) -> None:
    with pytest.raises(ContainerError, match=words):
        serialize_header(entries)


def test_a_name_is_not_placed_twice() -> None:
    with pytest.raises(ContainerError, match="'a' would be written twice"):
        contiguous_entries([("a", "U8", (1,)), ("a", "U8", (1,))])


def test_the_caller_chooses_the_error_class(tmp_path: Path) -> None:
    for content in (b"", raw_file(b"[]"), raw_file({"a": entry("U8", [1], 0, 1)}), POINTER):
        with pytest.raises(ContainerError):
            parse(tmp_path / "x", content, ContainerError)


DATA = bytes(16)
FOUR = entry("F32", [1], 0, 4)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "0 bytes are too few for a safetensors file"),
    "length only in part": (b"\1\0\0", "3 bytes are too few"),
    "length 2^63": (
        struct.pack("<Q", 1 << 63) + b"{}",
        "header length 9223372036854775808 goes beyond the file of 10 bytes",
    ),
    "length beyond the file": (raw_file(b"{}", length=3), "length 3 goes beyond the file of 10"),
    "pointer": (
        POINTER,
        "is a Git LFS pointer to sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17"
        "e2393 of 269060552 bytes, not the file itself; fetch it with `git lfs pull` in its "
        "repository, or with `larql pull hf://owner/name`",
    ),
    "pointer without fields": (b"version https://git-lfs.github.com/spec/v1\n", "to a file, not"),
    "not UTF-8": (raw_file(b'{"\xff":1}'), "is not UTF-8"),
    "UTF-8 cut at the end": (raw_file(b"{}\xc3"), "is not UTF-8"),
    "not JSON": (raw_file(b"{nonsense}"), "at byte 1 found 'nonsense}', expected a string"),
    "empty header": (raw_file(b""), "is not a JSON object"),
    "a list": (raw_file([]), "is not a JSON object"),
    "a number": (raw_file(7), "is not a JSON object"),
    "open object": (raw_file(b"{"), "found its end, expected a string"),
    "missing comma": (raw_file(b'{"__metadata__":{} "a":1}'), "expected '}'"),
    "trailing comma": (raw_file(b'{"__metadata__":{},}'), "expected a string"),
    "after the object": (raw_file(b"{}{}"), "expected nothing more"),
    "entry not an object": (raw_file({"t": [1]}), "entry of tensor 't'"),
    "entry null": (raw_file({"t": None}), "entry of tensor 't'"),
    "no dtype": (raw_file({"t": {"shape": [1], "data_offsets": [0, 4]}}), "entry of tensor 't'"),
    "extra field": (raw_file({"t": {**FOUR, "x": 1}}, DATA[:4]), "entry of tensor 't'"),
    "dtype a number": (raw_file({"t": {**FOUR, "dtype": 4}}, DATA[:4]), "entry of tensor 't'"),
    "float axis": (raw_file({"t": {**FOUR, "shape": [1.0]}}, DATA[:4]), "entry of tensor 't'"),
    "axis with a hole": (
        raw_file(b'{"t":{"dtype":"F32","shape":[1,,1],"data_offsets":[0,4]}}', DATA[:4]),
        "entry of tensor 't'",
    ),
    "axis with a leading zero": (
        raw_file(b'{"t":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}', DATA[:4]),
        "entry of tensor 't'",
    ),
    "two axes in one": (
        raw_file(b'{"t":{"dtype":"F32","shape":[1 1],"data_offsets":[0,4]}}', DATA[:4]),
        "entry of tensor 't'",
    ),
    "33 axes": (
        raw_file({"t": entry("F32", [1] * 33, 0, 4)}, DATA[:4]),
        "shape (at most 32 integers)",
    ),
    "float offset": (
        raw_file({"t": {**FOUR, "data_offsets": [0, 4.0]}}, DATA[:4]),
        "entry of tensor 't'",
    ),
    "three offsets": (
        raw_file({"t": {**FOUR, "data_offsets": [0, 4, 4]}}, DATA[:4]),
        "entry of tensor 't'",
    ),
    "comma at the end of an entry": (
        raw_file(b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],}}', DATA[:4]),
        "entry of tensor 't'",
    ),
    "vertical tab": (
        raw_file(b'{"t":{"dtype":\x0b"F32","shape":[1],"data_offsets":[0,4]}}', DATA[:4]),
        "entry of tensor 't'",
    ),
    "empty name": (raw_file({"": FOUR}, DATA[:4]), "empty name"),
    "half a surrogate pair": (raw_file(b'{"\\ud800":1}'), "half a surrogate pair"),
    "control character in a name": (raw_file(b'{"a\nb":1}'), "valid escapes"),
    "bad escape": (raw_file(b'{"a\\x":1}'), "valid escapes"),
    "name too long": (raw_file({"n" * 65536: FOUR}, DATA[:4]), "at most 65535 bytes"),
    "metadata not strings": (raw_file({"__metadata__": {"a": 1}}), "expected a string"),
    "metadata not an object": (raw_file({"__metadata__": "x"}), "expected '{'"),
    "duplicate key": (
        raw_file(
            b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            DATA[:8],
        ),
        "has duplicate key 't'",
    ),
    "duplicate key by escape": (
        raw_file(
            b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"\\u0074":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            DATA[:8],
        ),
        "has duplicate key 't'",
    ),
    "duplicate metadata key": (
        raw_file(b'{"__metadata__":{"a":"1","a":"2"}}'),
        "has duplicate key 'a'",
    ),
    "duplicate metadata": (
        raw_file(b'{"__metadata__":{"a":"1"},"__metadata__":{"b":"2"}}'),
        "has duplicate key '__metadata__'",
    ),
    "duplicate key in an entry of four": (
        raw_file(b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1]}}', DATA[:4]),
        "entry of tensor 't' has duplicate key \"shape\"",
    ),
    "duplicate key in an entry of three": (
        raw_file(b'{"t":{"dtype":"F32","shape":[1],"dtype":"F32"}}', DATA[:4]),
        "entry of tensor 't' has a duplicate key",
    ),
    "overlap": (
        raw_file({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, DATA[:12]),
        "tensors 'a' and 'b' overlap: the first ends at byte 8 of the data, the second begins at 4",
    ),
    "same range twice": (
        raw_file({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, DATA[:4]),
        "tensors 'a' and 'b' overlap",
    ),
    "hole": (
        raw_file({"a": FOUR, "b": entry("F32", [1], 8, 12)}, DATA[:12]),
        "hole of 4 bytes before tensor 'b', which begins at byte 8 of the data; expected 4",
    ),
    "hole at the start": (
        raw_file({"a": entry("F32", [1], 4, 8)}, DATA[:8]),
        "hole of 4 bytes before tensor 'a'",
    ),
    "reversed offsets": (
        raw_file({"a": entry("F32", [1], 8, 4)}, DATA[:8]),
        "tensor 'a' has reversed offsets [8, 4]",
    ),
    "negative offsets": (
        raw_file({"a": entry("F32", [1], -4, 0)}, DATA[:4]),
        "tensor 'a' has negative offsets [-4, 0]",
    ),
    "outside the file": (
        raw_file({"a": entry("F32", [2], 0, 8)}, DATA[:4]),
        "tensor 'a' ends at byte 8 of the data, but the file has 4",
    ),
    "size mismatch": (
        raw_file({"a": entry("F32", [2, 3], 0, 4)}, DATA[:4]),
        "tensor 'a' is F32 of shape [2, 3], 24 bytes, but its offsets hold 4",
    ),
    "size mismatch with a zero axis": (
        raw_file({"a": entry("F32", [0, 3], 0, 4)}, DATA[:4]),
        "0 bytes, but its offsets hold 4",
    ),
    "part of a byte": (
        raw_file({"a": entry("F4", [3], 0, 1)}, DATA[:1]),
        "is F4 of shape [3], 2 bytes, but its offsets hold 1",
    ),
    "overflowing shape": (
        raw_file({"a": entry("U8", [1 << 62, 4], 0, 4)}, DATA[:4]),
        "whose product overflows 64 bits",
    ),
    "overflowing shape hidden by a zero": (
        raw_file({"a": entry("U8", [1 << 62, 4, 0], 0, 0)}),
        "whose product overflows 64 bits",
    ),
    "negative axes": (
        raw_file({"a": entry("U8", [-2, -2], 0, 4)}, DATA[:4]),
        "negative axis in shape [-2, -2]",
    ),
    "unknown dtype": (raw_file({"a": entry("F33", [1], 0, 4)}, DATA[:4]), "unknown dtype 'F33'"),
    "trailing bytes": (
        raw_file({"a": FOUR}, DATA[:9]),
        "5 trailing bytes after the last tensor, which ends at byte 4 of the data",
    ),
    "data without tensors": (raw_file({}, DATA[:1]), "1 trailing bytes"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_by_what_is_wrong(
    case: str, refused: Callable[[bytes], str]
) -> None:
    content, words = HOSTILE[case]
    assert words in refused(content)


def test_a_header_above_the_limit_is_refused_before_it_is_read(
    refused: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_HEADER_BYTES", 100)
    message = refused(struct.pack("<Q", 101) + bytes(101))
    assert "header length 101 is above the limit of 100 bytes" in message
    with pytest.raises(ContainerError, match="above the limit"):
        serialize_header(contiguous_entries([("a" * 100, "U8", (1,))]))


def test_the_number_of_tensors_and_the_metadata_are_limited(
    refused: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 2)
    monkeypatch.setattr(safetensors_header, "MAX_METADATA_BYTES", 20)
    names = {name: entry("U8", [0], 0, 0) for name in "abcd"}
    assert "describes more than 2 tensors" in refused(raw_file(names))
    long = {"__metadata__": {"a": "1" * 21}}
    assert "a string of at most 20 bytes" in refused(raw_file(long))
    two = {"__metadata__": {"a": "1234", "b": "1234"}}
    assert "metadata of at most 20 bytes" in refused(raw_file(two))


def test_fields_may_stand_in_any_order_with_white_space(tmp_path: Path) -> None:
    text = b' {\n"a" : { "data_offsets" :[ 0 , 8 ] ,\t"shape": [ 2 , 1 ] , "dtype" : "F32" } } \n '
    header = parse(tmp_path / "x", raw_file(text, bytes(8)))
    assert header.entries == {"a": HeaderEntry("F32", (2, 1), 0, 8)}
    assert header.data_start == 8 + len(text)


def test_entries_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    empty = {"z": entry("U8", [0], 4, 4), "a": entry("U8", [0], 0, 0)}
    content = raw_file({"c": entry("F32", [1], 4, 8), **empty, "b": FOUR}, bytes(8))
    assert list(parse(tmp_path / "x", content).entries) == ["a", "b", "z", "c"]


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_has_its_size(tmp_path: Path, dtype: str) -> None:
    nbytes = DTYPE_BITS[dtype] * 8 // 8
    header = parse(tmp_path / "x", raw_file({"a": entry(dtype, [2, 4], 0, nbytes)}, bytes(nbytes)))
    assert header.entries["a"].dtype == dtype


def _valid_file() -> bytes:
    tensors = {
        "model.a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": bf16(np.ones((1, 5))),
        "c": np.zeros(3, dtype=np.uint8),
    }
    return safetensors_bytes(tensors, {"format": "pt", "n": "1"})


VALID = _valid_file()


def check_no_other_error(path: Path, content: bytes) -> None:
    try:
        header = parse(path, content)
    except SourceError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return
    end = max((found.end for found in header.entries.values()), default=0)
    assert header.data_start + end == len(content)


def test_truncation_at_every_byte_is_refused(tmp_path: Path) -> None:
    parse(tmp_path / "x", VALID)
    for length in range(len(VALID)):
        with pytest.raises(SourceError):
            parse(tmp_path / "x", VALID[:length])


FUZZ = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(
    flips=st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6
    )
)
def test_changed_bytes_raise_nothing_but_source_errors(
    tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(VALID)
    for position, byte in flips:
        content[position] = byte
    check_no_other_error(tmp_path / "x", bytes(content))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@FUZZ
@given(document=st.dictionaries(st.text(), JSON_VALUES, max_size=4), data=st.binary(max_size=8))
def test_any_json_raises_nothing_but_source_errors(
    tmp_path: Path, document: dict[str, object], data: bytes
) -> None:
    check_no_other_error(tmp_path / "x", raw_file(document, data))


@FUZZ
@given(value=JSON_VALUES.filter(lambda value: "NaN" not in json.dumps(value)))
def test_the_scanner_skips_any_json_value_and_no_more(value: object) -> None:
    text = json.dumps(value).replace("-Infinity", "-1").replace("Infinity", "1").encode()
    scanner = JsonScanner(text + b" 7", "x", SourceError)
    scanner.skip()
    assert scanner.data[scanner.position :].strip() == b"7"


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1", "[1,]", "[1}", "{1:2}", '{"a"}', '{"a":1,}', "{,}", "[,]", "nul", '"a'],
)
def test_the_scanner_skips_nothing_that_is_not_json(text: str) -> None:
    with pytest.raises(SourceError):
        JsonScanner(text.encode(), "x", SourceError).skip()


@pytest.mark.parametrize("text", ["[1 2]", '{"a":1 "b":2}', "[}", "{]", "+1", '{"a":}', '{"a",1}'])
def test_the_scanner_skips_no_wrong_separator(text: str) -> None:
    with pytest.raises(SourceError):
        JsonScanner(text.encode(), "x", SourceError).skip()


def test_the_scanner_skips_a_limited_number_of_values_at_any_depth() -> None:
    deep = b"[" * 60000 + b"]" * 60000
    scanner = JsonScanner(deep, "x", SourceError)
    scanner.skip()
    scanner.end()
    with pytest.raises(SourceError, match="at most 65536 values"):
        JsonScanner(b"[" * 70000 + b"]" * 70000, "x", SourceError).skip()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is not a JSON object but a list"),
        (b'{"a":1,"a":1}', "duplicate key 'a'"),
        (b'{"b":{"a":1,"a":1}}', "duplicate key 'a'"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b'{"a":' + b"[" * 100000, "nested too deeply"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not JSON"),
        (b" " * ((4 << 20) + 1), "4194305 bytes, more than the 4194304 expected"),
        (POINTER, "Git LFS pointer"),
    ],
)
def test_small_json_is_read_strictly(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=words) as caught:
        read_json_object(path, SourceError)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_small_json_keeps_infinity(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a":[0.0,Infinity,-Infinity],"b":{"__float__":"Infinity"}}')
    found = read_json_object(path, SourceError)
    assert found == {"a": [0.0, np.inf, -np.inf], "b": {"__float__": "Infinity"}}
