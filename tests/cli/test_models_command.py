"""``larql models`` tells what the registry and the oracles say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from larql.format.source.families import FAMILIES

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
    assert {"softmax_attention", "dense_ffn", "yarn rope"} <= set(llama["operations"])
    names = [oracle["oracle"] for oracle in llama["oracles"]]
    assert names == ["llama", "llama-llama3", "llama-yarn"]
    for oracle in llama["oracles"]:
        assert set(oracle["errors"]) == {"production", "reference"}
        assert 0 < max(oracle["errors"].values()) < 2e-4
