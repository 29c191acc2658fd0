"""Extraction: the same bytes every time, whole or not at all, and never a tensor in memory."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors

from larql.errors import CompileError, LarqlError, OutputError, SourceError, UsageError
from larql.format.container import Container, verify_container
from larql.format.index import dump_json
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.extract import extract
from tests.builders.containers import extract_to, file_bytes, make_container, read_json
from tests.builders.gguf import Typed, u32
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    Scaling,
    llama_config,
    llama_weights,
    write_gemma_gguf,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.builders.zeros import write_zeros

T0 = LlamaSpec(tokenizer=True)
ONE = LlamaSpec(layers=1)


def defects(path: Path) -> list[str]:
    return [d.line() for d in verify_container(Container(path), SilentProgress())]


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))  # noqa: PTH208 - hidden ones matter most


def hashes(directory: Path) -> dict[str, str]:
    return {k: hashlib.sha256(v).hexdigest() for k, v in file_bytes(directory).items()}


# --- what a container is ----------------------------------------------------------------------


def test_t0_becomes_a_whole_container(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", T0)
    done = extract_to(source, tmp_path / "out")
    assert done.path == tmp_path / "out"
    assert defects(done.path) == []
    content = file_bytes(done.path)
    assert done.nbytes == sum(map(len, content.values()))
    assert done.fingerprint == hashlib.sha256(content["index.json"]).hexdigest()
    assert (done.notes, dict(done.left)) == ((), {})
    assert set(content) == {
        "index.json",
        "system_graph.json",
        "segments/target.embedding.safetensors",
        "segments/target.layer.000.safetensors",
        "segments/target.layer.001.safetensors",
        "segments/target.norms.safetensors",
        "segments/target.output_head.safetensors",
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
        "source_config.json",
    }
    assert content["source_config.json"] == (source / "config.json").read_bytes()
    assert content["tokenizer.json"] == (source / "tokenizer.json").read_bytes()


def test_the_index_says_where_everything_came_from(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(tokenizer=True, shards=2))
    index = make_container(source, tmp_path / "out").index
    assert (index.schema.number, index.family, index.authority) == (3, "llama", "canonical")
    assert (index.hidden_size, index.num_layers, index.components) == (64, 2, ("target",))
    assert (index.system_graph, index.moe_manifest) == ("system_graph.json", None)
    weights = llama_weights(T0)
    assert len(index.representations) == len(weights)
    for key, representation in index.representations.items():
        assert key == representation.id == representation.operand
        data = weights[representation.source.tensor].tobytes()
        assert representation.source.sha256 == hashlib.sha256(data).hexdigest()
        assert (representation.fidelity, representation.requested) == ("source-exact", None)
        assert representation.segment == f"segments/{key.split('/')[0]}.safetensors"
    shards = sorted(source.glob("*.safetensors"))
    assert index.source["weights"] == [
        {"size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in shards
    ]
    assert index.precision_map == {"f32": sum(w.size for w in weights.values())}
    assert index.text == {"end_of_text_ids": [2, 0]}


def test_the_bytes_of_every_tensor_are_the_checkpoints_own(tmp_path: Path) -> None:
    spec = LlamaSpec(hidden=256, ffn=256, layers=1, gguf_type="q4_k", scaling=Scaling("llama3", 8))
    source = write_llama_gguf(tmp_path / "m.gguf", spec)
    container = make_container(source, tmp_path / "out")
    with open_checkpoint(source) as checkpoint:
        for representation in container.index.representations.values():
            segment = container.segment(representation.segment)
            expected = checkpoint.read(representation.source.tensor).tobytes()
            assert segment.bytes_of(representation.tensor).tobytes() == expected
    assert {r.encoding.name for r in container.index.representations.values()} == {"f32", "q4_k"}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_segments_open_in_any_safetensors_tool(tmp_path: Path, dtype: Any) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1, dtype=dtype))
    out = make_container(source, tmp_path / "out").path
    with safetensors.safe_open(
        out / "segments" / "target.layer.000.safetensors", framework="np"
    ) as file:
        found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        assert found["attention.q.weight"].get_dtype() == dtype.upper()
        assert found["attention.q.weight"].get_shape() == [64, 64]


def test_all_json_is_canonical(tmp_path: Path) -> None:
    out = make_container(write_llama_safetensors(tmp_path / "m", T0), tmp_path / "out").path
    for name in ("index.json", "system_graph.json"):
        raw = (out / name).read_bytes()
        assert dump_json(json.loads(raw)) == raw
    assert list(read_json(out / "index.json")["files"]) == sorted(
        name for name in file_bytes(out) if name != "index.json"
    )


# --- determinism ------------------------------------------------------------------------------

Writer = Callable[[Path], Path]
SOURCES: dict[str, Writer] = {
    "llama": lambda path: write_llama_safetensors(path, T0),
    "llama-no-tokenizer": lambda path: write_llama_safetensors(path, ONE),
    "llama-gguf": lambda path: write_llama_gguf(path.with_suffix(".gguf"), T0),
    "llama-gguf-no-tokenizer": lambda path: write_llama_gguf(path.with_suffix(".gguf"), ONE),
    "llama-gguf-odd-tokenizer": lambda path: write_llama_gguf(
        path.with_suffix(".gguf"), T0, metadata={"tokenizer.ggml.pre": "of my own"}
    ),
    "llama-tied": lambda path: write_llama_safetensors(
        path,
        LlamaSpec(layers=1, tied=True),
        extra={"lm_head.weight": llama_weights(ONE)["lm_head.weight"]},
    ),
    "gemma": lambda path: write_gemma_safetensors(path, GemmaSpec(nested=True, shards=3)),
    "gemma-gguf": lambda path: write_gemma_gguf(
        path.with_suffix(".gguf"), GemmaSpec(tokenizer=True)
    ),
}


@pytest.mark.parametrize("quant", [None, "q8_0"])
@pytest.mark.parametrize("kind", SOURCES)
def test_extracting_twice_gives_the_same_bytes(
    tmp_path: Path, kind: str, quant: str | None
) -> None:
    """From another place, under another name, in another order of time, to another place."""
    write = SOURCES[kind]
    (tmp_path / "first").mkdir()
    (tmp_path / "second place" / "deeper").mkdir(parents=True)
    first = write(tmp_path / "first" / "model")
    second = write(tmp_path / "second place" / "deeper" / "quite another name")
    os.utime(second, (1, 1))
    extract_to(first, tmp_path / "a.vindex3", quant=quant)
    extract_to(second, tmp_path / "second place" / "b", quant=quant)
    assert hashes(tmp_path / "a.vindex3") == hashes(tmp_path / "second place" / "b")


def test_a_process_of_its_own_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES["llama"](tmp_path / "model")
    extract_to(source, tmp_path / "a")
    monkeypatch.chdir(source)
    run_script(EXTRACT, ".", tmp_path / "b", env={"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"})
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_nothing_of_the_place_is_recorded(tmp_path: Path) -> None:
    place = tmp_path / "a-place-that-nobody-knows"
    place.mkdir()
    for kind, write in SOURCES.items():
        out = tmp_path / f"{kind}.vindex3"
        extract_to(write(place / "a-name-that-nobody-knows"), out)
        for name, data in file_bytes(out).items():
            assert b"nobody-knows" not in data, (kind, name)
            assert os.uname().nodename.encode() not in data or len(os.uname().nodename) < 6
        shutil.rmtree(place)
        place.mkdir()


def test_the_container_outlives_its_source(tmp_path: Path) -> None:
    from larql.runtime.run import RunOptions, open_run

    source = write_llama_gguf(tmp_path / "m.gguf", T0)
    extract_to(source, tmp_path / "out")
    source.unlink()
    run = open_run(Container(tmp_path / "out"), RunOptions(backend="reference"))
    assert run.session(4).step([1, 2]).shape == (256,)


# --- text files -------------------------------------------------------------------------------


def test_both_formats_carry_one_tokenizer(tmp_path: Path) -> None:
    import tokenizers

    spec = LlamaSpec(layers=1, tokenizer=True, bos=True)
    texts = ("The one on the rein", "ä 🦙\n\n", "<|im_start|>user\n", " 1234")
    found = []
    for source in (
        write_llama_safetensors(tmp_path / "m", spec),
        write_llama_gguf(tmp_path / "m.gguf", spec),
    ):
        out = make_container(source, tmp_path / f"{source.name}.out").path
        tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
        ids = [tokenizer.encode(text).ids for text in texts]
        assert all(first == 0 and max(rest) < 256 for first, *rest in ids)
        found.append(ids)
        config = read_json(out / "generation_config.json")
        assert sorted(config["eos_token_id"]) == [0, 2]
    assert found[0] == found[1]


def test_a_checkpoint_without_a_tokenizer_is_extracted_with_a_warning(tmp_path: Path) -> None:
    for source in (
        write_llama_safetensors(tmp_path / "m", ONE),
        write_llama_gguf(tmp_path / "m.gguf", ONE),
        write_llama_gguf(tmp_path / "n.gguf", T0, metadata={"tokenizer.ggml.pre": "odd"}),
    ):
        done = extract_to(source, tmp_path / f"{source.name}.out")
        (note,) = done.notes
        assert note.startswith("warning: no tokenizer is carried: ")
        assert str(tmp_path) not in note
        assert "tokenizer.json" not in Container(done.path).text_files()
        assert defects(done.path) == []


def test_the_other_text_files_are_carried_without_a_tokenizer(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", T0)
    (source / "tokenizer.json").unlink()
    done = extract_to(source, tmp_path / "out")
    assert set(Container(done.path).text_files()) == {
        "generation_config.json",
        "source_config.json",
        "tokenizer_config.json",
    }


def test_a_hostile_vocabulary_is_no_crash(tmp_path: Path) -> None:
    hostile: dict[str, object] = {
        "token_type": Typed("i32", [99] * 256),
        "tokens": ["same"] * 256,
        "merges": ["no-space"],
    }
    for key, value in hostile.items():
        metadata = {f"tokenizer.ggml.{key}": value}
        source = write_llama_gguf(tmp_path / f"{key}.gguf", T0, metadata=metadata)
        done = extract_to(source, tmp_path / f"{key}.out")
        assert any(note.startswith("warning: no tokenizer") for note in done.notes)


@pytest.mark.parametrize("ids", [-5, "x", [2, -1], True])
def test_an_end_id_that_is_no_token_is_refused(tmp_path: Path, ids: object) -> None:
    source = write_llama_safetensors(tmp_path / "m", T0, config={"eos_token_id": ids})
    with pytest.raises(CompileError, match=r"`eos_token_id` is .*expected token ids from 0 to 255"):
        extract_to(source, tmp_path / "out")


@pytest.mark.parametrize("ids", [300, [7, 256]])
def test_an_end_id_beyond_the_vocabulary_is_told(tmp_path: Path, ids: object) -> None:
    source = write_llama_safetensors(tmp_path / "m", T0, config={"eos_token_id": ids})
    done = extract_to(source, tmp_path / "out")
    assert any("the vocabulary of 256 does not have" in note for note in done.notes)
    kept = read_json(tmp_path / "out" / "index.json")["text"]["end_of_text_ids"]
    assert kept == ([7, 2, 0] if isinstance(ids, list) else [2, 0])


def test_a_key_of_the_tokenizer_that_nobody_knows_is_told(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eos_token_iX": u32(2)}
    source = write_llama_gguf(tmp_path / "m.gguf", T0, metadata=metadata)
    notes = extract_to(source, tmp_path / "out").notes
    assert any("`tokenizer.ggml.eos_token_iX` is unknown" in note for note in notes)


@pytest.mark.parametrize("text", ['{"version":', "{}", "[]", "", '{"model": 1'])
def test_a_tokenizer_that_cannot_be_one_is_told_and_left(tmp_path: Path, text: str) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(tokenizer=True))
    (source / "tokenizer.json").write_text(text)
    done = extract_to(source, tmp_path / "out")
    assert any(note.startswith("warning: no tokenizer is carried") for note in done.notes)
    assert not (tmp_path / "out" / "tokenizer.json").exists()


# --- refusals ---------------------------------------------------------------------------------


def refused(
    source: Path,
    output: Path,
    kind: type[LarqlError],
    *,
    quant: str | None = None,
    force: bool = False,
) -> str:
    before = names(output.parent) if output.parent.is_dir() else None
    with pytest.raises(kind) as caught:
        extract_to(source, output, quant=quant, force=force)
    assert "\n" not in str(caught.value)
    assert before is None or names(output.parent) == before, "nothing is left behind"
    return str(caught.value)


def test_what_does_not_compile_leaves_nothing(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE, config={"clamp": 1.0})
    assert "`clamp`" in refused(source, tmp_path / "out", CompileError)


def test_a_tensor_that_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    import numpy as np

    from tests.builders.safetensors import write_safetensors_dir

    tensors = {**llama_weights(ONE), "model.norm.weight": np.ones(64, np.int32)}
    source = write_safetensors_dir(tmp_path / "m", llama_config(ONE), tensors)
    assert "model.norm.weight" in refused(source, tmp_path / "out", LarqlError)


def test_a_source_that_shrinks_leaves_nothing(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    weights = source / "model.safetensors"
    with open_checkpoint(source) as checkpoint:
        with weights.open("rb+") as stream:
            stream.truncate(weights.stat().st_size // 2)
        with pytest.raises(SourceError, match="changed since its header was read"):
            extract(
                checkpoint, tmp_path / "out", quant=None, force=False, progress=SilentProgress()
            )
    assert names(tmp_path) == ["m"]


@pytest.mark.parametrize("quant", ["f32", "q5_k", "", "Q8_0", "../x"])
def test_an_unknown_encoding_is_refused_whatever_is_stored(tmp_path: Path, quant: str) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    message = refused(source, tmp_path / "out", UsageError, quant=quant)
    assert "expected one of q8_0, q4_0, q4_k, q6_k" in message


def test_an_existing_container_needs_force(tmp_path: Path) -> None:
    first = write_llama_safetensors(tmp_path / "m", ONE)
    second = write_llama_safetensors(tmp_path / "n", LlamaSpec(layers=1, seed=1))
    before = extract_to(first, tmp_path / "out").fingerprint
    assert "give --force" in refused(second, tmp_path / "out", OutputError)
    assert Container(tmp_path / "out").fingerprint == before
    (tmp_path / "out" / "left over").write_text("x")
    after = extract_to(second, tmp_path / "out", force=True).fingerprint
    assert after != before
    assert Container(tmp_path / "out").fingerprint == after
    assert not (tmp_path / "out" / "left over").exists()
    assert names(tmp_path) == ["m", "n", "out"]


def test_a_failed_replacement_leaves_the_old_container(tmp_path: Path) -> None:
    good = write_llama_safetensors(tmp_path / "m", ONE)
    bad = write_llama_safetensors(tmp_path / "n", ONE, config={"clamp": 1.0})
    before = extract_to(good, tmp_path / "out").fingerprint
    refused(bad, tmp_path / "out", CompileError, force=True)
    assert Container(tmp_path / "out").fingerprint == before
    assert defects(tmp_path / "out") == []


def test_a_damaged_container_may_be_replaced(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    extract_to(source, tmp_path / "out")
    for path in (tmp_path / "out" / "segments").iterdir():
        path.unlink()
    extract_to(source, tmp_path / "out", force=True)
    assert defects(tmp_path / "out") == []


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        {"thesis.txt": "years of work"},
        {"index.json": '{"version": 1, "name": "of another program"}'},
        {"index.json": '{"model": "m", "hidden_size": 1, "num_layers": 1}'},
        {"index.json": "not json"},
        {".hidden": ""},
    ],
)
def test_a_foreign_directory_is_never_replaced(
    tmp_path: Path, content: dict[str, str], force: bool
) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    out = tmp_path / "out"
    out.mkdir()
    for name, text in content.items():
        (out / name).write_text(text)
    assert "it will not be replaced" in refused(source, out, OutputError, force=force)
    assert {name: data.decode() for name, data in file_bytes(out).items()} == content


@pytest.mark.parametrize("force", [False, True])
def test_the_output_never_holds_the_source(tmp_path: Path, force: bool) -> None:
    (tmp_path / "models" / "hub").mkdir(parents=True)
    directory = write_llama_safetensors(tmp_path / "models" / "m", ONE)
    file = write_llama_gguf(tmp_path / "models" / "hub" / "m.gguf", ONE)
    (tmp_path / "link").symlink_to(tmp_path / "models")
    (tmp_path / "linked").mkdir()
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "linked" / name).symlink_to(directory / name)
    for source, output in (
        (directory, directory),
        (directory, tmp_path / "models"),
        (directory, tmp_path / "link" / "m"),
        (directory, tmp_path / "link"),
        (tmp_path / "linked", directory),
        (file, file),
        (file, file.parent),
        (file, tmp_path / "models"),
        (tmp_path / "link" / "hub" / "m.gguf", file.parent),
    ):
        before = hashes(tmp_path / "models")
        message = refused(source, output, OutputError, force=force)
        assert "holds the source" in message
        assert hashes(tmp_path / "models") == before


def test_the_output_may_stand_beside_or_inside_the_source(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    extract_to(source, source / "m.vindex3")
    assert defects(source / "m.vindex3") == []
    before = hashes(source / "m.vindex3")
    extract_to(source, source / "m.vindex3", force=True)
    assert hashes(source / "m.vindex3") == before


# --- killed, limited, and small ---------------------------------------------------------------

EXTRACT = """
import re, sys
from pathlib import Path
from larql.errors import LarqlError
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.extract import extract
SETUP
quant = sys.argv[3] if len(sys.argv) > 3 else None
try:
    with open_checkpoint(Path(sys.argv[1])) as checkpoint:
        extract(checkpoint, Path(sys.argv[2]), quant=quant, force=True, progress=SilentProgress())
