"""``larql publish`` and what comes back: one commit, every byte, or nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from larql.format.container import Container
from tests.builders.containers import (
    copy_container,
    edit_index,
    file_bytes,
    flip_byte,
    make_container,
    vouch_for,
)
from tests.builders.experts import mixture
from tests.builders.hub_uploads import TOKEN, UploadHub
from tests.cli.conftest import Run

NAME = "org/model"
SEGMENT = "segments/target.layer.001.safetensors"


def shown(hub: UploadHub, branch: str = "main") -> dict[str, bytes]:
    """What a branch of the repository holds."""
    repo = hub.repos[NAME]
    return repo.commits[repo.refs[branch]]


def pulled(cli: Run, name: str = f"hf://{NAME}") -> Path:
    return Path(cli("pull", name).ok().out.strip())


def without_card(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "README.md"}


# What is published comes back


def test_a_container_comes_back_byte_for_byte(llama: Path, hub: UploadHub, cli: Run) -> None:
    answer = cli("publish", llama, NAME).ok()
    assert TOKEN not in answer.out + answer.err
    head = hub.repos[NAME].refs["main"]
    fingerprint = Container(llama).fingerprint
    assert answer.out.splitlines()[-2:] == [
        f"12 files, {sum(map(len, file_bytes(llama).values())) / 1000:.1f} kB, are "
        f"hf://{NAME}@{head}",
        f"fingerprint {fingerprint}",
    ]
    for name in file_bytes(llama):
        assert f"\n{name} " in answer.out
    assert len(hub.repos[NAME].commits) == 2  # the one that made it, and ours
    assert hub.messages == [f"Publish llama as a container, {fingerprint[:16]}"]
    back = pulled(cli)
    assert without_card(file_bytes(back)) == file_bytes(llama)
    document = cli("pull", f"hf://{NAME}", "--json").ok().json
    assert (document["kind"], document["revision"]) == ("container", head)
    assert {file["name"] for file in document["files"]} == {*file_bytes(llama), "README.md"}


def test_the_older_generation_comes_back_too(
    models: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    at = tmp_path / "v"
    cli("extract", models / "llama", "-o", at, "--generation", "v2", "--level", "browse").ok()
    cli("publish", at, NAME).ok()
    back = pulled(cli)
    assert without_card(file_bytes(back)) == file_bytes(at)
    assert (
        cli("walk", f"hf://{NAME}", "--tokens", "1").ok().out
        == cli("walk", at, "--tokens", "1").out
    )
    cli("slice", at, "-o", tmp_path / "s", "--preset", "embed").ok()
    cli("publish", tmp_path / "s", NAME).ok()
    assert "gate_vectors.bin" not in shown(hub)
    index = json.loads((at / "index.json").read_text())
    (at / "index.json").write_text(json.dumps({**index, "checksums": {}}))
    answer = cli("publish", at, NAME)
    assert answer.status == 1
    assert "nothing vouches" in answer.out


def test_every_command_takes_its_name(
    llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    cli("publish", llama, NAME).ok()
    name = f"hf://{NAME}"
    here, there = (
        cli("exec", model, "--tokens", "1,2,3", "--logit-dump", tmp_path / f"{n}.npy", "--json")
        for n, model in enumerate((llama, name))
    )
    assert here.ok().json["payload_sha256"] == there.ok().json["payload_sha256"]
    assert cli("verify", name).ok().out == cli("verify", llama).ok().out
    assert cli("show", name, "--json").ok().json["fingerprint"] == Container(llama).fingerprint
    assert cli("walk", name, "--tokens", "1").ok().out == cli("walk", llama, "--tokens", "1").out
    drafted = ("exec", llama, "--tokens", "1", "-n", "4", "--json")
    for drafter in (llama, name):
        said = cli(*drafted, "--speculate", f"container:{drafter}").ok().json
        assert said["generated"] == cli(*drafted).ok().json["generated"]
    cut = tmp_path / "cut"
    cli("slice", name, "-o", cut, "--draft-depth", "2").ok()
    # A slice shares files with what it was cut from, which is links into the hub's cache here.
    for path in (tmp_path / "hub-cache").rglob("*"):
        if path.is_symlink():
            path.unlink()
    cli("verify", cut).ok()
    assert not any(path.is_symlink() for path in cut.rglob("*"))


def test_a_plan_says_that_it_is_a_container(llama: Path, hub: UploadHub, cli: Run) -> None:
    cli("publish", llama, NAME).ok()
    assert "holds a container already" in cli("vindex3", "plan", f"hf://{NAME}").problem
    assert not hub.asked("/cdn/")


@pytest.mark.parametrize("cut", [["--draft-depth", "2"], ["--preset", "browse"]], ids=str)
def test_a_slice_comes_back_byte_for_byte(
    cut: list[str], llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    made = tmp_path / "slice"
    cli("slice", llama, "-o", made, *cut).ok()
    cli("publish", made, f"hf://{NAME}").ok()
    assert without_card(file_bytes(pulled(cli))) == file_bytes(made)
    assert cli("verify", f"hf://{NAME}").ok().out == cli("verify", made).ok().out


def test_banks_of_experts_come_back(hub: UploadHub, cli: Run, tmp_path: Path) -> None:
    made = make_container(mixture(tmp_path / "mixture", layers=2), tmp_path / "m.vindex3").path
    cli("publish", made, NAME).ok()
    back = file_bytes(pulled(cli))
    assert any(name.endswith(".lyrw") for name in back)
    assert without_card(back) == file_bytes(made)


def test_what_describes_a_model_goes_with_it(
    llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    made = copy_container(llama, tmp_path / "c")
    (made / "README.md").write_text("# mine\n")
    (made / "LICENSE").write_text("free\n")
    (made / "notes.txt").write_text("private\n")
    answer = cli("publish", made, NAME, "--json").ok().json
    assert not answer["published"]["card"]
    assert shown(hub)["README.md"] == b"# mine\n"
    assert shown(hub)["LICENSE"] == b"free\n"
    assert "notes.txt" not in shown(hub)
    assert (pulled(cli) / "README.md").read_text() == "# mine\n"


def test_a_repository_without_a_card_is_given_one(
    llama: Path, gemma: Path, hub: UploadHub, cli: Run
) -> None:
    assert cli("publish", llama, NAME, "--json").ok().json["published"]["card"]
    card = shown(hub)["README.md"].decode()
    assert Container(llama).fingerprint in card
    assert f"larql run hf://{NAME} " in card
    cli("publish", gemma, NAME, "--revision", "other").ok()
    assert Container(gemma).fingerprint in shown(hub, "other")["README.md"].decode()
    hub.repos[NAME].commit({**shown(hub), "README.md": b"# edited\n"})
    assert not cli("publish", llama, NAME, "--json").ok().json["published"]["card"]
    assert shown(hub)["README.md"] == b"# edited\n"


# What is shown, and when


def test_the_answer_names_all_that_is_uploaded(llama: Path, hub: UploadHub, cli: Run) -> None:
    answer = cli("publish", llama, f"{NAME}@draft", "-m", "first", "--private", "--json").ok()
    document = answer.json
    files = {file["name"]: file["size"] for file in document["files"]}
    assert files == {name: len(data) for name, data in file_bytes(llama).items()}
    assert document["bytes"] == sum(files.values())
    assert document["published"] == {
        "revision": "draft",
        "commit": hub.repos[NAME].refs["draft"],
        "created": True,
        "card": True,
        "removed": [],
    }
    assert hub.messages == ["first"]
    assert hub.repos[NAME].private
    assert list(shown(hub)) == [".gitattributes"], "the main branch is as it was made"
    assert without_card(file_bytes(pulled(cli, f"hf://{NAME}@draft"))) == file_bytes(llama)


def test_a_dry_run_asks_no_hub(llama: Path, hub: UploadHub, cli: Run) -> None:
    document = cli("publish", llama, NAME, "--dry-run", "--json").ok().json
    assert {file["name"] for file in document["files"]} == set(file_bytes(llama))
    assert document["published"] is None
    text = cli("publish", llama, NAME, "--dry-run", "--revision", "x").ok().out
    assert text.splitlines()[-1].endswith(f"would become the content of hf://{NAME}@x")
    assert hub.requests == []


def test_publishing_again_replaces_the_container_and_nothing_else(
    llama: Path, gemma: Path, hub: UploadHub, cli: Run
) -> None:
    cli("publish", llama, NAME).ok()
    hub.repos[NAME].commit({**shown(hub), "notes/figure.png": b"png"})
    answer = cli("publish", gemma, NAME, "--json").ok().json
    gone = set(file_bytes(llama)) - set(file_bytes(gemma))
    assert set(answer["published"]["removed"]) == gone
    assert "tokenizer.json" in gone
    kept = {".gitattributes", "notes/figure.png", "README.md"}
    assert set(shown(hub)) == {*file_bytes(gemma), *kept}
    assert not answer["published"]["created"]
    (first, *_) = sorted(set(file_bytes(gemma)) - set(file_bytes(llama)))
    assert f"\nremoved {first}, of the container before\n" in cli("publish", llama, NAME).ok().out


def test_the_same_again_is_no_commit(llama: Path, hub: UploadHub, cli: Run) -> None:
    first = cli("publish", llama, NAME, "--json").ok().json
    hub.requests.clear()
    again = cli("publish", llama, NAME, "--json").ok().json
    assert again["published"]["commit"] == first["published"]["commit"]
    assert not hub.asked("/store/")
    assert len(hub.messages) == 1


# What is not published


@pytest.mark.parametrize("json_flag", [[], ["--json"]], ids=["text", "json"])
def test_what_does_not_verify_is_refused_with_its_defects(
    json_flag: list[str], llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    made = copy_container(llama, tmp_path / "c")
    flip_byte(made / SEGMENT)
    (made / "tokenizer.json").unlink()
    answer = cli("publish", made, NAME, *json_flag)
    assert answer.status == 1
    checked = cli("verify", made, *json_flag)
    assert (answer.out, answer.err) == (checked.out, checked.err)
    assert SEGMENT in answer.out
    assert "tokenizer.json" in answer.out
    assert hub.requests == []


def test_a_damaged_index_is_a_defect(llama: Path, hub: UploadHub, cli: Run, tmp_path: Path) -> None:
    made = copy_container(llama, tmp_path / "c")
    (made / "index.json").write_text("{")
    assert cli("publish", made, NAME).status == 1
    assert hub.requests == []


def test_a_file_that_changes_after_it_was_verified(
    llama: Path, hub: UploadHub, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from larql.cli import publish as command

    made = copy_container(llama, tmp_path / "c")
    plan = command.plan_publication

    def late(path: Path) -> Any:
        found = plan(path)
        flip_byte(made / SEGMENT)
        return found

    monkeypatch.setattr(command, "plan_publication", late)
    answer = cli("publish", made, NAME)
    assert answer.status == 2
    assert f"{SEGMENT}: has sha256" in answer.problem
    assert "nothing was committed" in answer.problem
    assert list(shown(hub)) == [".gitattributes"]


@pytest.mark.parametrize("there", ["model.safetensors", "m.gguf", "train.py", "config.json"])
def test_a_branch_with_something_else_is_left_alone(
    there: str, llama: Path, hub: UploadHub, cli: Run
) -> None:
    hub.repo(NAME).commit({".gitattributes": b"", "README.md": b"#", there: b"mine"})
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert f"hf://{NAME}: main holds {there}, which is of no container" in answer.problem
    assert len(hub.repos[NAME].commits) == 1
    assert not hub.asked("/store/")


def test_a_container_that_this_build_does_not_read_is_left_alone(
    llama: Path, hub: UploadHub, cli: Run
) -> None:
    hub.repo(NAME).commit({"index.json": b'{"version": 7}', "what.bin": b"new"})
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert f"hf://{NAME}: index.json: schema version 7 is not known" in answer.problem
    assert len(hub.repos[NAME].commits) == 1


def test_a_public_repository_is_not_taken_for_a_private_one(
    llama: Path, hub: UploadHub, cli: Run
) -> None:
    cli("publish", llama, NAME).ok()
    answer = cli("publish", llama, NAME, "--private")
    assert answer.status == 2
    assert "is there already, and public" in answer.problem
    hub.repos[NAME].private = True
    cli("publish", llama, NAME, "--private").ok()


@pytest.mark.parametrize("token", [None, "hf_other"])
def test_without_a_token_that_may(
    token: str | None, llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert "set HF_TOKEN to one with write access" in answer.problem
    assert NAME not in hub.repos
    hub.repo(NAME).commit({".gitattributes": b""})
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert "HF_TOKEN" in answer.problem
    assert "hf_other" not in answer.err
    assert len(hub.repos[NAME].commits) == 1


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        ("model", "not a model's name"),
        ("org/model/x.gguf", "names a file"),
        (f"org/model@{'0' * 40}", "is no branch"),
        ("org/model@refs/pr/1", "is no branch"),
        ("org/model@../x", "is not a revision"),
        ("pypi://x", "not a model's name"),
    ],
)
def test_names_that_are_refused(
    repository: str, message: str, llama: Path, hub: UploadHub, cli: Run
) -> None:
    answer = cli("publish", llama, repository)
    assert answer.status == 2
    assert message in answer.problem
    assert hub.requests == []


def test_branches_are_named_once_and_tags_are_none(
    llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give one" in cli("publish", llama, f"{NAME}@a", "--revision", "b").problem
    cli("publish", llama, NAME).ok()
    hub.repos[NAME].refs["v1"] = hub.repos[NAME].refs["main"]
    hub.repos[NAME].tags.add("v1")
    assert "v1 is a tag there" in cli("publish", llama, NAME, "--revision", "v1").problem
    hub.repos[NAME].tags.add("main")
    assert "has neither a branch x" in cli("publish", llama, NAME, "--revision", "x").problem
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "unset it to publish" in cli("publish", llama, NAME).problem


# Interruptions


def test_a_broken_upload_shows_nothing_and_goes_on(
    llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.upload_cuts = 1
    cli("publish", llama, NAME).ok()  # the library tries again by itself
    hub.repos.clear()
    hub.stored.clear()
    hub.requests.clear()

    real, sent = hub.stored, 0

    class Fails(dict[str, bytes]):
        def __setitem__(self, key: str, value: bytes) -> None:
            nonlocal sent
            sent += 1
            hub.upload_cuts = 1000 if sent == 2 else 0
            real[key] = value

        def __contains__(self, key: object) -> bool:
            return key in real

    hub.stored = Fails()
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert f"hf://{NAME}: cannot reach" in answer.problem
    assert list(shown(hub)) == [".gitattributes"]
    assert "hf://org/model: found no" in cli("pull", f"hf://{NAME}").problem

    hub.upload_cuts, hub.stored = 0, real
    before = dict(real)
    hub.requests.clear()
    cli("publish", llama, NAME).ok()
    assert len(before) == 2
    assert not any(hub.asked(f"/store/{digest}") for digest in before)
    assert without_card(file_bytes(pulled(cli))) == file_bytes(llama)


def test_somebody_else_was_quicker(llama: Path, hub: UploadHub, cli: Run) -> None:
    hub.repo(NAME).commit({".gitattributes": b""})
    hub.meanwhile = {".gitattributes": b"", "README.md": b"theirs"}
    answer = cli("publish", llama, NAME)
    assert answer.status == 2
    assert "has just been changed; run the command again" in answer.problem
    assert shown(hub)["README.md"] == b"theirs"
    assert "index.json" not in shown(hub)
    cli("publish", llama, NAME).ok()


def test_nothing_is_left_out_by_what_the_repository_ignores(
    llama: Path, hub: UploadHub, cli: Run
) -> None:
    hub.repo(NAME).commit({".gitattributes": b"", ".gitignore": b"*.safetensors\ntokenizer.json\n"})
    cli("publish", llama, NAME).ok()
    assert without_card(file_bytes(pulled(cli))) == file_bytes(llama)


def test_a_hub_that_drops_a_file_is_found_out(
    llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo(NAME).commit({".gitattributes": b""})
    repo = hub.repos[NAME]
    commit = type(repo).commit

    def losing(self: Any, files: dict[str, bytes], ref: str = "main") -> str:
        return commit(self, {k: v for k, v in files.items() if k != SEGMENT}, ref)

    monkeypatch.setattr(type(repo), "commit", losing)
    answer = cli("publish", llama, NAME)
    assert answer.status == 1
    assert f"{SEGMENT} is not there" in answer.problem


def test_an_interruption_shows_nothing(llama: Path, hub: UploadHub, tmp_path: Path) -> None:
    hub.upload_pause = 0.5
    process = subprocess.Popen(
        [sys.executable, "-m", "larql", "publish", str(llama), NAME],
        env={
            **os.environ,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": TOKEN,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not hub.asked("/store/") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "larql: error: interrupted\n"
    assert list(shown(hub)) == [".gitattributes"]


# What a hub may hold


def hold(hub: UploadHub, container: Path, **changes: bytes | None) -> None:
    """Make a container the content of the repository, with other files than it should have."""
    files = {**file_bytes(container), **changes}
    hub.repo(NAME).commit({name: data for name, data in files.items() if data is not None})


@pytest.mark.parametrize("version", [0, 1, 2, 5, -1])
def test_a_generation_is_refused_before_anything_is_fetched(
    version: int, llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    made = copy_container(llama, tmp_path / "c")
    edit_index(made, lambda index: index.update(version=version))
    hold(hub, made)
    for command in (["pull"], ["exec", "--tokens", "1"], ["show"], ["verify"]):
        answer = cli(command[0], f"hf://{NAME}", *command[1:])
        assert answer.status == 2
        lacks = {1: "`vocab_size` is missing", 2: "`dtype` is missing"}
        told = lacks.get(version, f"schema version {version} ")
        assert f"hf://{NAME}: index.json: {told}" in answer.problem
    assert not hub.asked("/cdn/")
    assert {r.path.rpartition("/")[2] for r in hub.asked("/resolve/")} == {"index.json"}


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a\\b", "segments/../../evil", "a\0b"])
def test_an_index_that_names_what_is_outside(
    name: str, llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    made = copy_container(llama, tmp_path / "c")

    def change(index: Any) -> None:
        index["files"][name] = {"size": 1, "sha256": "0" * 64}

    edit_index(made, change)
    hold(hub, made)
    answer = cli("pull", f"hf://{NAME}")
    assert answer.status == 2
    assert f"hf://{NAME}: index.json: files: file name" in answer.problem
    assert not hub.asked("/cdn/")
    # The same in the listing of the hub.
    hold(hub, llama, **{name: b"x"})
    assert "file name" in cli("pull", f"hf://{NAME}").problem
    assert not list(tmp_path.rglob("evil"))


def test_what_the_hub_lists_is_held_to_the_index_first(
    llama: Path, hub: UploadHub, cli: Run
) -> None:
    for changes, message in (
        ({SEGMENT: None}, f"lists {SEGMENT}, which is not there"),
        ({SEGMENT: b"short"}, f"bytes for {SEGMENT}, the hub has 5"),
    ):
        hold(hub, llama, **changes)
        assert message in cli("pull", f"hf://{NAME}").problem
    hold(hub, llama)
    hub.claimed[SEGMENT] = "a" * 64
    assert f"for {SEGMENT}, the hub has {'a' * 64}" in cli("pull", f"hf://{NAME}").problem
    assert not hub.asked("/cdn/", "GET")


def test_small_files_are_held_to_the_index_too(llama: Path, hub: UploadHub, cli: Run) -> None:
    graph = bytearray((llama / "system_graph.json").read_bytes())
    graph[-3] ^= 1
    hold(hub, llama, **{"system_graph.json": bytes(graph)})
    for command in (["pull"], ["exec", "--tokens", "1"]):
        answer = cli(command[0], f"hf://{NAME}", *command[1:])
        assert answer.status == 2
        assert "index.json says" in answer.problem
        assert "for system_graph.json" in answer.problem


def test_other_files_are_not_fetched(llama: Path, hub: UploadHub, cli: Run) -> None:
    hold(hub, llama, **{"train.py": b"import os", "other.bin": b"x", "LICENSE": b"free"})
    names = {path.name for path in pulled(cli).iterdir()}
    assert "LICENSE" in names
    assert not names & {"train.py", "other.bin"}


def test_an_index_that_is_no_containers(llama: Path, hub: UploadHub, cli: Run) -> None:
    hub.repo(NAME).commit({"index.json": b'{"name": "a page"}', "model.safetensors": b"weights"})
    assert cli("pull", f"hf://{NAME}", "--json").ok().json["kind"] == "checkpoint"
    hub.repo(NAME).commit({"index.json": b'{"version": "3"}'})
    problem = cli("pull", f"hf://{NAME}").problem
    assert f"hf://{NAME}: is no model: found an index.json whose version is '3'" in problem
    hub.repo(NAME).commit({"index.json": b" " * ((32 << 20) + 1)})
    hub.requests.clear()
    assert "an index.json of 33554433 bytes" in cli("pull", f"hf://{NAME}").problem
    assert not hub.asked("/resolve/")


def test_offline_a_whole_container_serves(
    llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(hub, llama)
    back = pulled(cli)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answer = cli("pull", f"hf://{NAME}").ok()
    assert answer.out.strip() == str(back)
    assert "using the cached commit" in answer.err
    (back / SEGMENT).unlink()
    assert f"and {SEGMENT} of it is not in the hub's cache" in cli("pull", f"hf://{NAME}").problem


def test_a_broken_download_goes_on(
    llama: Path, hub: UploadHub, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hold(hub, llama)
    hub.cuts[SEGMENT] = [100] * 40
    assert cli("pull", f"hf://{NAME}").status == 2
    hub.cuts.clear()
    done = {request.path for request in hub.asked("/cdn/", "GET")}
    hub.requests.clear()
    assert file_bytes(pulled(cli)) == file_bytes(llama)
    again = {request.path for request in hub.asked("/cdn/", "GET")}
    assert len(done & again) == 1, "only the file that was broken off is asked for again"


def test_a_link_between_generations_is_one_line(llama: Path, hub: UploadHub, cli: Run) -> None:
    """A version of a generation to come is told as one, whatever else its index holds."""
    hub.repo(NAME).commit({"index.json": json.dumps({"version": 9, "files": 3}).encode()})
    assert "schema version 9 is not known to this build" in cli("show", f"hf://{NAME}").problem


def test_vouching_for_other_bytes_is_enough(
    llama: Path, hub: UploadHub, cli: Run, tmp_path: Path
) -> None:
    """The index is what vouches: a repository whose index was made for other bytes comes whole."""
    made = copy_container(llama, tmp_path / "c")
    text = (made / "generation_config.json").read_text()
    (made / "generation_config.json").write_text(text + "\n")
    vouch_for(made, "generation_config.json")
    cli("publish", made, NAME).ok()
    assert without_card(file_bytes(pulled(cli))) == file_bytes(made)
