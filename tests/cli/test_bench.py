"""``larql bench``: its answers to people and programs, its refusals, with peers that are fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from larql.format.container import Container
from tests.builders.containers import make_container
from tests.builders.models import LlamaSpec, write_llama_gguf, write_llama_safetensors

pytestmark = pytest.mark.slow(30)
Run = Callable[..., subprocess.CompletedProcess[str]]
FAKE = Path(__file__).parents[1] / "builders" / "bench_arm.py"
SHORT = ("--decode-tokens", "2", "--prefill", "3", "--repeats", "2")


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("gguf")
    return write_llama_gguf(at / "m.gguf", LlamaSpec(gguf_type="q4_1", tokenizer=True))


@pytest.fixture(scope="module")
def container(gguf: Path) -> Container:
    return make_container(gguf, gguf.with_name("m.vindex3"))


def fake(tmp_path: Path, behaviour: str = "well") -> dict[str, str]:
    """The environment in which peers are run by a program that only answers like one."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(0o755)
    log = tmp_path / "log"
    return {"LARQL_BENCH_PYTHON": str(program), "FAKE_ARM": f"peer|{log}|{behaviour}"}


def strict(text: str) -> dict[str, object]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(text, parse_constant=refuse)
    assert isinstance(document, dict)
    return document


def test_a_program_gets_one_strict_document(larql_process: Run, container: Container) -> None:
    process = larql_process("bench", container.path, *SHORT, "--json", "--threads", "2")
    assert process.returncode == 0, process.stderr
    found = strict(process.stdout)
    assert set(found) == {
        "model", "machine", "work", "arms", "floor", "reader", "load", "load_before", "load_after",
        "seconds", "notes", "provenance",
    }  # fmt: skip
    (own,) = found["arms"]  # type: ignore[misc]
    assert own["name"] == "larql f32"
    assert len(own["decode"]["values"]) == 2
    assert own["decode"]["minimum"] <= own["decode"]["median"] <= own["decode"]["maximum"]
    assert own["decode_ratio"] is None
    assert own["memory"]["peak"] >= own["memory"]["resident"] > 0
    assert found["work"]["threads"] == 2  # type: ignore[index]
    provenance = found["provenance"]
    assert provenance["container"]["fingerprint"] == container.fingerprint  # type: ignore[index]
    assert provenance["activations"] == "f32"  # type: ignore[index]
    assert provenance["prefault"] is False  # type: ignore[index]
    assert provenance["kv"] == "f32"  # type: ignore[index]


def test_it_measures_what_it_was_asked_for(larql_process: Run, container: Container) -> None:
    options = (*SHORT, "--json", "--activations", "q8", "--kv", "f16")
    found = strict(larql_process("bench", container.path, *options).stdout)
    provenance = found["provenance"]
    assert (provenance["activations"], provenance["kv"]) == ("q8", "f16")  # type: ignore[index]
    assert found["arms"][0]["name"] == "larql q8, kv f16"  # type: ignore[index]


def test_it_measures_what_exec_runs(larql_process: Run, container: Container) -> None:
    """The greedy tokens of the measured arm are those of the command that people use."""
    benched = strict(larql_process("bench", container.path, *SHORT, "--json", "--prefault").stdout)
    assert benched["provenance"]["prefault"] is True  # type: ignore[index]
    ids = benched["work"]["check_ids"]  # type: ignore[index]
    count = benched["work"]["check_steps"]  # type: ignore[index]
    listed = ",".join(map(str, ids))
    run = larql_process(
        "exec", container.path, "--tokens", listed, "--generate", str(count), "--json"
    )
    generated = strict(run.stdout)["generated"]
    assert isinstance(generated, list)
    own = benched["arms"][0]["greedy"]  # type: ignore[index]
    assert own[: len(generated)] == generated


def test_people_get_tables(
    larql_process: Run, container: Container, gguf: Path, tmp_path: Path
) -> None:
    arguments = ("--source", gguf, "--against", "llama.cpp", "--against", "transformers")
    process = larql_process("bench", container.path, *arguments, *SHORT, env=fake(tmp_path))
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    for part in ("times the floor", "GB/s", "decode, 2 tokens from context 1", "prefill, 3 tokens"):
        assert part in process.stdout
    assert sum(line.startswith("llama.cpp ") for line in lines) == 3
    assert sum(line.startswith("transformers ") for line in lines) == 3
    assert "differs at 0" in process.stdout
    assert "warning: llama.cpp chose another token than larql at greedy step 0" in process.stderr


