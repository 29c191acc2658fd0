"""``larql represent`` and ``--profile``, as a user meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from larql.cli.app import COMMANDS
from larql.format.container import Container
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def plain(models: Path) -> Path:
    """A container in blocks of 8 bits, with a tokenizer."""
    return models / "llama.gguf.vindex3"


@pytest.fixture(scope="module")
def packed(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from larql.cli.main import main

    out = tmp_path_factory.mktemp("represent") / "packed.vindex3"
    assert main(["represent", str(plain), "-o", str(out), "--pack", "--quiet"]) == 0
    return out


def slow(cli: Run, command: str, *arguments: object) -> Any:
    return cli(command, *arguments, "--backend", "reference", "--json").ok().json


def test_what_is_written_is_told(cli: Run, plain: Path, packed: Path, tmp_path: Path) -> None:
    report = cli("represent", plain, "-o", tmp_path / "a", "--pack", "--json").ok().json
    assert list(report) == [
        "path", "fingerprint", "container", "bytes", "added_bytes", "profile", "packed",
        "not_packed",
    ]  # fmt: skip
    container = Container(plain)
    assert report["container"] == container.fingerprint
    assert (
        report["fingerprint"]
        == Container(packed).fingerprint
        == Container(tmp_path / "a").fingerprint
    )
    assert {*report["packed"], *report["not_packed"]} == set(container.operands)
    assert set(report["packed"].values()) == {"q8_0_r16"}
    assert set(report["not_packed"].values()) == {"vectors"}
    text = cli("represent", plain, "-o", tmp_path / "a", "--pack", "--force").ok().out
    assert f"packed       {len(report['packed'])} q8_0_r16\n" in text
    assert text.endswith(f"not packed: {len(report['not_packed'])} operands: vectors\n")
    cli("verify", tmp_path / "a").ok()


def test_refusals(cli: Run, plain: Path, packed: Path, llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "a"
    assert "give --pack" in cli("represent", plain, "-o", out).problem
    assert "is packed already" in cli("represent", packed, "-o", out, "--pack").problem
    assert "f32 has no packed form" in cli("represent", llama, "-o", out, "--pack").problem
    assert "give --force" in cli("represent", plain, "-o", llama, "--pack").problem
    problem = cli("extract", llama, "-o", out, "--quant", "q8_0_r16").problem
    assert problem == "--quant: 'q8_0_r16': expected one of q8_0, q4_0, q4_k, q6_k, mxfp4"
    assert not out.exists()


def test_show_lists_what_may_be_selected(cli: Run, plain: Path, packed: Path) -> None:
    old, new = (cli("show", path, "--json").ok().json for path in (plain, packed))
    assert (old["profiles"], old["variants"]) == ({}, {})
    assert new["profiles"] == {"packed": {"inherits": None, "variants": ["packed"]}}
    assert list(new["variants"]) == ["packed"]
    for name in ("parameters", "bits_per_weight", "layers"):
        assert old.get(name) == new.get(name)
    count = len(new["variants"]["packed"]["representations"])
    text = cli("show", packed).ok().out
    assert f"variant packed: {count} q8_0_r16\n" in text
    assert f"profile packed: selects representations of {count} operands\n" in text


def test_numbers_and_their_provenance(cli: Run, packed: Path, tmp_path: Path) -> None:
    found = {}
    for profile in (None, "packed"):
        chosen = () if profile is None else ("--profile", profile)
        dump = tmp_path / f"{profile}.npy"
        report = slow(cli, "exec", packed, "--tokens", "1,2", "--logit-dump", dump, *chosen)
        assert report["provenance"]["container"]["profile"] == profile
        sidecar = Path(report["sidecar"]).read_text(encoding="utf-8")
        assert ('"profile": "packed"' in sidecar) is (profile is not None)
        found[profile] = report["payload_sha256"]
    assert found[None] == found["packed"]
    text = cli(
        "exec", packed, "--tokens", "1", "--backend", "reference", "--profile", "packed"
    ).ok().out  # fmt: skip
    assert "profile       packed" in text.replace("profile    ", "profile       ")


def test_records_of_two_profiles_are_two_identities(cli: Run, packed: Path, tmp_path: Path) -> None:
    prints = []
    for name, chosen in (("a", ()), ("b", ("--profile", "packed"))):
        record = tmp_path / name
        said = slow(cli, "observe", packed, "--tokens", "1,2", "--record", record, *chosen)
        prints.append(said["provenance_fingerprint"])
        replayed = cli("vindex3", "replay", record).ok().out
        assert ("profile" in replayed) is bool(chosen)
    assert prints[0] != prints[1]


def test_a_dump_of_layers_is_not_resumed_under_another_profile(
    cli: Run, packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "planes"
    slow(cli, "exec", packed, "--tokens", "1,2", "--dump-layers", out)
    (out / "manifest.json").unlink()
    answer = cli(
        "exec", packed, "--tokens", "1,2", "--dump-layers", out, "--resume",
        "--backend", "reference", "--profile", "packed",
    )  # fmt: skip
    assert "container" in answer.problem


@pytest.mark.parametrize(
    "arguments",
    [
        ("exec", "--tokens", "1"),
        ("observe", "--tokens", "1"),
        ("run", "Hello"),
        ("bench",),
        ("vindex3 ops",),
        ("vindex3 capability",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_that_runs_takes_a_profile(
    cli: Run, packed: Path, arguments: tuple[str, ...]
) -> None:
    command, *rest = arguments
    problem = cli(*command.split(), packed, *rest, "--profile", "small").problem
    assert problem.endswith("there is no profile 'small'; the container has packed")


def test_the_other_commands_take_it_too(cli: Run, packed: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("Some words to read.", encoding="utf-8")
    problem = cli("perplexity", packed, text, "--profile", "small").problem
    assert "no profile 'small'" in problem
    assert "no profile 'small'" in cli("doctor", "--warm", packed, "--profile", "small").problem
    assert "give --warm" in cli("doctor", "--profile", "small").problem
    said = slow(cli, "perplexity", packed, text, "--profile", "packed")
    assert said["provenance"]["container"]["profile"] == "packed"
    ops = cli("vindex3", "ops", packed, "--profile", "packed", "--json").ok().json
    named = {o["encoding"] for op in ops["operations"] for o in op["operands"]}
    assert named == {"f32", "q8_0_r16"}


def test_capability_under_the_profile(cli: Run, plain: Path, packed: Path) -> None:
    said = cli("vindex3", "capability", packed, "--profile", "packed", "--json").ok().json
    found = {op["name"]: op["authority"] for op in said["operations"]}
    assert found["local_decode"]["level"] == "source-equivalent"
    said = cli("vindex3", "capability", packed, "--json").ok().json
    other = cli("vindex3", "capability", plain, "--json").ok().json
    assert [op["authority"] for op in said["operations"]] == [
        op["authority"] for op in other["operations"]
    ]


def test_it_is_among_the_commands() -> None:
    assert "represent" in COMMANDS
