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

from larql.errors import SourceError, UnsupportedRefusal
from larql.format.encoding import ENCODINGS
from larql.format.source import safetensors_dir
from larql.format.source.checkpoint import open_checkpoint
from tests.builders.measure import open_measured
from tests.builders.safetensors import (
    Stored,
    bf16,
    raw_file,
    safetensors_bytes,
    write_safetensors_dir,
)

INDEX = "model.safetensors.index.json"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 269060552\n"
)


def tensors() -> dict[str, np.ndarray | Stored]:
    generator = np.random.default_rng(1)
    return {
        "model.embed.weight": generator.standard_normal((8, 4)).astype(np.float32),
        "model.norm.weight": generator.standard_normal(4).astype(np.float16),
        "lm_head.weight": bf16(generator.standard_normal((8, 4))),
        "rotary.ids": np.arange(3, dtype=np.int64),
        "mask": np.array([True, False]),
    }


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("shards", "index"), [(1, True), (3, True), (3, False)])
def test_all_layouts_give_the_same_tensors(tmp_path: Path, shards: int, index: bool) -> None:
    content = tensors()
    directory = write_safetensors_dir(
        tmp_path / "m", {"model_type": "llama"}, content, shards=shards, index=index
    )
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert checkpoint.root == directory
        assert checkpoint.config == {"model_type": "llama"}
        assert list(checkpoint.tensors) == list(content)
        assert len(checkpoint.weight_files) == shards
        assert all(file.is_file() for file in checkpoint.weight_files)
        for name, value in content.items():
            expected = value.data if isinstance(value, Stored) else value.tobytes()
            tensor = checkpoint.tensors[name]
            assert tensor.shape == value.shape
            assert tensor.nbytes == len(expected)
            assert (directory / tensor.file).read_bytes()[
                tensor.offset : tensor.offset + tensor.nbytes
            ] == expected
            assert checkpoint.read(name).tobytes() == expected
            assert b"".join(checkpoint.chunks(name, 3)) == expected
            assert b"".join(checkpoint.chunks(name)) == expected
            assert max(len(chunk) for chunk in checkpoint.chunks(name, 3)) == min(3, len(expected))


def test_floats_have_an_encoding_and_other_dtypes_are_refused_when_asked_for(
    tmp_path: Path,
) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    with open_checkpoint(directory) as checkpoint:
        found = checkpoint.tensors
        assert found["model.embed.weight"].encoding is ENCODINGS["f32"]
        assert found["model.norm.weight"].encoding is ENCODINGS["f16"]
        assert found["lm_head.weight"].encoding is ENCODINGS["bf16"]
        assert found["rotary.ids"].known_encoding is None
        assert found["rotary.ids"].dtype == "I64"
        with pytest.raises(
            UnsupportedRefusal, match=r"^model\.safetensors: tensor 'rotary.ids' is stored as I64"
        ):
            _ = found["rotary.ids"].encoding


def test_views_are_flat_read_only_and_outlive_the_checkpoint(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    with open_checkpoint(directory) as checkpoint:
        view = checkpoint.read("model.embed.weight")
        assert (view.dtype, view.shape) == (np.uint8, (128,))
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    assert view.sum() == checkpoint_sum(directory)
    with pytest.raises(ValueError, match="closed checkpoint"):
        checkpoint.read("mask")
    checkpoint.close()


def checkpoint_sum(directory: Path) -> int:
    with open_checkpoint(directory) as checkpoint:
        return int(checkpoint.read("model.embed.weight").sum())


def test_a_file_written_by_the_safetensors_library_opens_alone(tmp_path: Path) -> None:
    values = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "e": np.zeros((0, 2), np.float32)}
    safetensors.numpy.save_file(values, tmp_path / "any.safetensors")
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "other.safetensors").write_bytes(b"not opened")
    with open_checkpoint(tmp_path / "any.safetensors") as checkpoint:
        assert checkpoint.root == tmp_path
        assert checkpoint.config == {"a": 1}
        assert np.array_equal(checkpoint.read("w").view(np.float32).reshape(2, 3), values["w"])
        assert checkpoint.read("e").shape == (0,)
        assert list(checkpoint.chunks("e")) == []


def test_opening_keeps_no_file_open_and_use_opens_only_the_shard_used(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=3)

    def open_shards() -> set[str]:
        links = []
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                links.append(descriptor.readlink())
            except FileNotFoundError:
                continue
        return {link.name for link in links if link.parent == directory}

    checkpoint = open_checkpoint(directory)
    assert open_shards() == set()
    next(checkpoint.chunks("mask", 1))
    assert open_shards() == {"model-00003-of-00003.safetensors"}
    checkpoint.close()
    assert open_shards() == set()


