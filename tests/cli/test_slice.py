"""``larql slice`` on the command line: answers, refusals, and what it loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import imported_by


def test_a_slice_is_made_and_says_what_it_can_do(cli: Run, llama: Path, tmp_path: Path) -> None:
    answer = cli("slice", llama, "-o", tmp_path / "s", "--preset", "browse").ok()
    assert "walk (target, scope profile): yes, source-exact, 3 of 3 banks" in answer.out
    assert "local_decode (target, scope profile): no route" in answer.out
    assert "target.layer.000/attention.norm.weight: absent" in answer.out
    cli("verify", tmp_path / "s").ok()
    assert "derived from" in cli("show", tmp_path / "s").ok().out
    refused = cli("exec", tmp_path / "s", "--tokens", "1,2")
    assert refused.status == 2
    assert "target.layer.000/attention.norm.weight" in refused.problem
    assert "profile default says that it is elsewhere" in refused.problem


def test_a_shallower_slice_gives_the_dump_of_the_draft(
    cli: Run, llama: Path, tmp_path: Path
) -> None:
    cli("slice", llama, "-o", tmp_path / "s", "--draft-depth", "2").ok()
    tokens = ("--tokens", "1,2,3", "--json", "--logit-dump")
    own = cli("exec", tmp_path / "s", *tokens, tmp_path / "a.npy").ok().json
    draft = cli("exec", llama, "--draft-depth", "2", *tokens, tmp_path / "b.npy").ok().json
    assert own["payload_sha256"] == draft["payload_sha256"]


def test_json_and_the_list_of_a_dry_run_agree(cli: Run, llama: Path, tmp_path: Path) -> None:
    asked = ("slice", llama, "--preset", "client", "--json")
    listed = cli(*asked, "--dry-run").ok().json
    assert list(tmp_path.iterdir()) == []
    made = cli(*asked, "-o", tmp_path / "s").ok().json
    assert made["left_out"] == listed["left_out"]
    assert made["operands"] == listed["operands"]
    index = (tmp_path / "s" / "index.json").stat().st_size
    assert made["bytes"] == listed["bytes"] + index
    by_name = {o["name"]: o for o in made["operations"]}
    assert not by_name["local_decode"]["admitted"]
    assert "target.layer.000/ffn.gate.weight" in by_name["local_decode"]["missing"]
    text = cli("slice", llama, "--preset", "client", "--dry-run").ok().out
    assert f"{len(listed['files'])} files, {listed['bytes']} of {listed['of']} bytes" in text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name the slice with -o OUT"),
        (("--dry-run", "--preset", "router"), "there is no router in it"),
        (("--dry-run", "--preset", "none"), "there is no preset 'none'"),
        (("--dry-run", "--parts", "gate,"), "there is no part ''"),
        (("--dry-run", "--layers", "3:2"), "write a:b with a < b"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    cli: Run, llama: Path, arguments: tuple[str, ...], problem: str
) -> None:
    answer = cli("slice", llama, *arguments)
    assert answer.status == 2
    assert problem in answer.problem


def test_the_container_is_not_its_own_slice(cli: Run, llama: Path) -> None:
    answer = cli("slice", llama, "-o", llama, "--force")
    assert answer.status == 2
    assert "choose another path" in answer.problem


def test_slicing_computes_nothing(llama: Path, tmp_path: Path) -> None:
    status, heavy, _ = imported_by("slice", str(llama), "-o", str(tmp_path / "s"))
    assert (status, heavy) == (0, set())
