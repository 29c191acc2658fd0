"""``larql observe`` and ``larql vindex3 replay``: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Run

TOKENS = ("--tokens", "1,2,3,5,8,13,21")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_and_its_replay_print_the_same(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    ran = cli(
        "observe", llama, *TOKENS, "--record", record, "-n", "3", "--lens-tokens", "4,5",
        "--quiet",
    ).ok()  # fmt: skip
    replayed = cli("vindex3", "replay", record).ok()
    kept = [line for line in ran.out.splitlines() if not line.startswith("seconds")]
    assert replayed.out.splitlines() == kept
    for word in ("provenance", "log sha256", "head passes", "generated", "leads", "2.ffn", "rank"):
        assert word in ran.out
    assert ran.err == ""


def test_the_same_command_is_under_vindex3(llama: Path, tmp_path: Path, cli: Run) -> None:
    records = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    cli("observe", llama, *TOKENS, "--record", records[0]).ok()
    cli("vindex3", "observe", llama, *TOKENS, "--record", records[1], "--threads", "1",
        "--chunk", "2", "--context", "99").ok()  # fmt: skip
    assert records[0].read_bytes() == records[1].read_bytes()


def test_text_and_ids_give_one_record(llama: Path, tmp_path: Path, cli: Run) -> None:
    """A record does not hang on how its tokens were spelled."""
    records = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    cli("observe", llama, "--prompt", "Hello", "--record", records[0], "-n", "2").ok()
    ids = ",".join(map(str, lines_of(records[0])[0]["identity"]["tokens"]))
    cli("observe", llama, "--tokens", ids, "--record", records[1], "-n", "2").ok()
    assert records[0].read_bytes() == records[1].read_bytes()
    assert lines_of(records[0])[-2]["texts"]


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_logits_are_those_of_exec(backend: str, llama: Path, cli: Run) -> None:
    options = (*TOKENS, "--backend", backend, "--top-k", "3", "--json")
    plain = cli("exec", llama, *options).ok().json["top"]
    observed = cli("observe", llama, *options).ok().json
    assert [entry["logit"] for entry in observed["top"]] == [entry["logit"] for entry in plain]
    events = observed["last_position"]["events"]
    lens = [event["values"]["top"] for event in events if event["kind"] == "readout"]
    assert [entry[:2] for entry in lens[-1][:3]] == [[e["token"], e["logit"]] for e in plain]
    assert observed["receipt"]["complete"] is True
    assert observed["step_seconds"] > 0
    assert observed["record"] is None


def test_json_of_a_replay(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    ran = cli("observe", llama, *TOKENS, "--record", record, "--json").ok().json
    assert ran["record"] == str(record)
    replayed = cli("vindex3", "replay", record, "--json").ok().json
    assert replayed.pop("problems") == []
    assert replayed == {k: v for k, v in ran.items() if k not in ("record", "step_seconds")}


def test_everything_at_once(gemma: Path, tmp_path: Path, cli: Run) -> None:
    record, basis = tmp_path / "r.jsonl", tmp_path / "basis.npy"
    np.save(basis, np.eye(2, 64, dtype=np.float32))
    cli(
        "observe", gemma, *TOKENS, "--record", record, "--run-id", "mine", "--basis-rows", basis,
        "--lens-layers", "every:2", "--lens-attention", "--lens-top-k", "2", "--head-norms",
        "--attention-patterns", "--draft-depth", "5",
    ).ok()  # fmt: skip
    header, *events, receipt = lines_of(record)
    assert header["run_id"] == "mine"
    observed = header["identity"]["observed"]
    assert observed["readers"]["lens"]["layers"] == [0, 2, 4]
    assert observed["basis"]["dims"] == 2 and observed["basis"]["seed"] is None
    kinds = {event["kind"] for event in events}
    assert kinds == {"writes", "heads", "pattern", "readout", "position", "end"}
    # Without a tokenizer tokens have no text.
    assert events[-1]["texts"] == {}
    assert receipt["positions"] == 7
    assert "ffn" in cli("vindex3", "replay", record).ok().out


def test_statistics_only(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    answer = cli("observe", llama, *TOKENS, "--record", record, "--lens-layers", "none").ok()
    assert "lens" not in answer.out
    assert {line["kind"] for line in lines_of(record)[1:-2]} == {"writes", "position"}


def test_captures_and_interventions(llama: Path, tmp_path: Path, cli: Run) -> None:
    captures, declared = tmp_path / "c.safetensors", tmp_path / "i.json"
    cli("observe", llama, *TOKENS, "--capture", "1.ffn@4,0.attention@0:2", "--capture-out",
        captures).ok()  # fmt: skip
    entry = {
        "site": "1.ffn", "positions": "4", "do": "replace",
        "capture": {"file": "c.safetensors", "tensor": "1.ffn@4/carrier"},
    }  # fmt: skip
    declared.write_text(json.dumps({"interventions": [entry]}))
    plain = cli("observe", llama, *TOKENS, "--json").ok().json
    changed = cli("observe", llama, *TOKENS, "--intervene", declared, "--json").ok().json
    assert changed["top"] == plain["top"]
    assert changed["receipt"]["fired"] == [1]
    assert changed["provenance_fingerprint"] != plain["provenance_fingerprint"]
    entry |= {"positions": "900"}
    declared.write_text(json.dumps({"interventions": [entry]}))
    answer = cli("observe", llama, *TOKENS, "--intervene", declared).ok()
    assert "warning: intervention 0 never fired" in answer.err
    assert "interventions" in answer.out and "fired" in answer.out


def test_a_lens_on_broken_logits_warns(llama: Path, tmp_path: Path, cli: Run) -> None:
    declared = tmp_path / "i.json"
    entry = {"site": "2.ffn", "do": "scale", "target": "carrier", "factor": 1e300}
    declared.write_text(json.dumps({"interventions": [entry]}))
    record = tmp_path / "r.jsonl"
    answer = cli("observe", llama, *TOKENS, "--intervene", declared, "--record", record).ok()
    assert "warning: the lens failed: 256 of the logits are not finite" in answer.err
    failure = lines_of(record)[-1]["readers"]["lens"]["failure"]
    assert (failure["layer"], failure["site"], failure["position"]) == (2, "ffn", 0)
    assert lines_of(record)[-2]["top"] == []
    cli("vindex3", "replay", record).ok()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--basis-rows", "x.npy", "--basis-dims", "2"], "is a basis already"),
        (["--basis-seed", "2"], "draws the basis of --basis-dims"),
        (["--basis-rows", "absent.npy"], "cannot be read as a .npy file"),
        (["--capture", "1.ffn@0"], "go together"),
        (["--capture-out", "x"], "go together"),
        (["--capture", "1.ffn", "--capture-out", "x"], "expected SITE@POSITIONS"),
        (["--lens-layers", "first"], "names no layers"),
        (["--lens-layers", "9"], "layer 9 is not executed"),
        (["--lens-layers", "none", "--lens-attention"], "arms no lens"),
        (["--lens-tokens", "256"], "--lens-tokens: token 256 at position 0"),
        (["--run-id", ""], "--run-id: is empty"),
        (["--capture", "01.ffn@0", "--capture-out", "x"], "'01.ffn' is no site"),
        (["--capture", "1.ffn@00", "--capture-out", "x"], "'00' names no positions"),
        (["--lens-layers", "01"], "--lens-layers: '01' names no layers"),
        (["--record", "x", "--capture", "1.ffn@0", "--capture-out", "x"], "have the same path"),
        (["--lens-tokens", "x"], "--lens-tokens: entry 0"),
        (["--intervene", "absent.json"], "absent.json: no such file"),
        (["--basis-dims", "100000000"], "expected at most the carrier's width"),
        (["--lens-top-k", "0"], "0"),
        (["--record", "r.jsonl", "--capture", "9.ffn@0", "--capture-out", "x"], "no site 9.ffn"),
        (["--record", "absent/r.jsonl"], "absent does not exist; create it first"),
        (["--record", "."], "is a directory"),
        (["--capture", "1.ffn@0", "--capture-out", "absent/c"], "absent does not exist"),
    ],
)
def test_what_is_refused(
    options: list[str], problem: str, llama: Path, tmp_path: Path, cli: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    answer = cli("observe", llama, *TOKENS, *options)
    assert answer.status == 2
    assert problem in answer.problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [np.zeros((2, 3), np.float32), np.zeros((2, 64))])
def test_bases_that_do_not_fit(wrong: Any, llama: Path, tmp_path: Path, cli: Run) -> None:
    np.save(tmp_path / "basis.npy", wrong)
    answer = cli("observe", llama, *TOKENS, "--basis-rows", tmp_path / "basis.npy")
    assert answer.status == 2
    assert "expected" in answer.problem


def test_a_record_is_not_replaced_without_force(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    cli("observe", llama, *TOKENS, "--record", record).ok()
    before = record.read_bytes()
    answer = cli("observe", llama, "--tokens", "9", "--record", record)
    assert answer.status == 2 and "exists; give --force" in answer.problem
    assert record.read_bytes() == before
    cli("observe", llama, "--tokens", "9", "--record", record, "--force").ok()
    assert record.read_bytes() != before


def test_captures_are_not_replaced_without_force(llama: Path, tmp_path: Path, cli: Run) -> None:
    kept = tmp_path / "c.safetensors"
    command = ("observe", llama, *TOKENS, "--capture-out", kept, "--capture")
    cli(*command, "1.ffn@0").ok()
    before = kept.read_bytes()
    answer = cli(*command, "1.ffn@1", "--record", tmp_path / "r.jsonl")
    assert answer.status == 2 and "exists; give --force" in answer.problem
    assert kept.read_bytes() == before and not (tmp_path / "r.jsonl").exists()
    cli(*command, "1.ffn@1", "--force").ok()
    assert kept.read_bytes() != before


@pytest.mark.parametrize("pickled", [False, True])
def test_what_is_no_basis_is_told_in_our_words(
    pickled: bool, llama: Path, tmp_path: Path, cli: Run
) -> None:
    path = tmp_path / "basis.npy"
    path.write_bytes(b"no numbers")
    if pickled:
        np.save(path, np.array([{}], object), allow_pickle=True)
    answer = cli("observe", llama, *TOKENS, "--basis-rows", path)
    assert answer.status == 2 and "expected a float32 matrix [dims, 64]" in answer.problem
    assert "pickle" not in answer.problem


def test_a_changed_record_is_status_1(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    cli("observe", llama, *TOKENS, "--record", record).ok()
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b'"token":13', b'"token":14'))
    answer = cli("vindex3", "replay", record)
    assert answer.status == 1
    assert "the log was changed" in answer.problem
    assert "2.ffn" in answer.out
    record.write_bytes(whole[: len(whole) // 2])
    answer = cli("vindex3", "replay", record)
    assert answer.status == 1
    assert "has no receipt: the run that wrote it was killed" in answer.problem
    assert "none; the run was killed" in answer.out
    record.write_bytes(b"no record")
    answer = cli("vindex3", "replay", record)
    assert answer.status == 2 and "is no run record" in answer.problem
    assert cli("vindex3", "replay", tmp_path / "absent").status == 2


def test_control_characters_of_a_record_stay_text(llama: Path, tmp_path: Path, cli: Run) -> None:
    record = tmp_path / "r.jsonl"
    cli("observe", llama, *TOKENS, "--record", record, "--run-id", "a\x1b[31mb").ok()
    assert "\x1b" not in cli("vindex3", "replay", record).ok().out


def test_sites_of_a_layer_dump(llama: Path, tmp_path: Path, cli: Run) -> None:
    cli("exec", llama, *TOKENS, "--dump-layers", tmp_path / "d", "--sites").ok()
    names = sorted(path.name for path in (tmp_path / "d").glob("*_attention.npy"))
    assert names == [f"plane_{k:03d}_attention.npy" for k in (1, 2, 3)]
    answer = cli("exec", llama, *TOKENS, "--sites")
    assert answer.status == 2 and "--sites belong to --dump-layers" in answer.problem
