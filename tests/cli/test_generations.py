"""The boundary between generations: every schema version, and what is none, at every command."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from larql.cli.app import COMMANDS
from larql.cli.main import main
from tests.builders.containers import copy_container, file_bytes
from tests.builders.hub_uploads import UploadHub
from tests.cli.conftest import Answer, Run
from tests.cli.test_commands import leaves

SUPPORTED = "1-2 (VINDEX2), 3-4 (VINDEX3)"
Kind = Literal["read", "other generation", "unknown", "no version"]


@dataclass(frozen=True)
class Version:
    """What stands behind ``"version":`` in an index, and what becomes of it.

    Attributes
    ----------
    name : str
        For the test's id.
    text : str or None
        As JSON; None: there is no such field.
    kind : str
    found : str
        What a refusal says that it found.
    expected : str
        What it says that it expected.
    """

    name: str
    text: str | None
    kind: Kind
    found: str = ""
    expected: str = SUPPORTED


def _read(text: str) -> Version:
    return Version(text, text, "read")


def _older(text: str, lacks: str) -> Version:
    """What is no VINDEX2 index but for its version is not read as VINDEX3 either."""
    return Version(text, text, "other generation", f"`{lacks}` is missing", "expected")


def _unknown(text: str) -> Version:
    found = f"schema version {text} is not known to this build"
    return Version(text[:8], text, "unknown", found)


def _none(name: str, text: str | None, found: str) -> Version:
    return Version(name, text, "no version", found)


VERSIONS = (
    _unknown("0"),
    _older("1", "vocab_size"),
    _older("2", "dtype"),
    _read("3"),
    _read("4"),
    _unknown("5"),
    _unknown("-1"),
    _unknown("-3"),
    _unknown("3" * 40),
    _none("missing", None, "version is not stated"),
    _none("null", "null", "version is None"),
    _none("text", '"3"', "version is '3'"),
    _none("float", "3.0", "version is 3.0"),
    _none("exponent", "3e0", "version is 3.0"),
    _none("true", "true", "version is True"),
    _none("list", "[3]", "version is [3]"),
    Version("too large", "1e999", "no version", "number '1e999' is too large", ""),
    Version("too long", "3" * 5000, "no version", "is not JSON: Exceeds the limit", ""),
)
# How each command is given a model: {model} is the one in question, {good} one that is sound,
# {to} a place to write to, {text} a text file.
ARGUMENTS: dict[str, str] = {
    "run": "{model} the --generate 1",
    "pull": "{model}",
    "show": "{model}",
    "verify": "{model}",
    "slice": "{model} -o {to}",
    "publish": "{model} owner/name --dry-run",
    "reconstruct": "{model} -o {to}",
    "tokenize": "{model} the",
    "perplexity": "{model} {text} --window 8 --stride 4",
    "bench": "{model}",
    "exec": "{model} --tokens 1",
    "observe": "{model} --tokens 1",
    "walk": "{model} --tokens 1",
    "describe": "{model} 1",
    "vindex3 exec": "{model} --tokens 1",
    "vindex3 observe": "{model} --tokens 1",
    "vindex3 ops": "{model}",
    "vindex3 capability": "{model}",
    "vindex3 accept": "{model} --tokens 1,2 --draft depth:1",
    "vindex3 draft-cost": "{model} --draft depth:1",
    "vindex3 ladder": "{model} --tokens 1,2",
    "vindex3 necessity": "{model} --tokens 1,2",
    "vindex3 parity": "{model} --tokens 1,2",
    "represent": "{model} -o {to} --pack",
    "extract": "{model} -o {to}",
    "vindex3 plan": "{model}",
}
# Where a command takes a second model.
SECOND: dict[str, str] = {
    "run --speculate": "{good} the --generate 2 --speculate container:{model}",
    "vindex3 accept --draft": "{good} --tokens 1,2 --draft container:{model}",
    "vindex3 parity --against": "{good} --tokens 1,2 --against {model}",
    "verify --source": "{good} --source {model}",
}
NO_MODEL = {"demo", "models", "report", "doctor", "cache ls", "cache rm", "vindex3 replay"} | {
    "vindex3 score"
}
# What hangs on representations, on recorded bytes of the checkpoint or on profiles of VINDEX3.
OF_VINDEX3 = {"represent", "reconstruct", "vindex3 capability"}
# They take checkpoints, and say of a container that it is one.
OF_CHECKPOINTS = {
    "extract": "is a container already",
    "vindex3 plan": "is a container already",
    "verify --source": "is a container; --source takes a checkpoint",
}
# What a sound container is not enough for: experts, blocks to pack, or minutes of measuring.
NOT_RUN = {"bench", "represent", "vindex3 draft-cost", "vindex3 necessity"}
# They answer with what is wrong with a container, and of one whose index is damaged that is it.
CHECKS = {"verify", "publish"}

EVERY = {**ARGUMENTS, **SECOND}


def test_the_table_has_every_command() -> None:
    named = {" ".join(words) for words, _ in leaves(COMMANDS)}
    assert set(ARGUMENTS) | NO_MODEL == named, "say here how the command is given a model"
    assert not set(ARGUMENTS) & NO_MODEL
    words = {" ".join(word for word in name.split() if word[0] != "-") for name in SECOND}
    assert words <= set(ARGUMENTS)


Of = Callable[[Version], Path]


@pytest.fixture(scope="module")
def of_version(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """Copies of one container that differ in the version of their index alone."""
    made: dict[str, Path] = {}

    def copy(version: Version) -> Path:
        if version.name not in made:
            at = tmp_path_factory.mktemp("version")
            directory = copy_container(models / "llama.vindex3", at / "c")
            index = directory / "index.json"
            field = "" if version.text is None else f'"version": {version.text},'
            changed, count = re.subn(r'"version": 3,', field, index.read_text(encoding="utf-8"))
            assert count == 1
            index.write_text(changed, encoding="utf-8")
            made[version.name] = directory
        return made[version.name]

    return copy


def call(cli: Run, command: str, model: Path, good: Path, to: Path) -> Answer:
    text = to / "text.txt"
    text.write_text("the and in er on an " * 8)
    places = {"model": model, "good": good, "to": to / "out", "text": text}
    words = (word for word in command.split() if word[0] != "-")
    return cli(*words, *EVERY[command].format(**places).split())


@dataclass(frozen=True)
class Outcome:
    """How a command ends, and what its one line says (of a check, what it prints)."""

    status: int
    says: tuple[str, ...] = ()


def outcome(command: str, version: Version, model: Path) -> Outcome | None:
    """Return what is expected, None where this table has nothing to say."""
    of_checkpoints = OF_CHECKPOINTS.get(command)
    if of_checkpoints is not None and version.kind != "no version":
        return Outcome(2, (str(model), of_checkpoints))
    match version.kind:
        case "read":
            return None if command in NOT_RUN else Outcome(0)
        case "no version" | "other generation" if command in CHECKS:
            return Outcome(1, ("index.json: ", version.found, version.expected))
    return Outcome(2, (str(model), "index.json", version.found, version.expected))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("command", sorted(EVERY))
def test_every_version_at_every_command(
    command: str, version: Version, cli: Run, llama: Path, of_version: Of, tmp_path: Path
) -> None:
    model = of_version(version)
    expected = outcome(command, version, model)
    if expected is None:
        return
    answer = call(cli, command, model, llama, tmp_path)
    assert answer.status == expected.status, answer.err
    if expected.status == 0:
        return
    told = answer.out if expected.status == 1 else answer.problem
    for part in expected.says:
        assert part in told
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def vindex(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("older") / "llama.vindex"
    asked = ("-o", str(at), "--generation", "v2", "--level", "all")
    assert main(["extract", str(models / "llama"), *asked]) == 0
    return at


@pytest.mark.parametrize("command", sorted(set(EVERY) - set(OF_CHECKPOINTS) - NOT_RUN - OF_VINDEX3))
def test_the_older_generation_is_taken(
    command: str, cli: Run, vindex: Path, llama: Path, tmp_path: Path
) -> None:
    answer = call(cli, command, vindex, llama, tmp_path)
    assert answer.status == 0, answer.err


@pytest.mark.parametrize("command", sorted(OF_VINDEX3 | set(OF_CHECKPOINTS)))
def test_what_the_older_generation_has_not_is_refused_by_name(
    command: str, cli: Run, vindex: Path, llama: Path, tmp_path: Path
) -> None:
    answer = call(cli, command, vindex, llama, tmp_path)
    assert answer.status == 2
    assert OF_CHECKPOINTS.get(command, "is of generation VINDEX2") in answer.problem
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("command", ["pull", "show", "verify", "exec", "publish"])
def test_every_version_on_a_hub(
    command: str,
    version: Version,
    cli: Run,
    llama: Path,
    of_version: Of,
    hub: UploadHub,
    tmp_path: Path,
) -> None:
    """What is refused is refused by the index, before anything else is fetched."""
    hub.repo("org/model").commit({**file_bytes(of_version(version)), ".gitattributes": b""})
    places = {"model": "hf://org/model", "good": llama, "to": tmp_path / "out", "text": ""}
    answer = cli(command, *EVERY[command].format(**places).split())
    if version.kind == "read":
        assert answer.status == 0, answer.err
        return
    assert answer.status == 2
    assert "hf://org/model: " in answer.problem
    assert "index.json" in answer.problem
    assert version.found in answer.problem
    assert {request.path.rpartition("/")[2] for request in hub.asked("/resolve/")} == {"index.json"}


def test_both_versions_give_the_same_bits(cli: Run, of_version: Of, tmp_path: Path) -> None:
    dumps = [
        cli(
            "exec",
            of_version(version),
            "--tokens",
            "1,2",
            "--json",
            "--logit-dump",
            tmp_path / f"{version.name}.npy",
        )
        .ok()
        .json["payload_sha256"]
        for version in VERSIONS
        if version.kind == "read"
    ]
    assert dumps[0] == dumps[1]
