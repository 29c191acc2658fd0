"""Recorded oracles of latent attention and recurrent layers, rewritten as GGUF files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders import gguf_conversions as gguf
from tests.builders.containers import make_container
from tests.builders.gguf import f32, u32
from tests.builders.gguf_names import POST_NORMS, Conversion, write_as_gguf
from tests.oracles.recorded import OWN, load_oracle
from tests.oracles.test_oracles import BACKENDS, assert_close


def _gemma3_keys(config: Mapping[str, Any]) -> dict[str, object]:
    ropes = config.get("rope_parameters") or {}
    full = ropes.get("full_attention") or {"rope_theta": config.get("rope_theta")}
    local = ropes.get("sliding_attention") or {"rope_theta": config.get("rope_local_base_freq")}
    keys = {
        "attention.sliding_window": u32(config["sliding_window"]),
        "attention.sliding_window_pattern": u32(2),
        "rope.freq_base": f32(full["rope_theta"]),
        "rope.freq_base_swa": f32(local["rope_theta"]),
    }
    if config.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = f32(config["final_logit_softcapping"])
    if config.get("rope_scaling"):
        keys |= {"rope.scaling.type": "linear"}
        keys |= {"rope.scaling.factor": f32(config["rope_scaling"]["factor"])}
    return keys


GEMMA3 = Conversion("gemma3", offset_norms=True, names=POST_NORMS, keys=_gemma3_keys)
CASES: dict[str, tuple[str, Conversion]] = {
    "deepseek_v3": ("deepseek_v3", gguf.DEEPSEEK),
    "deepseek_v3 whole": ("deepseek_v3", gguf.DEEPSEEK_WHOLE),
    "qwen3_5": ("qwen3_5", gguf.QWEN35),
    "qwen3_5-older": ("qwen3_5-older", gguf.QWEN35),
    "qwen3_5_moe": ("qwen3_5_moe", gguf.QWEN35_MOE),
    "qwen3_next": ("qwen3_next", gguf.QWEN3_NEXT),
    "qwen3_next-routed": ("qwen3_next-routed", gguf.QWEN3_NEXT),
    "qwen3_next-routed packed": ("qwen3_next-routed", gguf.QWEN3_NEXT_PACKED),
    "granitemoehybrid-older": ("granitemoehybrid-older", gguf.GRANITE_HYBRID),
    "granitemoehybrid-routed": ("granitemoehybrid-routed", gguf.GRANITE_HYBRID_ROUTED),
    "granitemoehybrid-dense": ("granitemoehybrid-dense", gguf.GRANITE_MOE),
    "gemma4": ("gemma4", gguf.GEMMA4),
    "gemma4-embeddings": ("gemma4-embeddings", gguf.GEMMA4),
    "gemma4-experts": ("gemma4-experts", gguf.GEMMA4),
    "lfm2-older": ("lfm2-older", gguf.LFM2),
    "kimi_linear": ("kimi_linear", gguf.KIMI),
    "seed_oss": ("seed_oss", gguf.SEED_OSS),
    "seed_oss-older": ("seed_oss-older", gguf.SEED_OSS),
}


def logits(source: Path, place: Path, tokens: list[int], backend: str) -> Any:
    run = open_run(make_container(source, place), RunOptions(backend=backend))
    session = Session(run.prepared, len(tokens))
    return session.logits(session.advance(tokens))


@pytest.mark.parametrize("case", CASES)
@BACKENDS
def test_a_gguf_file_computes_what_was_recorded(tmp_path: Path, case: str, backend: str) -> None:
    name, conversion = CASES[case]
    oracle = load_oracle(name, OWN)
    path = write_as_gguf(oracle.checkpoint, tmp_path / "m.gguf", conversion)
    found = logits(path, tmp_path / "a", [*oracle.tokens, *oracle.greedy], backend)
    assert_close(found[: len(oracle.tokens)], oracle.logits)
    assert found[len(oracle.tokens) - 1 : -1].argmax(axis=1).tolist() == oracle.greedy


def edited(checkpoint: Path, path: Path, **keys: object) -> Path:
    """A copy whose configuration states other values, within ``rope_scaling`` as well."""
    copy = Path(shutil.copytree(checkpoint, path))
    config = json.loads((copy / "config.json").read_text())
    for key, value in keys.items():
        place, _, inner = key.rpartition("__")
        (config[place] if place else config)[inner] = value
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    ("name", "conversion", "keys"),
    [
        # One number states the growth of scores and of turned parts.
        ("deepseek_v3-direct", gguf.DEEPSEEK_HALVES, {"rope_scaling__mscale": 1.1}),
        ("deepseek_v3-direct",
         replace(gguf.DEEPSEEK_WHOLE, prepare=gguf.neighbours_turn),
         {"rope_scaling__mscale": 1.1}),
        # The scale of scores is a head's width.
        ("gemma3", GEMMA3, {"query_pre_attn_scalar": 16}),
        ("gemma3-linear", GEMMA3, {"query_pre_attn_scalar": 16}),
        # No key limits steps.
        ("granitemoehybrid", gguf.GRANITE_HYBRID, {"time_step_limit": None}),
    ],
)  # fmt: skip
@BACKENDS
def test_both_forms_agree_where_files_cannot_say_all(
    tmp_path: Path, name: str, conversion: Conversion, keys: dict[str, object], backend: str
) -> None:
    oracle = load_oracle(name, OWN)
    checkpoint = edited(oracle.checkpoint, tmp_path / "checkpoint", **keys)
    path = write_as_gguf(checkpoint, tmp_path / "m.gguf", conversion)
    tokens = oracle.tokens
    expected = logits(checkpoint, tmp_path / "a", tokens, backend)
    assert_close(logits(path, tmp_path / "b", tokens, backend), expected)
