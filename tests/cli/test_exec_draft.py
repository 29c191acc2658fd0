"""``larql exec --component mtp``: a draft head's logits beside its target's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.builders.containers import make_container, read_json
from tests.builders.hybrids import changed, draft_tensors, nested, recorded
from tests.builders.safetensors import write_safetensors_dir
from tests.cli.conftest import Run

IDS = [3, 1, 4, 1, 5, 9]
TOKENS = ("--tokens", ",".join(map(str, IDS)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config, tensors = recorded("qwen3_5")
    at = tmp_path_factory.mktemp("draft")
    without = {name: value for name, value in tensors.items() if "_proj.bias" not in name}
    outer, inside = nested(changed(config, {"attention_bias": False}), without)
    directory = write_safetensors_dir(at / "c", outer, {**inside, **draft_tensors(config)})
    make_container(directory, at / "m.vindex3")
    return at / "m.vindex3"


def test_a_row_for_each_position_that_a_token_follows(
    model: Path, tmp_path: Path, cli: Run
) -> None:
    path = tmp_path / "m.npy"
    arguments = ("exec", model, *TOKENS, "--component", "mtp")
    report = cli(*arguments, "--logit-dump", path, "--json").ok().json
    rows = np.load(path)
    assert rows.shape == (len(IDS) - 1, 96)
    assert report["top"][0]["token"] == int(rows[-1].argmax())
    trunk = cli("exec", model, *TOKENS, "--json").ok().json
    assert [t["logit"] for t in report["target_top"]] == [t["logit"] for t in trunk["top"]]
    assert report["per_position"]["draft_top"] == rows.argmax(axis=1).tolist()
    assert report["summary"]["positions"] == 5
    assert report["summary"]["next_token"]["positions"] == 4
    sidecar = read_json(tmp_path / "m.npy.json")
    assert (sidecar["component"], sidecar["positions"]) == ("mtp", 5)
    assert sidecar["tap"] == {"producer": "target", "name": "final_norm"}
    assert (sidecar["tokens"], sidecar["shape"]) == (IDS, [5, 96])
    text = cli(*arguments).ok().out
    assert "mtp, drafting for target" in text and "same top token" in text
    # a dump of a draft head has no row for the last position, so it is no dump of the model
    problem = cli("vindex3", "score", path, path).problem
    assert "`tokens` is not a list of 5 ids" in problem


def test_speculating_with_it(model: Path, cli: Run) -> None:
    plain = cli("exec", model, *TOKENS, "-n", "12", "--json").ok().json
    found = cli("exec", model, *TOKENS, "-n", "12", "--speculate", "mtp", "--json").ok().json
    assert found["generated"] == plain["generated"]
    assert found["speculation"]["drafter"] == "mtp" and found["speculation"]["drafted"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-n", "2"), "does not go with --generate"),
        (("--draft-depth", "1"), "or --draft-depth"),
        (("--dump-layers", "x"), "--dump-layers"),
        (("--tokens", "1"), "it takes at least 2"),
    ],
)
def test_what_is_refused(model: Path, cli: Run, options: tuple[str, ...], words: str) -> None:
    assert words in cli("exec", model, *TOKENS, "--component", "mtp", *options).problem


def test_other_commands_say_where_to_go(model: Path, cli: Run) -> None:
    problem = cli("observe", model, *TOKENS, "--component", "mtp").problem
    assert "`larql exec --component mtp` runs both" in problem