except LarqlError as error:
    print(error)
peak = re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())
print(int(peak[1]) // 1024)
"""
SLOWLY = """
import time
from larql.format.source.weight_file import WeightFile
chunks = WeightFile.chunks
def slowly(self, offset, nbytes, size):
    for chunk in chunks(self, offset, nbytes, size):
        time.sleep(0.05)
        yield chunk
WeightFile.chunks = slowly
"""


def script(setup: str = "") -> str:
    return EXTRACT.replace("SETUP", setup)


def run_script(text: str, *arguments: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text.replace("SETUP", ""), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(env or {})},
    )
    return done.stdout


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("until", ["begun", "first segment", "last segment"])
def test_a_killed_extraction_leaves_nothing_that_opens(
    tmp_path: Path, until: str, replaces: bool
) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    out = tmp_path / "out"
    old = extract_to(write_llama_safetensors(tmp_path / "old", T0), out) if replaces else None
    wanted = {
        "begun": "segments",
        "first segment": "segments/target.embedding.safetensors",
        "last segment": "segments/target.output_head.safetensors",
    }[until]
    process = subprocess.Popen([sys.executable, "-c", script(SLOWLY), str(source), str(out)])
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(f".out.tmp-*/{wanted}")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (left,) = tmp_path.glob(".out.tmp-*")
    with pytest.raises(LarqlError, match=r"index\.json: no such file"):
        Container(left)
    if old is None:
        assert not out.exists()
    else:
        assert Container(out).fingerprint == old.fingerprint
    extract_to(source, out, force=replaces)
    assert defects(out) == []


def test_a_limit_on_file_size_leaves_nothing(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))"
    done = subprocess.run(
        [sys.executable, "-c", script(limit), str(source), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"{tmp_path / 'out'}: cannot write: ")
    assert "allowed file size" in done.stdout
    assert names(tmp_path) == ["m"]
    extract_to(source, tmp_path / "out")
    assert defects(tmp_path / "out") == []


def test_a_parent_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", ONE)
    (tmp_path / "loop").symlink_to("loop")
    for output, words in (
        (tmp_path / "loop", "it will not be replaced"),
        (tmp_path / "loop" / "out", "symbolic links"),
        (tmp_path / ("n" * 300), "name is too long"),
        (tmp_path / "missing" / "out", "parent directory does not exist"),
        (source / "config.json" / "out", "parent is not a directory"),
        (Path("/sys/larql-test"), "cannot write"),
    ):
        assert words in refused(source, output, OutputError)


@pytest.mark.parametrize("quant", [None, "q8_0"])
def test_extraction_takes_the_memory_of_a_piece_of_a_tensor(
    tmp_path: Path, quant: str | None
) -> None:
    source = write_zeros(tmp_path / "m", 200)
    peak = int(run_script(EXTRACT, source, tmp_path / "out", *([quant] if quant else [])))
    size = sum(p.stat().st_size for p in (tmp_path / "out").rglob("*"))
    shutil.rmtree(tmp_path / "out")
    assert size > (50 << 20 if quant else 200 << 20)
    assert peak < (90 if quant else 70), "megabytes"


def test_a_checkpoint_directorys_licence_goes_with_it(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "model", LlamaSpec(tokenizer=True))
    (source / "LICENSE").write_text("do what is right")
    (source / "NOTICE").write_text("made here")
    container = make_container(source, tmp_path / "m.vindex3")
    assert (container.path / "LICENSE").read_text() == "do what is right"
    assert {"LICENSE", "NOTICE"} <= set(container.index.files)
    assert verify_container(container, SilentProgress()) == []


def test_what_lies_beside_a_gguf_file_is_not_its_licence(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "model.gguf", LlamaSpec())
    (tmp_path / "LICENSE").write_text("of something else")
    assert "LICENSE" not in make_container(path, tmp_path / "m.vindex3").index.files
