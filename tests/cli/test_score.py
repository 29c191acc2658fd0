"""``larql vindex3 score``: two dumps held to each other and to their sidecars."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.builders.containers import read_json
from tests.cli.conftest import Run
from tests.naive import divergence

IDS = [1, 2, 3, 5, 8, 13, 21]
TOKENS = ("--tokens", ",".join(map(str, IDS)))


@pytest.fixture(scope="module")
def made(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of one model: ``full`` in three formats, ``d2.npy``, ``q8.npy``, ``f16.npy`` …"""
    from larql.cli.main import main

    at = tmp_path_factory.mktemp("dumps")
    model = str(models / "llama.gguf.vindex3")
    for name, options in {
        "full.npy": (),
        "full.f32": (),
        "full.safetensors": (),
        "again.npy": ("--draft-depth", "3", "--threads", "2", "--chunk", "2", "--context", "40"),
        "d2.npy": ("--draft-depth", "2"),
        "d2.safetensors": ("--draft-depth", "2"),
        "q8.npy": ("--activations", "q8"),
        "f16.npy": ("--kv", "f16"),
        "reference.npy": ("--backend", "reference"),
    }.items():
        arguments = ["exec", model, *TOKENS, *options, "--logit-dump", str(at / name), "--quiet"]
        assert main(arguments) == 0
    return at


def copied(made: Path, name: str, to: Path, **fields: object) -> Path:
    """Copy a dump, with other fields in its sidecar; None takes one out."""
    shutil.copy(made / name, to / name)
    sidecar = {**read_json(made / f"{name}.json"), **fields}
    kept = {key: value for key, value in sidecar.items() if value is not None}
    (to / f"{name}.json").write_text(json.dumps(kept))
    return to / name


@pytest.mark.parametrize("suffix", ["npy", "f32", "safetensors"])
def test_every_position_is_scored(made: Path, cli: Run, suffix: str) -> None:
    draft = made / ("d2.safetensors" if suffix == "safetensors" else "d2.npy")
    found = cli("vindex3", "score", made / f"full.{suffix}", draft, "--json").ok().json
    target, ours = np.load(made / "full.npy"), np.load(made / "d2.npy")
    per = found["per_position"]
    for t, following in enumerate([*IDS[1:], -1]):
        expected = divergence.score(target[t], ours[t], following)
        assert per["divergence"][t] == pytest.approx(expected.divergence, rel=1e-9)
        assert per["rank"][t] == expected.rank
        assert per["target_top"][t] == expected.target_top
        assert per["draft_top"][t] == expected.draft_top
        if expected.draft_nll is not None:
            assert per["draft_nll"][t] == pytest.approx(expected.draft_nll)
        else:
            assert per["draft_nll"][t] is per["target_nll"][t] is None
    assert found["summary"]["positions"] == len(IDS)
    assert found["summary"]["next_token"]["positions"] == len(IDS) - 1
    assert found["summary"]["divergence"]["value"] == pytest.approx(np.mean(per["divergence"]))
    assert (found["target"]["depth"], found["draft"]["depth"]) == (3, 2)
    assert found["compared"] == "depth"