def test_the_peer_is_told_what_larql_does(
    larql_process: Run, container: Container, gguf: Path, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@" > {tmp_path}/told\n')
    program.chmod(0o755)
    process = larql_process(
        "bench", container.path, "--source", gguf, "--against", "transformers-bf16", *SHORT,
        "--threads", "3", "--context", "70", env={"LARQL_BENCH_PYTHON": str(program)},
    )  # fmt: skip
    assert process.returncode == 2
    threads, child, engine, options = (tmp_path / "told").read_text().splitlines()
    assert threads == "3"
    assert Path(child).name == "child.py"
    assert Path(child).is_file()
    assert engine == "engine_transformers"
    assert json.loads(options) == {
        "model": str(gguf), "threads": 3, "room": 72, "dtype": "bfloat16",
    }  # fmt: skip


def test_a_source_needs_no_other_source(larql_process: Run, gguf: Path, tmp_path: Path) -> None:
    process = larql_process(
        "bench", gguf, "--against", "llama.cpp", *SHORT, "--json", env=fake(tmp_path)
    )
    assert process.returncode == 0, process.stderr
    _, peer = strict(process.stdout)["arms"]  # type: ignore[misc]
    assert peer["name"] == "llama.cpp"
    assert len(peer["decode_ratio"]["values"]) == 2


def refusal(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 2, process.stdout
    assert process.stdout == ""
    (line,) = process.stderr.splitlines()
    return line


def test_refusals(larql_process: Run, container: Container, gguf: Path, tmp_path: Path) -> None:
    at = container.path
    assert "expected one of llama.cpp, llama.cpp-flash, transformers" in refusal(
        larql_process("bench", at, "--against", "onnx", *SHORT)
    )
    assert "give --against with it" in refusal(larql_process("bench", at, "--source", gguf))
    assert "nothing is left to measure" in refusal(
        larql_process("bench", at, "--decode-tokens", "0", "--prefill", "0")
    )
    assert "with --source" in refusal(
        larql_process("bench", at, "--against", "llama.cpp", *SHORT, env=fake(tmp_path))
    )
    other = write_llama_gguf(tmp_path / "other.gguf", LlamaSpec(gguf_type="q4_1", seed=7))
    assert "give the same weights to every arm" in refusal(
        larql_process(
            "bench", at, "--source", other, "--against", "llama.cpp", *SHORT, env=fake(tmp_path)
        )
    )
    directory = write_llama_safetensors(tmp_path / "directory", LlamaSpec())
    assert "is not a GGUF file" in refusal(
        larql_process(
            "bench",
            make_container(directory, tmp_path / "d.vindex3").path,
            "--source",
            directory,
            "--against",
            "llama.cpp",
            *SHORT,
            env=fake(tmp_path),
        )
    )


def test_a_missing_peer_is_named(
    larql_process: Run, container: Container, gguf: Path, tmp_path: Path
) -> None:
    (tmp_path / "llama_cpp.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'llama_cpp'\", name='llama_cpp')"
    )
    line = refusal(
        larql_process(
            "bench",
            container.path,
            "--source",
            gguf,
            "--against",
            "llama.cpp",
            *SHORT,
            env={"PYTHONPATH": str(tmp_path), "LARQL_BENCH_PYTHON": ""},
        )
    )
    assert "llama.cpp: No module named 'llama_cpp'" in line
    assert "pip install 'larql-vindex3[bench]'" in line
    assert "LARQL_BENCH_PYTHON" in line


def test_an_interrupt_ends_all_processes(container: Container, gguf: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "larql", "bench", str(container.path)),
            *("--source", str(gguf), "--against", "llama.cpp", *SHORT),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **fake(tmp_path, "hang")},
    )
    log = tmp_path / "log"
    deadline = time.monotonic() + 120
    while not (log.exists() and "decode" in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    pid = int(log.read_text().split()[2])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
