"""``larql models`` tells what the registry and the oracles say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace

from larql.format.source.families import FAMILIES
from larql.format.source.held import reports

Process = Callable[..., subprocess.CompletedProcess[str]]


def test_every_family_is_listed(larql_process: Process) -> None:
    process = larql_process("models")
    assert process.returncode == 0, process.stderr
    lines = {line.split()[0]: line for line in process.stdout.splitlines()[1:]}
    assert sorted(lines) == sorted(family.name for family in FAMILIES)
    for family in FAMILIES:
        for name in (*family.model_types, *family.architectures):
            assert name in lines[family.name]


def test_json_tells_each_oracle(larql_process: Process) -> None:
    document = json.loads(larql_process("models", "--json").stdout)
    found = {family["name"]: family for family in document["families"]}
    assert sorted(found) == sorted(family.name for family in FAMILIES)
    llama = found["llama"]
    assert llama["model_types"] == llama["architectures"] == ["llama"]
    assert {"softmax_attention", "dense_ffn", "rope (yarn)"} <= set(llama["operations"])
    names = [oracle["oracle"] for oracle in llama["oracles"]]
    assert names == ["llama", "llama-llama3", "llama-yarn"]
    for oracle in llama["oracles"]:
        assert set(oracle["errors"]) == {"production", "reference"}
        assert 0 < max(oracle["errors"].values()) < 2e-4


def test_what_is_compiled_and_executed_is_told(larql_process: Process) -> None:
    document = json.loads(larql_process("models", "--json").stdout)
    found = {family["name"]: family for family in document["families"]}
    assert found["llama"]["compiles"] == ["safetensors", "gguf"]
    assert found["inkling"]["compiles"] == ["safetensors"]
    assert found["qwen3_5"]["compiles"] == ["safetensors", "gguf", "mtp"]
    for family in found.values():
        assert family["executes"] == ["reference", "production"], family["name"]
    table = larql_process("models").stdout.splitlines()
    assert {"compiles", "executes"} <= set(table[0].split())
    (line,) = (line for line in table if line.startswith("qwen3_5 "))
    assert "safetensors, gguf, mtp" in line
    assert "reference, production" in line


def test_a_backend_executes_what_it_computes_and_no_more() -> None:
    """One oracle without a figure, or one that is too far off, and it does not."""
    (report,) = (report for report in reports() if report.name == "llama")
    first, *others = report.oracles
    assert report.executes == ("reference", "production")
    for errors in ({"reference": 1e-6}, {"reference": 1e-6, "production": 0.03}):
        worse = replace(report, oracles=(replace(first, errors=errors), *others))
        assert worse.executes == ("reference",)
    assert replace(report, oracles=()).executes == ()
    refused = replace(report, oracles=(replace(first, errors={"reference": 1e-6}),))
    assert refused.error("production") is None
