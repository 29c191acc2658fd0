"""Problems of a checkpoint: each is named once, in its own spelling, whatever else is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from larql.errors import CompileError
from larql.format.source.checkpoint import Checkpoint, SourceTensor, open_checkpoint
from larql.format.source.compiler import Judging, compile_checkpoint
from larql.format.source.problems import Problem, Problems
from larql.format.source.verdict import judge
from tests.oracles.recorded import NAMES, OWN

STRANGE = ("x", 0, {}, True, 10**12)


def problems_of(checkpoint: Checkpoint, tensors: Mapping[str, SourceTensor]) -> list[Problem]:
    """Judge a checkpoint as if it had these tensors."""
    whole = checkpoint.tensors
    checkpoint.tensors = MappingProxyType(dict(tensors))
    judging = Judging(headers_only=True)
    try:
        compile_checkpoint(checkpoint, judging)
    except CompileError as error:
        assert judging.problems.found
        assert judging.problems.found[0].text in str(error)
    finally:
        checkpoint.tensors = whole
    return judging.problems.found


def some(names: list[str]) -> list[str]:
    """A tensor of each kind, wherever in the checkpoint."""
    kinds: dict[str, str] = {}
    for at, name in enumerate(names):
        kind = "".join(c for c in name if not c.isdigit())
        if kind not in kinds or at % 3 == 0:
            kinds[kind] = name
    return list(kinds.values())


@pytest.mark.slow(30)
@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named_as_the_checkpoint_spells_it(name: str) -> None:
    with open_checkpoint(OWN / name / "checkpoint") as checkpoint:
        whole = checkpoint.tensors
        assert problems_of(checkpoint, whole) == []
        for gone in some(list(whole)):
            rest = {key: tensor for key, tensor in whole.items() if key != gone}
            found = problems_of(checkpoint, rest)
            if not found:  # of what stands beside the text model
                assert ".audio." in gone or ".visual." in gone
                continue
            assert [problem.name for problem in found] == [gone]
            assert f"tensor {gone} is missing" in found[0].text


@pytest.mark.slow(10)
@pytest.mark.parametrize("name", ["gemma4-embeddings", "granitemoehybrid-older"])
def test_no_value_of_any_key_ends_judging(tmp_path: Path, name: str) -> None:
    """Whatever a key is, every other is judged, and what blocks is never admissible."""
    path = tmp_path / "m"
    shutil.copytree(OWN / name / "checkpoint", path)
    config = json.loads((path / "config.json").read_text())
    for change in changed(config):
        (path / "config.json").write_text(json.dumps(change))
        verdict = judge(path)
        keys = {key.key: key.verdict for key in verdict.keys}
        assert set(change) <= set(keys)
        blocked = "blocking" in keys.values()
        assert not (blocked and verdict.admissible)
        assert all(problem.text.count("\n") == 0 for problem in verdict.problems)


def changed(config: dict[str, object]) -> Iterator[dict[str, object]]:
    for key, value in config.items():
        yield {k: v for k, v in config.items() if k != key}
        for strange in STRANGE:
            yield {**config, key: strange}
        if isinstance(value, dict):
            for inner in changed(value):
                yield {**config, key: inner}


def test_a_count_that_is_not_to_be_believed_ends_somewhere(tmp_path: Path) -> None:
    path = tmp_path / "m"
    shutil.copytree(OWN / "qwen3_moe" / "checkpoint", path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_local_experts": 10**15}))
    assert 1 < len(judge(path).problems) <= 10_000


def test_problems_are_counted() -> None:
    problems = Problems()
    problems.check()
    for key in ("a", "b", "a", "c"):
        problems.add(Problem("key", key, f"`{key}` is odd"))
    with pytest.raises(CompileError, match=r"^`a` is odd \(and 2 more problems: see larql vind"):
        problems.check()
    problems.assume("b")
    problems.add(Problem("tensor", "t", "tensor t is missing"))
    assert [problem.name for problem in problems.found] == ["a", "b", "c"]
