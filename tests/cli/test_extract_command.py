"""``larql extract`` and ``larql pull``: what they make, and hostile input on every command."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.builders.containers import file_bytes, read_json, write_json
from tests.builders.models import LlamaSpec, write_llama_gguf, write_llama_safetensors
from tests.builders.safetensors import raw_file
from tests.cli.conftest import Run

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    f"oid sha256:{'4d7a' * 16}\nsize 4242424242\n"
)  # fmt: skip


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))  # noqa: PTH208 - hidden ones matter most


# What is made


def test_extract_says_what_it_made(models: Path, tmp_path: Path, cli: Run) -> None:
    answer = cli("extract", models / "llama.gguf", "-o", tmp_path / "m.vindex3").ok()
    assert answer.err == ""
    rows = dict(line.split(maxsplit=1) for line in answer.out.splitlines())
    assert rows["container"] == str(tmp_path / "m.vindex3")
    report = cli("show", tmp_path / "m.vindex3", "--json").ok().json
    assert rows["fingerprint"] == report["fingerprint"]
    again = cli("extract", models / "llama.gguf", "-o", tmp_path / "n.vindex3", "--json").ok().json
    assert list(again) == ["path", "fingerprint", "bytes", "notes", "left"]
    assert again["fingerprint"] == report["fingerprint"]
    contents = [file_bytes(tmp_path / name) for name in ("m.vindex3", "n.vindex3")]
    assert contents[0] == contents[1]
    assert again["bytes"] == sum(map(len, contents[0].values()))


def test_notes_are_told(models: Path, tmp_path: Path, cli: Run) -> None:
    answer = cli("extract", models / "gemma", "-o", tmp_path / "m").ok()
    assert answer.err.startswith("larql: warning: no tokenizer is carried: has no tokenizer.json")
    assert cli("extract", models / "gemma", "-o", tmp_path / "n", "--quiet").ok().err == ""
    assert file_bytes(tmp_path / "m") == file_bytes(tmp_path / "n")


@pytest.mark.parametrize("quant", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_quant(quant: str, models: Path, tmp_path: Path, cli: Run) -> None:
    """Rows of 64 are no whole blocks of 256: what is stored instead is told and recorded."""
    answer = cli("extract", models / "llama", "-o", tmp_path / "m", "--quant", quant).ok()
    report = cli("show", tmp_path / "m", "--json").ok().json
    encodings = {share["encoding"] for share in report["encodings"]}
    assert encodings == {"f32", {"q4_k": "q5_0", "q6_k": "q8_0"}.get(quant, quant)}
    assert ("instead of" in answer.err) == (quant in ("q4_k", "q6_k"))
    assert any("instead of" in note for note in report["notes"]) == (quant in ("q4_k", "q6_k"))
    cli("exec", tmp_path / "m", "--tokens", "1", "--backend", "reference").ok()


def test_the_source_may_go(tmp_path: Path, cli: Run) -> None:
    """A GGUF file alone in its directory gives a container with a tokenizer that stands alone."""
    (tmp_path / "alone").mkdir()
    source = write_llama_gguf(tmp_path / "alone" / "m.gguf", LlamaSpec(tokenizer=True, bos=True))
    cli("extract", source, "-o", tmp_path / "m").ok()
    before = cli("run", tmp_path / "m", "the", "-n", "5", "--json").ok().json
    shutil.rmtree(tmp_path / "alone")
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "m").rename(tmp_path / "elsewhere" / "other")
    after = cli("run", moved, "the", "-n", "5", "--json").ok().json
    assert after["generated"] == before["generated"]
    assert after["provenance"]["container"] == before["provenance"]["container"]


# Outputs


def test_an_existing_container_needs_force(models: Path, tmp_path: Path, cli: Run) -> None:
    out = tmp_path / "m.vindex3"
    cli("extract", models / "llama", "-o", out).ok()
    before = file_bytes(out)
    answer = cli("extract", models / "gemma", "-o", out)
    assert answer.status == 2
    assert answer.problem == (f"{out}: exists; give --force to replace it, or choose another path")
    assert file_bytes(out) == before
    cli("extract", models / "gemma", "-o", out, "--force").ok()
    assert read_json(out / "index.json")["family"] == "gemma3"
    assert names(tmp_path) == ["m.vindex3"]


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_what_is_not_ours_is_never_touched(
    force: list[str], models: Path, tmp_path: Path, cli: Run
) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.txt").write_text("years of work")
    (tmp_path / "file").write_text("also")
    (tmp_path / "link").symlink_to(foreign)
    for name in ("thesis", "file", "link"):
        answer = cli("extract", models / "llama", "-o", tmp_path / name, *force)
        assert answer.status == 2
        assert "exists and is not a container; it will not be replaced" in answer.problem
    assert file_bytes(foreign) == {"chapter.txt": b"years of work"}
    assert (tmp_path / "file").read_text() == "also"
    assert names(tmp_path) == ["file", "link", "thesis"]
    answer = cli("extract", models / "llama", "-o", tmp_path / "no" / "m", *force)
    assert "its parent directory does not exist" in answer.problem


def test_a_source_is_not_overwritten_by_its_container(tmp_path: Path, cli: Run) -> None:
    source = write_llama_safetensors(tmp_path / "m")
    before = file_bytes(source)
    for out in (source, tmp_path):
        answer = cli("extract", source, "-o", out, "--force")
        assert answer.status == 2
        assert "holds the source" in answer.problem
    assert file_bytes(source) == before


def test_an_extraction_that_may_not_write_so_much(models: Path, tmp_path: Path) -> None:
    """Out of file size: one line, nothing left, and it can be run again."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    arguments = ["extract", str(models / "llama"), "-o", str(tmp_path / "m")]
    done = subprocess.run(
        [sys.executable, "-m", "larql", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"larql: error: {tmp_path}/m: cannot write: the file would exceed the allowed file size; "
        "raise the limit (ulimit -f)\n"
    )
    assert names(tmp_path) == []


# Refusals


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{m}/llama"], "Missing option '--output'"),
        (["{m}/llama", "-o", "{t}/x", "--level", "all"], "--level: belongs to --generation v2"),
        (["{m}/llama", "-o", "{t}/x", "--ffn-layout", "flat"], "--ffn-layout: belongs to"),
        (["{m}/llama", "-o", "{t}/x", "--quant", "q5_0"], "q6_k"),
        (["{m}/llama.vindex3", "-o", "{t}/x"], "is a container already"),
        (["{t}/absent", "-o", "{t}/x"], "no such file or directory"),
        (["http://example.org/m.gguf", "-o", "{t}/x"], "unknown scheme"),
    ],
)
def test_what_is_refused(
    arguments: list[str], says: str, models: Path, tmp_path: Path, cli: Run
) -> None:
    answer = cli("extract", *(text.format(m=models, t=tmp_path) for text in arguments))
    assert answer.status == 2
    assert says in answer.problem
    assert names(tmp_path) == []