def test_a_model_is_no_distance_from_itself(made: Path, cli: Run) -> None:
    found = cli("vindex3", "score", made / "full.npy", made / "again.npy", "--json").ok().json
    assert found["per_position"]["divergence"] == [0.0] * len(IDS)
    assert found["per_position"]["rank"] == [1] * len(IDS)
    summary = found["summary"]
    assert summary["same_top"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert summary["next_token"]["rms_delta_p"]["value"] == 0.0
    assert summary["next_token"]["perplexity_ratio"]["value"] == 1.0


def test_what_people_read(made: Path, cli: Run) -> None:
    text = cli("vindex3", "score", made / "full.npy", made / "d2.npy", "--per-position").ok().out
    assert "KL(target‖draft), nats" in text and "RMS Δp" in text and "(depth 2)" in text
    assert sum(line.split()[:1] == [str(t)] for t in range(7) for line in text.splitlines()) == 7
    short = cli("vindex3", "score", made / "full.npy", made / "d2.npy").ok().out
    assert text.endswith(short) and "target nll" not in short


@pytest.mark.parametrize(
    ("name", "subject"),
    [("q8.npy", "activations"), ("f16.npy", "kv"), ("reference.npy", "backend")],
)
def test_one_thing_may_differ_if_it_is_named(made: Path, cli: Run, name: str, subject: str) -> None:
    arms = (made / "full.npy", made / name)
    found = cli("vindex3", "score", *arms, "--compare", subject, "--json").ok().json
    assert found["target"][subject] != found["draft"][subject]
    assert found["summary"]["divergence"]["value"] > 0
    for other in ("depth", "container", "backend", "activations", "kv"):
        if other != subject:
            problem = cli("vindex3", "score", *arms, "--compare", other).problem
            assert f"compared by {other} may differ in nothing else" in problem
            assert name in problem


ELSE: dict[str, Callable[[Any], object]] = {
    "container": lambda old: {**old, "fingerprint": "0" * 64},
    "profile": lambda old: {**old, "profile": "small"},
    "component": lambda old: "other",
    "backend": lambda old: "reference",
    "numerics": lambda old: "another",
    "activations": lambda old: "q8",
    "kv": lambda old: "f16",
    "max_format": lambda old: "f32",
    "tokens": lambda old: [*old[:-1], 22],
    "rope_list": lambda old: "long",
}


@pytest.mark.parametrize("field", ELSE)
def test_arms_that_differ_in_anything_else_are_refused(
    made: Path, tmp_path: Path, cli: Run, field: str
) -> None:
    change, field = ELSE[field], "container" if field == "profile" else field
    old = read_json(made / "d2.npy.json").get(field)
    draft = copied(made, "d2.npy", tmp_path, **{field: change(old)})
    problem = cli("vindex3", "score", made / "full.npy", draft).problem
    assert f"its sidecar's {field} is" in problem and str(draft) in problem


@pytest.mark.parametrize("name", ["tool", "numpy", "python", "isa"])
def test_versions_count_where_they_decide_bits(
    made: Path, tmp_path: Path, cli: Run, name: str
) -> None:
    environment = {**read_json(made / "d2.npy.json")["environment"], name: "another"}
    draft = copied(made, "d2.npy", tmp_path, environment=environment)
    answer = cli("vindex3", "score", made / "full.npy", draft)
    if name == "tool":
        assert "environment.tool" in answer.problem
    else:
        answer.ok()
    old = read_json(made / "reference.npy.json")["environment"]
    again = copied(made, "reference.npy", tmp_path, environment={**old, name: "another"})
    answer = cli("vindex3", "score", made / "reference.npy", again)
    if name in ("tool", "numpy"):
        assert f"environment.{name}" in answer.problem
    else:
        answer.ok()


def test_dumps_of_other_lengths_are_refused(
    made: Path, models: Path, tmp_path: Path, cli: Run
) -> None:
    model = models / "llama.gguf.vindex3"
    cli("exec", model, "--tokens", "1,2,3", "--logit-dump", tmp_path / "s.npy").ok()
    problem = cli("vindex3", "score", made / "full.npy", tmp_path / "s.npy").problem
    assert "has the shape [3, 256]" in problem and "dump both from the same tokens" in problem


def changed_value(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def by_columns(path: Path) -> None:
    np.save(path, np.asfortranarray(np.load(path)))


def other_numbers(path: Path) -> None:
    np.save(path, np.load(path).astype(np.float64))


def no_array(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (changed_value, "it was changed since"),
        (cut, "make the dump again"),
        (by_columns, "by columns"),
        (other_numbers, "holds float64"),
        (no_array, "is no .npy file"),
    ],
)
def test_a_damaged_dump_is_refused_by_name(
    made: Path, tmp_path: Path, cli: Run, damage: Callable[[Path], None], words: str
) -> None:
    draft = copied(made, "d2.npy", tmp_path)
    damage(draft)
    for arms in ((made / "full.npy", draft), (draft, made / "full.npy")):
        problem = cli("vindex3", "score", *arms).problem
        assert problem.startswith(str(draft)) and words in problem


def test_a_tensor_of_another_name_is_refused(made: Path, tmp_path: Path, cli: Run) -> None:
    draft = copied(made, "d2.safetensors", tmp_path)
    save_file({"scores": np.load(made / "d2.npy")}, draft)
    assert "just the tensor logits" in cli("vindex3", "score", made / "full.npy", draft).problem


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "plane_000"}, "`kind` is 'plane_000', expected 'logits'"),
        ({"kind": None}, "`kind` is missing"),
        ({"shape": [7, 255]}, "by rows, expected float32 [7, 255]"),
        ({"shape": [7]}, "`shape` has 1 extents"),
        ({"shape": [7, -1]}, "`shape` is [7, -1]"),
        ({"tokens": [1, 2]}, "`tokens` is not a list of 7 ids"),
        ({"tokens": [1, 2, 3, 5, 8, 13, -1]}, "`tokens` is not a list"),
        ({"tokens": [1, 2, 3, 5, 8, 13, True]}, "`tokens` is not a list"),
        ({"payload_sha256": "x"}, "`payload_sha256` is 'x', expected 64 hexadecimal digits"),
    ],
)  # fmt: skip
def test_a_sidecar_that_is_wrong_is_refused_by_field(
    made: Path, tmp_path: Path, cli: Run, fields: dict[str, object], words: str
) -> None:
    draft = copied(made, "d2.npy", tmp_path, **fields)
    assert words in cli("vindex3", "score", made / "full.npy", draft).problem


def test_what_is_not_there_or_no_dump(made: Path, tmp_path: Path, cli: Run) -> None:
    draft = copied(made, "d2.npy", tmp_path)
    (tmp_path / "d2.npy.json").write_text("[1]")
    assert "d2.npy.json" in cli("vindex3", "score", made / "full.npy", draft).problem
    (tmp_path / "d2.npy.json").unlink()
    assert "d2.npy.json: no such file" in cli("vindex3", "score", draft, draft).problem
    copied(made, "d2.npy", tmp_path)
    draft.unlink()
    assert "d2.npy: no such file" in cli("vindex3", "score", draft, draft).problem
    assert "is no dump" in cli("vindex3", "score", tmp_path / "a.txt", draft).problem
