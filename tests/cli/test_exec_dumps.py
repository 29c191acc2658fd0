"""``larql exec`` and its dumps: what is in them, what they hang on, and interruptions."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from larql import __version__
from larql.format.container import Container
from tests.builders.containers import copy_container, file_bytes, read_json
from tests.cli.conftest import Run

IDS = [1, 2, 3, 5, 8, 13, 21]
TOKENS = ("--tokens", ",".join(map(str, IDS)))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_dump(path: Path) -> Any:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".f32":
        return np.fromfile(path, "<f4").reshape(len(IDS), -1)
    return load_file(path)["logits"]


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_the_three_formats_hold_the_same_logits(
    backend: str, llama: Path, tmp_path: Path, cli: Run
) -> None:
    payloads, arrays = set(), []
    for suffix in ("npy", "f32", "safetensors"):
        path = tmp_path / f"a.{suffix}"
        report = (
            cli("exec", llama, *TOKENS, "--logit-dump", path, "--backend", backend, "--json")
            .ok()
            .json
        )
        assert report["logit_dump"] == str(path)
        assert report["sha256"] == sha256(path.read_bytes())
        assert report["sidecar"] == f"{path}.json"
        payloads.add(report["payload_sha256"])
        arrays.append(read_dump(path))
        assert arrays[-1].shape == (len(IDS), 256)
        best = report["top"][0]
        assert best["token"] == int(arrays[-1][-1].argmax())
        assert np.float32(best["logit"]) == arrays[-1][-1].max()
    assert payloads == {sha256(arrays[0].astype("<f4").tobytes())}
    assert all((array == arrays[0]).all() for array in arrays)
    expected = {f"a.{s}" for s in ("npy", "f32", "safetensors")}
    assert {path.name for path in tmp_path.iterdir()} == expected | {f"{n}.json" for n in expected}


def test_the_sidecar_says_where_the_numbers_come_from(
    llama: Path, tmp_path: Path, cli: Run
) -> None:
    path = tmp_path / "a.npy"
    report = cli(
        "exec", llama, *TOKENS, "--logit-dump", path, "--threads", "2", "--draft-depth", "2",
        "--json",
    ).ok().json  # fmt: skip
    sidecar = read_json(tmp_path / "a.npy.json")
    container = Container(llama)
    expected = {
        "kind": "logits",
        "shape": [len(IDS), 256],
        "sha256": report["sha256"],
        "payload_sha256": report["payload_sha256"],
        "component": "target",
        "backend": "production",
        "numerics": "float32 arithmetic, exact dequantised weights, float32 carrier",
        "activations": "f32",
        "kv": "f32",
        "draft_depth": 2,
        "executed_layers": [0, 1],
        "tokens": IDS,
        "tokens_sha256": sha256(np.array(IDS, "<i8").tobytes()),
        "positions": len(IDS),
        "vocab": 256,
        "context": len(IDS),
        "operand_reads": 2 + 2 * 9 + 1,
        "threads": 2,
        "max_format": "as-stored",
    }
    assert {key: sidecar.get(key) for key in expected} == expected
    assert sidecar["container"] == {
        "fingerprint": container.fingerprint,
        "profile": None,
        "model": container.index.model,
        "source": dict(container.index.source),
    }
    stored = sum(
        value.nbytes
        for name, value in container.operands.items()
        if not name.startswith("target.layer.002")
    )
    assert sidecar["operand_bytes"] == stored
    assert sidecar["prepare_seconds"] > 0
    assert sidecar["step_seconds"] > 0
    assert sidecar["environment"]["tool"] == f"larql {__version__}"
    assert {"python", "numpy", "numba", "llvmlite", "isa"} <= sidecar["environment"].keys()
    measured = {"resident_bytes", "resident_file_bytes", "peak_resident_bytes"}
    assert all(sidecar[name] > 10 << 20 for name in measured)
    others = {"container", "operand_bytes", "prepare_seconds", "step_seconds", "environment"}
    assert sidecar.keys() == expected.keys() | others | measured


@pytest.mark.parametrize("name", ["llama", "gemma"])
@pytest.mark.parametrize(
    ("backend", "threads"), [("production", (1, 2, 3, 16)), ("reference", (1,))]
)
def test_neither_threads_nor_chunks_nor_context_nor_depth_change_a_bit(
    name: str, backend: str, threads: tuple[int, ...], models: Path, tmp_path: Path, cli: Run
) -> None:
    container = models / f"{name}.vindex3"
    depth = str(Container(container).index.num_layers)
    variants = [
        *(("--threads", str(t), "--chunk", c) for t, c in itertools.product(threads, "13")),
        ("--chunk", "64"),
        ("--context", "100"),
        ("--draft-depth", depth),
        (),
    ]
    path = tmp_path / "a.npy"
    found = set()
    for variant in variants:
        options = (*TOKENS, "--backend", backend, *variant, "--logit-dump", path)
        cli("exec", container, *options).ok()
        found.add(path.read_bytes())
    assert len(found) == 1


def test_rounded_activations_have_bits_of_their_own(models: Path, tmp_path: Path, cli: Run) -> None:
    container = models / "llama.gguf.vindex3"
    found: dict[str, set[bytes]] = {"f32": set(), "q8": set()}
    path = tmp_path / "a.f32"
    for kind, dumps in found.items():
        for variant in ("--threads 1", "--threads 3 --chunk 1", "--chunk 3", "--draft-depth 3"):
            options = (*TOKENS, "--activations", kind, *variant.split(), "--logit-dump", path)
            cli("exec", container, *options).ok()
            dumps.add(path.read_bytes())
            assert read_json(tmp_path / "a.f32.json")["activations"] == kind
    assert [len(dumps) for dumps in found.values()] == [1, 1]
    assert found["f32"] != found["q8"]
    at = tmp_path / "planes"
    cli("exec", container, *TOKENS, "--activations", "q8", "--dump-layers", at).ok()
    assert (at / "logits.npy").read_bytes().endswith(path.read_bytes())
    answer = cli("exec", container, *TOKENS, "--dump-layers", at, "--resume")
    assert "was begun with another numerics" in answer.problem


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_rounded_keys_and_values_have_bits_of_their_own(
    backend: str, llama: Path, tmp_path: Path, cli: Run
) -> None:
    found: dict[str, set[bytes]] = {"f32": set(), "f16": set()}
    path = tmp_path / "a.f32"
    common = ("exec", llama, *TOKENS, "--backend", backend)
    for kind, dumps in found.items():
        for variant in ("--threads 1", "--threads 3 --chunk 1", "--chunk 3", "--draft-depth 3"):
            cli(*common, "--kv", kind, *variant.split(), "--logit-dump", path).ok()
            dumps.add(path.read_bytes())
            assert read_json(tmp_path / "a.f32.json")["kv"] == kind
    assert [len(dumps) for dumps in found.values()] == [1, 1]
    assert found["f32"] != found["f16"]
    at = tmp_path / "planes"
    cli(*common, "--kv", "f16", "--dump-layers", at).ok()
    assert read_json(at / "manifest.json")["kv"] == "f16"
    assert (at / "logits.npy").read_bytes().endswith(path.read_bytes())
    answer = cli(*common, "--dump-layers", at, "--resume")
    assert "was begun with another kv" in answer.problem


def test_a_shallower_draft_is_another_model(llama: Path, tmp_path: Path, cli: Run) -> None:
    dumps = []
    for depth in (1, 2, 3):
        path = tmp_path / f"d{depth}.npy"
        cli("exec", llama, *TOKENS, "--draft-depth", depth, "--logit-dump", path).ok()
        dumps.append(np.load(path))
        assert read_json(path.with_name(f"{path.name}.json"))["executed_layers"] == list(
            range(depth)
        )
    assert all(np.isfinite(dump).all() for dump in dumps)
    assert all((a != b).any() for a, b in itertools.combinations(dumps, 2))


def test_a_dump_does_not_hang_on_where_the_container_lies(
    llama: Path, tmp_path: Path, cli: Run
) -> None:
    elsewhere = copy_container(
        llama, tmp_path / "x" if (tmp_path / "x").mkdir() else tmp_path / "y"
    )
    reports = [
        cli("exec", at, *TOKENS, "--logit-dump", tmp_path / "a.npy", "--json").ok().json
        for at in (llama, elsewhere)
    ]
    assert reports[0]["sha256"] == reports[1]["sha256"]
    assert reports[0]["provenance"]["container"] == reports[1]["provenance"]["container"]


def test_a_dump_in_a_shell(llama: Path, tmp_path: Path) -> None:
    """The pipeline of the README."""
    larql = f"{shlex.quote(sys.executable)} -m larql"
    query = "jq -r .sha256"
    if shutil.which("jq") is None:
        program = "import json, sys; print(json.load(sys.stdin)['sha256'])"
        query = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)}"
    script = (
        f"set -e\n{larql} exec {shlex.quote(str(llama))} --tokens 1,2,3 --logit-dump a.npy --json"
        f" | {query}\nsha256sum a.npy | cut -d ' ' -f 1\n"
    )
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    printed, counted = done.stdout.split()
    assert printed == counted == sha256((tmp_path / "a.npy").read_bytes())
    assert done.stderr == ""


def test_an_output_that_cannot_be_written(llama: Path, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "a.npy.json").mkdir()
    answer = cli("exec", llama, *TOKENS, "--logit-dump", tmp_path / "a.npy")
    assert f"{tmp_path}/a.npy.json: is a directory" in answer.problem
    assert answer.out == ""


# Planes

KILL = """
import os, signal, sys
from pathlib import Path