def test_a_key_that_may_change_the_computation_is_named(tmp_path: Path, cli: Run) -> None:
    source = write_llama_safetensors(tmp_path / "m", config={"logit_scale": 0.0625})
    for command in (["extract", source, "-o", tmp_path / "c"], ["exec", source, "--tokens", "1"]):
        answer = cli(*command, "--json")
        assert answer.status == 2
        assert f"{source}/config.json: " in answer.problem
        assert "logit_scale" in answer.problem
        assert answer.json["error"]["kind"] == "CompileError"
    source = write_llama_gguf(tmp_path / "m.gguf", metadata={"llama.logit_scale": 0.0625})
    answer = cli("extract", source, "-o", tmp_path / "c")
    assert "`llama.logit_scale`" in answer.problem
    assert names(tmp_path) == ["m", "m.gguf"]


# Hostile input


def cut(tmp_path: Path) -> Path:
    whole = write_llama_gguf(tmp_path / "m.gguf")
    with whole.open("r+b") as file:
        file.truncate(whole.stat().st_size // 2)
    return whole


def pointer(tmp_path: Path) -> Path:
    source = write_llama_safetensors(tmp_path / "m")
    (source / "model.safetensors").write_text(POINTER)
    return source


def gguf_pointer(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_text(POINTER)
    return tmp_path / "m.gguf"


def tokenizer_pointer(tmp_path: Path) -> Path:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(tokenizer=True))
    (source / "tokenizer.json").write_text(POINTER)
    return source


def weight_map(name: str) -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        source = write_llama_safetensors(tmp_path / "m", LlamaSpec(shards=2))
        index = read_json(source / "model.safetensors.index.json")
        first = next(iter(index["weight_map"]))
        index["weight_map"][first] = name
        write_json(source / "model.safetensors.index.json", index)
        return source

    return make


def missing_shard(tmp_path: Path) -> Path:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(shards=2))
    (source / "model-00002-of-00002.safetensors").unlink()
    return source


def header(text: str) -> Callable[[Path], Path]:
    def make(tmp_path: Path) -> Path:
        source = write_llama_safetensors(tmp_path / "m")
        (source / "model.safetensors").write_bytes(raw_file(text.encode(), b"\0" * 64))
        return source

    return make


