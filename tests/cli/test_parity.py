"""``vindex3 parity`` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.containers import copy_container, make_container, vouch_for
from tests.builders.experts import mixture
from tests.cli.conftest import Run


def flipped(container: Path, to: Path, name: str) -> Path:
    """A copy with one bit of a segment's last weight changed, and vouched for."""
    directory = copy_container(container, to)
    data = bytearray((directory / name).read_bytes())
    data[-3] ^= 1
    (directory / name).write_bytes(data)
    return vouch_for(directory, name)


def test_backends_are_compared_unless_told_otherwise(cli: Run, llama: Path) -> None:
    out = cli("vindex3", "parity", llama, "--tokens", "1,2,3").ok().out
    assert f"baseline   {llama}, reference, f32, kv f32\n" in out
    assert f"examined   {llama}, production, f32, kv f32\n" in out
    assert "tolerance  float32: 0.0002 of the largest\nverdict    equivalent\n" in out
    assert "head before norm: equivalent" in out
    assert "head after norm: equivalent" in out
    assert out.count("argmax") == 3 and out.count("margin") == 2
    assert "free-running: observed_exact\n" in out


def test_one_document_that_is_a_function_of_its_inputs(cli: Run, llama: Path) -> None:
    ask = ("vindex3", "parity", llama, "--tokens", "1,2,3", "--json", "--oracle-layer", "1")
    first = cli(*ask, "--threads", "1").ok()
    assert first.out == cli(*ask, "--threads", "2").ok().out
    document = first.json
    assert (document["verdict"], document["agrees"]) == ("equivalent", True)
    assert [arm["backend"] for arm in document["arms"]] == ["reference", "production"]
    assert [layer["layer"] for layer in document["sweep"]["layers"]] == [
        "embed", "0", "1", "2", "head",
    ]  # fmt: skip
    assert document["sweep"]["earliest_causal_operation"] is None
    assert document["propagation"]["first_differing_boundary"] is None
    assert len(document["propagation"]["boundaries"]) == 7
    assert document["ends"]["examined"]["margin"] > 0
    assert len(document["teacher_forced"]["steps"]) == 4
    assert document["free_running"]["differs_at"] is None
    assert [leg["arm"] for leg in document["oracle"]] == ["baseline", "examined"]


def test_a_changed_container_disagrees(cli: Run, llama: Path, tmp_path: Path) -> None:
    other = flipped(llama, tmp_path / "c", "segments/target.layer.001.safetensors")
    ask = ("vindex3", "parity", other, "--against", llama, "--tokens", "1,2,3")
    answer = cli(*ask)
    assert answer.status == 1
    assert answer.problem.startswith(f"{other}: the arms disagree, first at 1.")
    assert "verdict    numeric_mismatch\n" in answer.out
    assert "earliest causal operation: 1." in answer.out
    assert "first differing boundary: 1." in answer.out
    assert "head after norm: numeric_mismatch" in answer.out
    assert "argmax" in answer.out, "what it ends with is always told"
    assert "free-running: not begun" in answer.out
    document = cli(*ask, "--json").json
    assert document["sweep"]["earliest_causal_operation"]["site"].startswith("1.")
    assert document["free_running"] is None
    # What it takes to let it pass is for the user to say.
    assert cli(*ask, "--tolerance", "0.5").status == 0


def test_the_same_run_says_so(cli: Run, llama: Path) -> None:
    answer = cli("vindex3", "parity", llama, "--tokens", "1,2", "--against", llama).ok()
    assert "verdict    exact\n" in answer.out
    assert "both arms are the same run" in answer.err
    answer = cli(
        "vindex3", "parity", llama, "--tokens", "1,2", "--against", llama, "--against-chunk", "1"
    ).ok()
    assert "the same run" not in answer.err


def test_a_refusal_is_no_mismatch(cli: Run, llama: Path, tmp_path: Path) -> None:
    damaged = copy_container(llama, tmp_path / "c")
    (damaged / "segments/target.layer.002.safetensors").unlink()
    ask = ("vindex3", "parity", damaged, "--against", llama, "--tokens", "1,2,3")
    answer = cli(*ask)
    assert answer.status == 2
    assert "target.layer.002" in answer.problem
    assert "verdict    refused(binding_defect)\n" in answer.out
    assert "refused    examined, opening\n" in answer.out
    document = cli(*ask, "--json").json
    assert document["verdict"] == "refused(binding_defect)"
    assert document["refusal"]["arm"] == "examined"
    assert document["sweep"] is document["ends"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tolerance", "near"), "expected one of exact, float32, kv-f16, q8, or a number"),
        (("--tolerance", "-1"), "or a number of at least 0"),
        (("--against-profile", "none"), "there is no profile 'none'"),
        (("--tolerance", "nan"), "or a number of at least 0"),
        (("--oracle-layer", "3"), "--oracle-layer 3: the run executes layers 0:3"),
        (("--against-backend", "reference", "--against-activations", "q8"), "f32 activations"),
    ],
)
def test_what_cannot_be_asked(cli: Run, llama: Path, options: tuple[str, ...], words: str) -> None:
    answer = cli("vindex3", "parity", llama, "--tokens", "1,2", *options)
    assert answer.status == 2
    assert words in answer.problem


def test_nothing_to_agree_on(cli: Run, gemma: Path, llama: Path) -> None:
    answer = cli("vindex3", "parity", llama, "--against", gemma, "--tokens", "1,2")
    assert (answer.status, answer.out) == (2, "")
    assert "compare runs of one architecture" in answer.problem


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("experts")
    return make_container(mixture(at / "m", layers=2), at / "c").path


def test_the_ladder_of_a_mixture(cli: Run, experts: Path, llama: Path) -> None:
    ask = ("vindex3", "necessity", experts, "--tokens", "3,1")
    out = cli(*ask).ok().out
    assert out.count("refused(residency)") == 4
    document = cli(*ask, "--json").ok().json
    assert document["holds"] is True
    assert [rung["outcome"] for rung in document["rungs"]] == [
        "exact", "exact", *(["refused(residency)", "refused(residency)", "exact"] * 2),
    ]  # fmt: skip
    everything = ",".join(map(str, range(40)))
    answer = cli("vindex3", "necessity", experts, "--tokens", everything)
    assert answer.status == 1
    assert "nothing was left out" in answer.problem
    answer = cli("vindex3", "necessity", llama, "--tokens", "1")
    assert (answer.status, "no routed experts" in answer.problem) == (2, True)


def test_a_shard_is_refused_where_it_has_not_what_is_chosen(cli: Run, experts: Path) -> None:
    ask = ("vindex3", "parity", experts, "--tokens", "3,1", "--json")
    answer = cli(*ask, "--shard", "0:2")
    assert answer.status == 2
    document = answer.json
    assert document["verdict"] == "refused(residency)"
    assert document["refusal"]["at"]["layer"] == 0
    assert document["refusal"]["phase"] == "sweep"
    assert cli(*ask, "--shard", "0:8").ok().json["verdict"] == "equivalent"
    answer = cli(*ask, "--shard", "0:9")
    assert (answer.status, "--shard 0:9" in answer.problem) == (2, True)