def test_a_shard_that_changed_after_opening_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    checkpoint = open_checkpoint(directory)
    shard = directory / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"model\.safetensors: changed since its header was read"):
        checkpoint.read("mask")


def test_a_file_cut_while_it_is_streamed_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    with open_checkpoint(directory) as checkpoint:
        chunks = checkpoint.chunks("model.embed.weight", 64)
        next(chunks)
        os.truncate(directory / "model.safetensors", 100)
        with pytest.raises(SourceError, match="ends at byte"):
            next(chunks)


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    with open_checkpoint(directory) as checkpoint:
        with pytest.raises(SourceError, match="has no tensor 'nope'"):
            checkpoint.read("nope")
        with pytest.raises(SourceError, match="has no tensor 'nope'"):
            checkpoint.chunks("nope")
        with pytest.raises(ValueError, match="chunk size 0"):
            next(checkpoint.chunks("mask", 0))


def test_shards_may_be_symbolic_links_as_in_a_hub_cache(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "snapshots" / "m", {}, tensors(), shards=2)
    (tmp_path / "blobs").mkdir()
    for number, shard in enumerate(sorted(directory.glob("*.safetensors"))):
        blob = tmp_path / "blobs" / f"{number:064}"
        shard.rename(blob)
        shard.symlink_to(Path("../../blobs") / blob.name)
    with open_checkpoint(directory) as checkpoint:
        assert len(checkpoint.tensors) == 5
        assert checkpoint.read("mask").tobytes() == b"\1\0"


def test_side_files_are_those_present(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    for name in ("tokenizer.json", "LICENSE", "generation_config.json", "notes.txt"):
        (directory / name).write_text("{}")
    (directory / "merges.txt").mkdir()
    with open_checkpoint(directory) as checkpoint:
        assert set(checkpoint.side_files) == {"tokenizer.json", "LICENSE", "generation_config.json"}
        assert checkpoint.side_files["LICENSE"] == directory / "LICENSE"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", INDEX, "config.json"])
def test_a_large_file_pointer_is_refused_with_how_to_fetch_it(tmp_path: Path, name: str) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())
    (directory / name).write_bytes(POINTER)
    with pytest.raises(SourceError) as caught:
        assert open_checkpoint(directory).config
    message = str(caught.value)
    assert message.startswith(f"{directory / name}: is a Git LFS pointer to sha256:4d7a2146")
    assert "269060552 bytes" in message
    assert "git lfs pull" in message


def test_a_missing_configuration_is_refused_only_when_asked_for(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", None, tensors())
    with open_checkpoint(directory) as checkpoint:
        assert checkpoint.read("mask").size == 2
        with pytest.raises(SourceError, match=r"has no config\.json") as caught:
            _ = checkpoint.config
        assert str(directory) in str(caught.value)


def rewrite_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    document = json.loads((directory / INDEX).read_text())
    change(document["weight_map"])
    (directory / INDEX).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x.safetensors", "leaves its directory"),
        ("a/../../x.safetensors", "leaves its directory"),
        ("a/..", "leaves its directory"),
        ("/etc/passwd", "is absolute"),
        ("a\0.safetensors", "control character"),
        ("a\\b.safetensors", "backslash"),
        ("", "empty file name"),
        (".", "leaves its directory"),
        ("a//b", "leaves its directory"),
    ],
)
def test_index_names_are_refused_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    rewrite_index(directory, lambda weight_map: weight_map.update({"mask": name}))
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes({"mask": np.ones(1)}))

    def opened(*_: object) -> None:
        raise AssertionError("a weights file was opened")

    monkeypatch.setattr(safetensors_dir, "parse_header", opened)
    message = refusal(directory)
    assert message.startswith(f"{directory / INDEX}: weight_map of tensor 'mask': ")
    assert words in message


def test_an_index_name_that_no_file_can_have_is_a_missing_shard(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    rewrite_index(directory, lambda weight_map: weight_map.update({"mask": "n" * 300}))
    assert str(directory) in refusal(directory)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=3)
    shard = directory / "model-00002-of-00003.safetensors"
    shard.unlink()
    assert refusal(directory).startswith(f"{shard}: shard is missing, which {INDEX} names")
    (directory / INDEX).unlink()
    assert refusal(directory).startswith(f"{shard}: shard is missing (2 of 3 are here)")