when, number = sys.argv[1], int(sys.argv[2])
replace, calls = Path.replace, 0


def dying(self, target):
    global calls
    calls += 1
    if (when, calls) == ("before", number):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if (when, calls) == ("after", number):
        os.kill(os.getpid(), signal.SIGKILL)


Path.replace = dying
from larql.cli.main import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def whole(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken dump of planes."""
    from larql.cli.main import main

    at = tmp_path_factory.mktemp("whole") / "planes"
    assert main(["exec", str(models / "llama.vindex3"), *PLANES, str(at), "--json"]) == 0
    return at


PLANES = (*TOKENS, "--backend", "reference", "--dump-layers")


def test_planes(whole: Path, llama: Path, tmp_path: Path, cli: Run) -> None:
    names = {
        "run.json", "manifest.json", "plane_000.npy", "plane_001.npy", "plane_002.npy",
        "plane_003.npy", "final_norm.npy", "logits.npy",
    }  # fmt: skip
    sidecars = {f"{name}.json" for name in names if name.endswith(".npy")}
    assert {path.name for path in whole.iterdir()} == names | sidecars
    manifest = read_json(whole / "manifest.json")
    assert manifest["complete"] is True
    assert manifest["planes"] == 4
    dump = tmp_path / "a.npy"
    cli("exec", llama, *TOKENS, "--backend", "reference", "--logit-dump", dump).ok()
    assert (whole / "logits.npy").read_bytes() == dump.read_bytes()
    answer = cli("exec", llama, *PLANES, tmp_path / "again").ok()
    assert answer.err == ""
    for name, hashes in manifest["files"].items():
        assert f"{name}" in answer.out
        assert hashes["payload_sha256"] in answer.out


@pytest.mark.parametrize(
    ("when", "number", "resumed_at"),
    [
        ("before", 1, 0),  # nothing is there but an unfinished run.json
        ("after", 2, 0),  # the embedding without its sidecar
        ("before", 4, 0),  # the first layer not quite written
        ("after", 7, 2),
        ("before", 14, 3),  # all but the manifest
    ],
)
def test_a_dump_that_is_killed_goes_on(
    when: str, number: int, resumed_at: int, whole: Path, llama: Path, tmp_path: Path, cli: Run
) -> None:
    at = tmp_path / "planes"
    arguments = ["exec", str(llama), *PLANES, str(at)]
    done = subprocess.run(
        [sys.executable, "-c", KILL, when, str(number), *arguments],
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9
    assert not (at / "manifest.json").exists()
    report = cli(*arguments, "--resume", "--json").ok().json
    assert report["resumed_at"] == resumed_at
    assert read_json(at / "manifest.json")["files"] == report["files"]
    found, expected = file_bytes(at), file_bytes(whole)
    assert found.keys() == expected.keys()
    for name in expected:
        if name.endswith(".npy"):
            assert found[name] == expected[name], name


def test_what_a_dump_of_planes_refuses(whole: Path, llama: Path, tmp_path: Path, cli: Run) -> None:
    at = tmp_path / "planes"
    shutil.copytree(whole, at)
    before = file_bytes(at)
    other = ("--tokens", "1,2,4", *PLANES[2:])
    for arguments, says in (
        (PLANES, "is not empty; give --resume"),
        ((*other[:-1], "--resume", "--dump-layers"), "was begun with another tokens"),
        ((*TOKENS, "--resume", "--dump-layers"), "was begun with another backend"),
        ((*PLANES[:-1], "--draft-depth", "2", "--resume", "--dump-layers"), "executed_layers"),
    ):
        answer = cli("exec", llama, *arguments, at)
        assert answer.status == 2
        assert says in answer.problem
    assert file_bytes(at) == before
    answer = cli("exec", llama, *PLANES, tmp_path / "no" / "planes")
    assert "its parent directory does not exist" in answer.problem
    (tmp_path / "file").write_text("")
    answer = cli("exec", llama, *PLANES, tmp_path / "file")
    assert answer.status == 2
    (at / "plane_001.npy").write_bytes(before["plane_001.npy"][:-1] + b"\x00")
    answer = cli("exec", llama, *PLANES, at, "--resume")
    assert "plane_001.npy: is not the plane its sidecar describes" in answer.problem


def test_a_finished_dump_that_lost_a_plane_is_not_called_complete(
    whole: Path, llama: Path, tmp_path: Path
) -> None:
    at = tmp_path / "planes"
    shutil.copytree(whole, at)
    (at / "plane_002.npy").unlink()
    arguments = ["exec", str(llama), *PLANES, str(at), "--resume"]
    done = subprocess.run(
        [sys.executable, "-c", KILL, "before", "1", *arguments], capture_output=True, check=False
    )
    assert done.returncode == -9
    assert not (at / "manifest.json").exists()


def test_json_of_planes(llama: Path, tmp_path: Path, cli: Run) -> None:
    report = cli("exec", llama, *TOKENS, "--dump-layers", tmp_path / "d", "--json").ok().json
    assert report.keys() == {"directory", "manifest", "resumed_at", "files", "provenance"}
    assert json.loads(Path(report["manifest"]).read_text())["files"] == report["files"]
