"""The boundary between generations: every schema version, and what is none, at every command."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from larql.cli.app import COMMANDS
from tests.builders.containers import copy_container, edit_index
from tests.cli.conftest import Run
from tests.cli.test_commands import function_of, leaves

SUPPORTED = "1-2 (VINDEX2), 3-4 (VINDEX3)"
MISSING = object()

# What each command is given behind the model; {to} is a place to write to, {text} a text file.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "run": ("the", "--generate", "1"),
    "show": (),
    "verify": (),
    "slice": ("-o", "{to}"),
    "reconstruct": ("-o", "{to}"),
    "tokenize": ("the",),
    "perplexity": ("{text}", "--window", "8", "--stride", "4"),
    "bench": (),
    "exec": ("--tokens", "1"),
    "observe": ("--tokens", "1"),
    "walk": ("--tokens", "1"),
    "describe": ("1",),
    "vindex3 exec": ("--tokens", "1"),
    "vindex3 observe": ("--tokens", "1"),
    "vindex3 ops": (),
    "vindex3 capability": (),
    "vindex3 accept": ("--tokens", "1,2", "--draft", "depth:1"),
    "vindex3 draft-cost": ("--draft", "depth:1"),
    "vindex3 ladder": ("--tokens", "1,2"),
    "vindex3 necessity": ("--tokens", "1,2"),
    "vindex3 parity": ("--tokens", "1,2"),
    "represent": ("-o", "{to}", "--pack"),
    "extract": ("-o", "{to}"),
    "vindex3 plan": (),
}
# They take checkpoints, and say of a container that it is one.
OF_CHECKPOINTS = {"extract", "vindex3 plan"}
# What a sound container is not enough for: experts, blocks to pack, or minutes of measuring.
NOT_RUN = {"bench", "represent", "vindex3 draft-cost", "vindex3 necessity"}


def taking_a_model() -> set[str]:
    """Every command that a container can be named to."""
    found = set()
    for words, entry in leaves(COMMANDS):
        parameters = inspect.signature(function_of(entry)).parameters
        if {"model", "source"} & set(parameters) and words[-1] != "pull":
            found.add(" ".join(words))
    return found


def test_the_table_has_every_command() -> None:
    assert taking_a_model() == set(ARGUMENTS), "say here what the command is given"


@pytest.fixture(scope="module")
def of_version(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Copies of one container that differ in the version of their index alone."""
    made: dict[object, Path] = {}

    def copy(version: object) -> Path:
        key = "missing" if version is MISSING else (type(version), version)
        if key not in made:
            at = tmp_path_factory.mktemp("version")
            directory = copy_container(models / "llama.vindex3", at / "c")

            def change(index: Any) -> None:
                index["version"] = version
                if version is MISSING:
                    del index["version"]

            made[key] = edit_index(directory, change)
        return made[key]

    return copy


def call(cli: Run, command: str, model: Path, to: Path) -> Any:
    text = to / "text.txt"
    text.write_text("the and in er on an " * 8)
    places = {"to": str(to / "out"), "text": str(text)}
    return cli(*command.split(), model, *(part.format(**places) for part in ARGUMENTS[command]))


@pytest.mark.parametrize("command", sorted(set(ARGUMENTS) - OF_CHECKPOINTS - NOT_RUN))
@pytest.mark.parametrize("version", [3, 4])
def test_versions_of_this_generation_are_read(
    command: str, version: int, cli: Run, of_version: Any, tmp_path: Path
) -> None:
    answer = call(cli, command, of_version(version), tmp_path)
    assert answer.status == 0, answer.err


@pytest.mark.parametrize("command", sorted(ARGUMENTS))
@pytest.mark.parametrize("version", [0, 1, 2, 5, -1])
def test_other_versions_are_refused_by_name(
    command: str, version: int, cli: Run, of_version: Any, tmp_path: Path
) -> None:
    answer = call(cli, command, of_version(version), tmp_path)
    assert answer.status == 2
    if command in OF_CHECKPOINTS:
        assert "is a container already" in answer.problem
    elif version in (1, 2):
        assert f"schema version {version} requires the VINDEX2 loader" in answer.problem
    else:
        assert f"schema version {version} is not known to this build" in answer.problem
        assert SUPPORTED in answer.problem
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", sorted(ARGUMENTS))
@pytest.mark.parametrize(
    "version", [MISSING, None, "3", 3.0, True], ids=["missing", "null", "text", "float", "true"]
)
def test_what_is_no_version_is_refused(
    command: str, version: object, cli: Run, of_version: Any, tmp_path: Path
) -> None:
    answer = call(cli, command, of_version(version), tmp_path)
    # To verify a container whose index is damaged is to find that.
    assert answer.status == (1 if command == "verify" else 2)
    told = answer.out if command == "verify" else answer.problem
    assert "version" in told
    assert SUPPORTED in told
    assert not (tmp_path / "out").exists()


def test_both_versions_give_the_same_bits(cli: Run, of_version: Any, tmp_path: Path) -> None:
    dumps = [
        cli(
            "exec",
            of_version(v),
            "--tokens",
            "1,2",
            "--json",
            "--logit-dump",
            tmp_path / f"{v}.npy",
        )
        .ok()
        .json["payload_sha256"]
        for v in (3, 4)
    ]
    assert dumps[0] == dumps[1]