def test_a_tensor_missing_from_its_shard_is_named_with_the_shard(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    shard = "model-00002-of-00002.safetensors"
    rewrite_index(directory, lambda weight_map: weight_map.update({"extra": shard}))
    assert refusal(directory).startswith(f"{directory / shard}: tensor 'extra' is missing")


def test_a_tensor_that_the_index_does_not_list_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    rewrite_index(directory, lambda weight_map: weight_map.pop("mask"))
    message = refusal(directory)
    assert (
        "model-00002-of-00002.safetensors: holds tensor 'mask', which it does not list" in message
    )


def test_a_tensor_that_the_index_places_elsewhere_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    first = "model-00001-of-00002.safetensors"
    rewrite_index(directory, lambda weight_map: weight_map.update({"mask": first}))
    message = refusal(directory)
    assert f"holds tensor 'mask', which it places in {first}" in message


@pytest.mark.parametrize("index", [True, False])
def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, index: bool) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2, index=index)
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    content = {"mask": np.array([True]), "rotary.ids": np.zeros(1, np.int64)}
    both = {**content, "lm_head.weight": np.zeros(1, np.float32)}
    (directory / names[1]).write_bytes(safetensors_bytes(both))
    first = {**{k: v for k, v in tensors().items() if k.startswith("model")}, "mask": np.ones(1)}
    (directory / names[0]).write_bytes(safetensors_bytes(first))
    message = refusal(directory)
    assert "tensor 'mask'" in message
    if not index:
        assert f"{names[1]}: tensor 'mask' also stands in {names[0]}" in message


def test_a_duplicate_between_listed_shards_is_refused(tmp_path: Path) -> None:
    # The index names each tensor once, so the copy contradicts it whichever shard comes first.
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    last = directory / "model-00002-of-00002.safetensors"
    extra = {"lm_head.weight": tensors()["lm_head.weight"]}
    copies = {k: v for k, v in tensors().items() if not k.startswith("model")}
    last.write_bytes(safetensors_bytes({**copies, **extra, "model.norm.weight": np.ones(1)}))
    assert f"{last}: tensor 'model.norm.weight' also stands in" in refusal(directory)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "index is not the JSON expected"),
        ("[]", "expected '{'"),
        ("{}", "has no weight_map"),
        ('{"weight_map":{}}', "has no weight_map"),
        ('{"weight_map":{"a":1}}', "expected a string"),
        ('{"weight_map":{"a":"x","a":"y"}}', "duplicate key 'a'"),
        ('{"weight_map":{"a":"x"},"weight_map":{"a":"x"}}', "duplicate key 'weight_map'"),
        ('{"weight_map":{"a":"x"}} x', "expected nothing more"),
        ('{"metadata":[1,{"x":"{"},null,-1.5e3],"weight_map":{"a":"x"}}', "shard is missing"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str, words: str) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    (directory / INDEX).write_text(text)
    assert words in refusal(directory)


def test_an_index_above_its_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    monkeypatch.setattr(safetensors_dir, "MAX_INDEX_TENSORS", 4)
    assert "more than 4 members" in refusal(directory)
    monkeypatch.setattr(safetensors_dir, "MAX_INDEX_BYTES", 100)
    assert "above the limit of 100" in refusal(directory)


def test_an_ambiguous_directory_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    content = safetensors_bytes({"a": np.ones(1)})
    (directory / "model.safetensors").write_bytes(content)
    assert f"holds model.safetensors and an {INDEX}" in refusal(directory)
    (directory / "model.safetensors").rename(directory / "x.safetensors")
    open_checkpoint(directory).close()
    (directory / INDEX).unlink()
    assert "holds 3 safetensors files, but no model.safetensors" in refusal(directory)
    (directory / "x.safetensors").rename(directory / "other-00001-of-00002.safetensors")
    assert "holds shards of different sets" in refusal(directory)
    (directory / "other-00001-of-00002.safetensors").rename(
        directory / "model-00003-of-00002.safetensors"
    )
    assert "holds 3 shards numbered as if of 2" in refusal(directory)


def test_one_shard_given_alone_is_refused(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors(), shards=2)
    message = refusal(directory / "model-00001-of-00002.safetensors")
    assert f"is one shard of 2; give the directory {directory}" in message