def long_header(tmp_path: Path) -> Path:
    source = write_llama_safetensors(tmp_path / "m")
    (source / "model.safetensors").write_bytes((1 << 63).to_bytes(8, "little") + b"{}")
    return source


ENTRY = '{"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}'
HOSTILE = {
    "cut": (cut, "m.gguf"),
    "pointer": (pointer, "git lfs pull"),
    "gguf pointer": (gguf_pointer, "git lfs pull"),
    "tokenizer pointer": (tokenizer_pointer, "tokenizer.json: is a Git LFS pointer"),
    "up": (weight_map("../x.safetensors"), "../x.safetensors"),
    "absolute": (weight_map("/etc/passwd"), "/etc/passwd"),
    "nul": (weight_map("a\0b"), "a\\x00b"),
    "backslash": (weight_map("a\\b"), "a\\\\b"),
    "missing shard": (missing_shard, "model-00002-of-00002.safetensors"),
    "duplicate": (header(f'{{"a": {ENTRY}, "a": {ENTRY}}}'), "duplicate key"),
    "overlap": (header(f'{{"a": {ENTRY}, "b": {ENTRY}}}'), "model.safetensors"),
    "header length": (long_header, "model.safetensors"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_sources_are_refused_in_one_line(case: str, tmp_path: Path, cli: Run) -> None:
    make, says = HOSTILE[case]
    source = make(tmp_path)
    before = file_bytes(tmp_path)
    for command in (
        ["extract", source, "-o", tmp_path / "c"],
        ["show", source],
        ["exec", source, "--tokens", "1"],
        ["verify", source],
    ):
        answer = cli(*command)
        assert answer.status == 2, command
        assert says in answer.problem
        assert answer.out == ""
    assert file_bytes(tmp_path) == before


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", "a\\b", "segments/../../x"])
def test_a_container_that_names_files_outside_itself(
    name: str, llama: Path, tmp_path: Path, cli: Run
) -> None:
    at = tmp_path / "c.vindex3"
    shutil.copytree(llama, at)
    index = read_json(at / "index.json")
    index["files"][name] = index["files"]["tokenizer.json"]
    write_json(at / "index.json", index)
    for command in (["show"], ["exec", "--tokens", "1"], ["vindex3", "ops"]):
        answer = (
            cli(command[0], *command[1:2], at)
            if command[0] == "vindex3"
            else cli(command[0], at, *command[1:])
        )
        assert answer.status == 2
        assert "index.json" in answer.problem
    assert cli("verify", at).status == 1


def test_a_hostile_name_cannot_drive_the_terminal(tmp_path: Path, cli: Run) -> None:
    source = write_llama_gguf(
        tmp_path / "m.gguf", metadata={"general.name": "\x1b[31mred\u202e", "general.license": "\n"}
    )
    for command in (["extract", source, "-o", tmp_path / "c"], ["show", tmp_path / "c"]):
        for flags in ([], ["--json"]):
            extra = ["--force"] if command[0] == "extract" and flags else []
            answer = cli(*command, *flags, *extra).ok()
            assert "\x1b" not in answer.out + answer.err
            assert "\u202e" not in answer.out + answer.err
    assert cli("show", tmp_path / "c", "--json").json["model"] == "\x1b[31mred\u202e"


def test_memory_stays_small_before_a_hostile_header(
    tmp_path: Path, larql_process: Callable[..., CompletedProcess[str]]
) -> None:
    script = (
        "import sys, re; from pathlib import Path; from larql.cli.main import main\n"
        "status = main(sys.argv[1:])\n"
        "text = Path('/proc/self/status').read_text()\n"
        "print(status, re.search(r'VmHWM:\\s*(\\d+)', text)[1])"
    )
    for source in (long_header(tmp_path), gguf_pointer(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-c", script, "extract", str(source), "-o", str(tmp_path / "c")],
            capture_output=True,
            text=True,
            check=True,
        )
        status, peak = map(int, done.stdout.split())
        assert status == 2
        assert peak < 200_000


# pull


def test_pull_of_a_path_only_looks(models: Path, cli: Run) -> None:
    answer = cli("pull", models / "llama.gguf").ok()
    assert (answer.out, answer.err) == (f"{models / 'llama.gguf'}\n", "")
    report = cli("pull", models / "llama", "--json").ok().json
    assert report["kind"] == "checkpoint"
    assert {file["name"] for file in report["files"]} >= {"config.json", "model.safetensors"}
    assert json.dumps(report)
