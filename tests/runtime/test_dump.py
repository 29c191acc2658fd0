"""Dumps: what is written is what was computed, its hashes are true, nothing is half done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from larql.errors import OutputError, UsageError
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.provenance import sidecar_path, tokens_sha256, write_sidecar
from larql.runtime.dump import check_dump_path, write_dump
from larql.runtime.layer_dump import dump_layers
from larql.runtime.run import Run, RunOptions, open_run
from tests.builders.containers import flip_byte, read_json

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
TOKENS = [1, 2, 3, 5, 8, 13, 21]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("suffix", [".npy", ".f32", ".safetensors"])
def test_the_three_formats(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    hashes = write_dump(path, (4, 3), [ROWS[:1], ROWS[1:]])
    assert hashes.sha256 == sha256(path.read_bytes())
    assert hashes.payload_sha256 == sha256(ROWS.astype("<f4").tobytes())
    if suffix == ".npy":
        found = np.load(path)
    elif suffix == ".f32":
        found = np.fromfile(path, "<f4").reshape(4, 3)
    else:
        found = load_file(path)["logits"]
    assert found.dtype == np.float32
    assert (found == ROWS).all()
    assert list(tmp_path.iterdir()) == [path]


def test_every_nan_is_the_same_nan(tmp_path: Path) -> None:
    rows = np.array([[0x7F800001, 0xFFC12345, 0x3F800000]], np.uint32).view(np.float32)
    path = tmp_path / "a.f32"
    write_dump(path, (1, 3), [rows])
    assert path.read_bytes().hex() == "0000c07f0000c07f0000803f"
    assert rows.view(np.uint32)[0, 0] == 0x7F800001


def test_a_dump_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_dump(path, (4, 3), [ROWS])
    before = path.read_bytes()

    def breaks() -> Iterator[np.ndarray]:  # type: ignore[type-arg]
        yield ROWS[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dump(path, (4, 3), breaks())
    with pytest.raises(ValueError, match="2 rows were given, expected 4"):
        write_dump(path, (4, 3), [ROWS[:2]])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be_dumps(tmp_path: Path) -> None:
    (tmp_path / "d.npy").mkdir()
    for path, problem in (
        (tmp_path / "a.txt", "ends in .npy, .f32, .safetensors"),
        (tmp_path / "missing" / "a.npy", "does not exist"),
        (tmp_path / "d.npy", "is a directory"),
    ):
        with pytest.raises(UsageError, match=problem):
            check_dump_path(path)


def test_a_dump_may_go_to_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "a.f32"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_dump(pipe, (4, 3), [ROWS])
    assert os.read(reader, 1000) == ROWS.astype("<f4").tobytes()
    os.close(reader)


def test_a_sidecar_stands_beside_its_dump(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    write_sidecar(path, {"x": 1})
    assert sidecar_path(path) == tmp_path / "a.npy.json"
    assert read_json(tmp_path / "a.npy.json") == {"x": 1}
    with pytest.raises(OutputError):
        write_sidecar(tmp_path / "missing" / "a.npy", {})


def test_hash_of_tokens_is_that_of_64_bit_words() -> None:
    assert tokens_sha256([1, 2]) == sha256(np.array([1, 2], "<i8").tobytes())


@pytest.fixture
def run(containers: dict[str, Container], backend: str) -> Run:
    return open_run(containers["gemma"], RunOptions(backend=backend))


def test_planes_are_the_carriers_of_the_run(run: Run, tmp_path: Path) -> None:
    made = dump_layers(run, TOKENS, tmp_path / "d", resume=False, progress=SilentProgress())
    session = run.session(len(TOKENS))
    carrier = session.advance(TOKENS)
    depth = len(run.prepared.plan.layers)
    names = [f"plane_{k:03d}.npy" for k in range(depth + 1)]
    assert list(made.files) == [*names, "final_norm.npy", "logits.npy"]
    last = np.load(tmp_path / "d" / names[-1])
    assert last.tobytes() == carrier.tobytes()
    assert np.load(tmp_path / "d" / "logits.npy").tobytes() == session.logits(carrier).tobytes()
    draft = open_run(run.container, RunOptions(backend=run.options.backend, draft_depth=2))
    second = draft.session(len(TOKENS)).advance(TOKENS)
    assert np.load(tmp_path / "d" / names[2]).tobytes() == second.tobytes()
    manifest = read_json(tmp_path / "d" / "manifest.json")
    assert manifest["complete"] is True
    for name, hashes in made.files.items():
        assert manifest["files"][name]["sha256"] == hashes.sha256
        sidecar = read_json(tmp_path / "d" / f"{name}.json")
        assert sidecar["sha256"] == sha256((tmp_path / "d" / name).read_bytes())
        assert sidecar["tokens"] == TOKENS


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_resumed_dump_has_the_bits_of_an_unbroken_one(
    run: Run, tmp_path: Path, kept: int
) -> None:
    whole = dump_layers(run, TOKENS, tmp_path / "whole", resume=False, progress=SilentProgress())
    dump_layers(run, TOKENS, tmp_path / "broken", resume=False, progress=SilentProgress())
    for path in (tmp_path / "broken").iterdir():
        number = path.name[6:9]
        if path.name != "run.json" and (not number.isdigit() or int(number) >= kept):
            path.unlink()
    resumed = dump_layers(run, TOKENS, tmp_path / "broken", resume=True, progress=SilentProgress())
    assert resumed.resumed_at == max(0, kept - 1)
    assert resumed.files == whole.files


def test_resume_refuses_another_run(
    run: Run, containers: dict[str, Container], tmp_path: Path
) -> None:
    at = tmp_path / "d"
    dump_layers(run, TOKENS, at, resume=False, progress=SilentProgress())
    with pytest.raises(OutputError, match="--resume"):
        dump_layers(run, TOKENS, at, resume=False, progress=SilentProgress())
    with pytest.raises(UsageError, match="another tokens"):
        dump_layers(run, [*TOKENS[:-1], 9], at, resume=True, progress=SilentProgress())
    other = "reference" if run.options.backend == "production" else "production"
    for options, key in (
        (RunOptions(backend=other), "backend"),
        (RunOptions(backend=run.options.backend, draft_depth=2), "executed_layers"),
    ):
        with pytest.raises(UsageError, match=f"another {key}"):
            dump_layers(
                open_run(run.container, options), TOKENS, at, resume=True, progress=SilentProgress()
            )
    elsewhere = open_run(containers["llama"], RunOptions(backend=run.options.backend))
    with pytest.raises(UsageError, match="another container"):
        dump_layers(elsewhere, TOKENS, at, resume=True, progress=SilentProgress())


def test_resume_refuses_a_damaged_plane(run: Run, tmp_path: Path) -> None:
    at = tmp_path / "d"
    dump_layers(run, TOKENS, at, resume=False, progress=SilentProgress())
    for name in ("manifest.json", "logits.npy", "final_norm.npy"):
        (at / name).unlink()
    depth = len(run.prepared.plan.layers)
    flip_byte(at / f"plane_{depth:03d}.npy")
    with pytest.raises(UsageError, match="not the plane its sidecar describes"):
        dump_layers(run, TOKENS, at, resume=True, progress=SilentProgress())
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("keep me")
    with pytest.raises(UsageError, match=r"has no run\.json"):
        dump_layers(run, TOKENS, foreign, resume=True, progress=SilentProgress())
    assert (foreign / "notes.txt").read_text() == "keep me"


def test_provenance_is_strict_json_and_names_what_ran(run: Run) -> None:
    document = json.loads(json.dumps(run.provenance(TOKENS, 9), allow_nan=False))
    assert document["container"]["fingerprint"] == run.container.fingerprint
    assert document["executed_layers"] == list(range(6))
    assert document["tokens_sha256"] == tokens_sha256(TOKENS)
    assert document["operand_reads"] == run.prepared.reads
    assert document["max_format"] == "as-stored"


def test_an_unknown_format_cap_is_refused(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARQL_CPU_MAX_FORMAT", "q3")
    with pytest.raises(UsageError, match="LARQL_CPU_MAX_FORMAT is 'q3'"):
        open_run(containers["llama"], RunOptions(backend="reference"))


def test_sites_add_the_planes_after_attention(
    containers: dict[str, Container], tmp_path: Path, numerics: str
) -> None:
    """They are what an observer of one run over all layers sees; other planes stay as they are."""
    from larql.runtime.planes import read_planes

    backend, activations, kv = (*numerics.split(), "f32", "f32")[:3]
    options = RunOptions(backend=backend, chunk=3, activations=activations, kv=kv)
    run = open_run(containers["gemma"], options)
    plain, dumped = tmp_path / "plain", tmp_path / "sites"
    dump_layers(run, TOKENS, plain, resume=False, progress=SilentProgress())
    made = dump_layers(run, TOKENS, dumped, resume=False, progress=SilentProgress(), sites=True)
    planes = read_planes(run.prepared, TOKENS, None)
    layers = len(run.prepared.plan.layers)
    names = [f"plane_{k:03d}_attention.npy" for k in range(1, layers + 1)]
    assert [name for name in made.files if name.endswith("_attention.npy")] == names
    for name, expected in zip(names, planes.attention, strict=True):
        assert np.load(dumped / name).tobytes() == expected.tobytes()
    for path in sorted(plain.glob("*.npy")):
        assert (dumped / path.name).read_bytes() == path.read_bytes()
    for k, expected in enumerate(planes.layers):
        assert np.load(dumped / f"plane_{k:03d}.npy").tobytes() == expected.tobytes()
    assert np.load(dumped / "final_norm.npy").tobytes() == planes.final_norm.tobytes()
    assert np.load(dumped / "logits.npy").tobytes() == planes.logits.tobytes()
    assert set(read_json(dumped / "manifest.json")["files"]) == set(made.files)


def test_a_dump_of_sites_is_resumed_as_one(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    run = open_run(containers["llama"], RunOptions())
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for at in (whole, cut):
        dump_layers(run, TOKENS, at, resume=False, progress=SilentProgress(), sites=True)
    # Killed between the plane in the middle of the last layer and the one at its end.
    for name in ("manifest.json", "plane_003.npy", "plane_003.npy.json", "logits.npy"):
        (cut / name).unlink()
    with pytest.raises(UsageError, match="begun with another sites"):
        dump_layers(run, TOKENS, cut, resume=True, progress=SilentProgress())
    made = dump_layers(run, TOKENS, cut, resume=True, progress=SilentProgress(), sites=True)
    assert made.resumed_at == 2
    assert made.files.keys() == read_json(whole / "manifest.json")["files"].keys()
    for path in sorted(whole.glob("*.npy")):
        assert (cut / path.name).read_bytes() == path.read_bytes()