def test_model_safetensors_is_taken_beside_other_files(tmp_path: Path) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, {"a": np.ones(2, np.float32)})
    (directory / "consolidated.safetensors").write_bytes(b"not opened")
    (directory / "._model.safetensors").write_bytes(b"not opened")
    with open_checkpoint(directory) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_a_single_file_of_another_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(safetensors_bytes({"a": np.ones(1)}))
    (tmp_path / "._weights.safetensors").write_bytes(b"not opened")
    with open_checkpoint(tmp_path) as checkpoint:
        assert [file.name for file in checkpoint.weight_files] == ["weights.safetensors"]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert "holds no safetensors or GGUF file" in refusal(tmp_path)
    assert "no such file" in refusal(tmp_path / "nope")
    assert str(tmp_path) in refusal(Path(f"{tmp_path}/a\0b"))
    assert str(tmp_path) in refusal(tmp_path / ("n" * 300))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert "holds 'pytorch_model.bin' but no safetensors" in refusal(tmp_path)
    assert "begins with b'PK'" in refusal(tmp_path / "pytorch_model.bin")
    os.mkfifo(tmp_path / "model.safetensors")
    assert "model.safetensors: is not a regular file" in refusal(tmp_path)
    assert "model.safetensors: is not a regular file" in refusal(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()
    assert "model.safetensors: is not a regular file" in refusal(tmp_path)
    (tmp_path / "model.safetensors").rmdir()
    (tmp_path / "model.safetensors").write_bytes(raw_file({}))
    assert "holds no tensors" in refusal(tmp_path)


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_safetensors_dir(tmp_path / "m", {}, tensors())

    def denied(path: Path, *_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    assert "model.safetensors: cannot open: Permission denied" in refusal(directory)


def sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


FULL = 99_000_000
Write = Callable[[Path], object]


def repeated(start: bytes, piece: bytes, size: int = FULL) -> Write:
    text = start + piece * ((size - len(start)) // len(piece))
    return lambda path: path.write_bytes(raw_file(text))


HOSTILE_HEADERS: dict[str, Callable[[], Write]] = {
    "length 2^63": lambda: lambda path: path.write_bytes(struct.pack("<Q", 1 << 63) + b"{}"),
    "length beyond": lambda: lambda path: sparse(path, struct.pack("<Q", 1 << 40), 1 << 33),
    "pointer": lambda: lambda path: path.write_bytes(POINTER),
    "zeros": lambda: lambda path: sparse(path, struct.pack("<Q", FULL), FULL + 8),
    "numbers": lambda: repeated(b'{"a":{"shape":[', b"1,"),
    "objects": lambda: repeated(b"", b'{"a":', 10_000_000),
    "escapes": lambda: repeated(b'{"', b"\\\\", 10_000_000),
    "metadata": lambda: repeated(b'{"__metadata__":{"a":"', b"\\n"),
    "spaces": lambda: repeated(b"{", b" "),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_hostile_headers_cost_little(tmp_path: Path, case: str) -> None:
    path = tmp_path / "model.safetensors"
    HOSTILE_HEADERS[case]()(path)
    measured = open_measured(tmp_path)
    path.unlink()
    assert measured.kind == "SourceError"
    assert measured.peak_mb < 200
    assert measured.seconds < 1
    assert measured.heavy_modules == []


def test_too_many_tensors_cost_little(tmp_path: Path) -> None:
    entry = '"%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(entry % number for number in range((1 << 17) + 2)) + "}"
    (tmp_path / "model.safetensors").write_bytes(raw_file(header.encode()))
    measured = open_measured(tmp_path)
    assert "more than 131072 tensors" in measured.message
    assert measured.peak_mb < 200
    assert measured.seconds < 1


def test_a_large_hostile_index_costs_little(tmp_path: Path) -> None:
    for piece in ("[1,", r"\"\\\\"):
        (tmp_path / INDEX).write_text('{"metadata":' + piece * (33_000_000 // len(piece)))
        measured = open_measured(tmp_path)
        assert measured.kind == "SourceError"
        assert measured.peak_mb < 200
        assert measured.seconds < 1


def _index_text() -> bytes:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": weight_map}).encode()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(position=st.integers(0, len(_index_text()) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_a_changed_index_raises_nothing_but_source_errors(
    tmp_path: Path, position: int, byte: int, cut: bool
) -> None:
    one = np.ones(1, np.float32)
    directory = write_safetensors_dir(tmp_path / "m", {}, {"a": one, "b": one}, shards=2)
    content = bytearray(_index_text())
    content[position] = byte
    (directory / INDEX).write_bytes(content[:position] if cut else content)
    try:
        with open_checkpoint(directory) as checkpoint:
            assert list(checkpoint.tensors) == ["a", "b"]
    except SourceError as error:
        assert "\n" not in str(error)
