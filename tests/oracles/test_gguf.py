"""Recorded oracles again, their checkpoints rewritten as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.format.container import verify_container
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compare import compare_with_source
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import make_container
from tests.builders.gguf import f32, u32
from tests.builders.gguf_names import (
    NEXT_NORM,
    POST_NORMS,
    Conversion,
    expert_keys,
    rope_of,
    write_as_gguf,
    yarn_keys,
)
from tests.builders.hybrids import write_changed
from tests.oracles.recorded import OWN, load_oracle
from tests.oracles.test_oracles import BACKENDS, assert_close


def _phi3_keys(config: Mapping[str, Any]) -> dict[str, object]:
    share = rope_of(config).get("partial_rotary_factor") or config.get("partial_rotary_factor")
    dims = int(share * config["hidden_size"] // config["num_attention_heads"])
    longer = config["max_position_embeddings"] / config["original_max_position_embeddings"]
    magnitude = 1.0
    if longer > 1.0:
        original = config["original_max_position_embeddings"]
        magnitude = float(np.sqrt(1.0 + np.log(longer) / np.log(original)))
    return {
        "rope.dimension_count": u32(dims),
        "rope.scaling.original_context_length": u32(config["original_max_position_embeddings"]),
        "rope.scaling.attn_factor": f32(magnitude),
        "attention.sliding_window": u32(config["sliding_window"] or 0),
    }


def _phi3_tensors(config: Mapping[str, Any]) -> dict[str, list[float]]:
    rope = rope_of(config)
    if "long_factor" not in rope:
        return {}
    return {
        "rope_factors_long.weight": rope["long_factor"],
        "rope_factors_short.weight": rope["short_factor"],
    }


GPT_OSS = Conversion(
    "gpt-oss",
    names=NEXT_NORM,
    keys=lambda config: {
        **yarn_keys(config),
        **expert_keys(config),
        "attention.sliding_window": u32(config["sliding_window"]),
        "expert_feed_forward_length": u32(config["intermediate_size"]),
    },
)
PHI3 = Conversion("phi3", keys=_phi3_keys, tensors=_phi3_tensors)


def _llama3_factors(config: Mapping[str, Any]) -> dict[str, list[float]]:
    """What each frequency is divided by: nothing, all of the factor, or a part of it between."""
    rope, dim = rope_of(config), config["hidden_size"] // config["num_attention_heads"]
    turns = rope["original_max_position_embeddings"] / (
        2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    )
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return {"rope_freqs.weight": (1.0 / ((1 - kept) / rope["factor"] + kept)).tolist()}


GRANITE = Conversion(
    "granite",
    adjacent=True,
    keys=lambda config: {
        "attention.scale": f32(config["attention_multiplier"]),
        "embedding_scale": f32(config["embedding_multiplier"]),
        "residual_scale": f32(config["residual_multiplier"]),
        "logit_scale": f32(config["logits_scaling"]),
        "rope.dimension_count": u32(8),
    },
)
OLMO2 = Conversion("olmo2", names=POST_NORMS)
GLM4_MOE = Conversion(
    "glm4moe",
    names=NEXT_NORM,
    keys=lambda config: {
        **expert_keys(config),
        "expert_shared_count": u32(config["n_shared_experts"]),
        "leading_dense_block_count": u32(config["first_k_dense_replace"]),
        "expert_weights_scale": f32(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": u32(2),
        "expert_group_count": u32(config["n_group"]),
        "expert_group_used_count": u32(config["topk_group"]),
        "rope.dimension_count": u32(
            int(
                (
                    rope_of(config).get("partial_rotary_factor")
                    or config.get("partial_rotary_factor")
                    or 0.5
                )
                * config["head_dim"]
            )
        ),
    },
)
CASES = {
    "llama": Conversion("llama", adjacent=True),
    "llama-llama3": Conversion("llama", adjacent=True, tensors=_llama3_factors),
    "mistral-yarn": Conversion("mistral3", adjacent=True, keys=yarn_keys),
    "qwen2-older": Conversion(
        "qwen2",
        keys=lambda config: {"rope.scaling.type": "linear", "rope.scaling.factor": f32(2.0)},
    ),
    "qwen3-yarn": Conversion("qwen3", keys=yarn_keys),
    "phi3": PHI3,
    "phi3-short": PHI3,
    "phi3-long": PHI3,
    "granite": GRANITE,
    "granite-older": GRANITE,
    "smollm3-older": Conversion("smollm3", adjacent=True),
    "olmo2": OLMO2,
    "olmo2-older": OLMO2,
    "mixtral-top3": Conversion(
        "llama",
        adjacent=True,
        keys=lambda config: {
            **expert_keys(config),
            "rope.scaling.type": "linear",
            "rope.scaling.factor": f32(2.0),
        },
    ),
    "qwen3_moe-raw": Conversion(
        "qwen3moe", keys=lambda config: {**expert_keys(config), "expert_weights_norm": False}
    ),
    "olmoe": Conversion(
        "olmoe",
        keys=lambda config: {**expert_keys(config), "attention.clamp_kqv": f32(0.8)},
    ),
    "olmoe-renormalised": Conversion(
        "olmoe", keys=lambda config: {**expert_keys(config), "expert_weights_norm": True}
    ),
    "glm4_moe": GLM4_MOE,
    "glm4_moe-groups": GLM4_MOE,
    "gemma2-older": Conversion(
        "gemma2",
        offset_norms=True,
        names=POST_NORMS,
        keys=lambda config: {
            "attn_logit_softcapping": f32(config["attn_logit_softcapping"]),
            "final_logit_softcapping": f32(config["final_logit_softcapping"]),
            "attention.sliding_window": u32(config["sliding_window"]),
        },
    ),
}


@BACKENDS
def test_clamped_experts_in_a_gguf_file_are_those_of_the_checkpoint(
    tmp_path: Path, backend: str
) -> None:
    """Files do not say where the activation is cut; the recorded checkpoint cuts it elsewhere."""
    checkpoint = write_changed(tmp_path / "m", "gpt_oss", swiglu_limit=7.0)
    path = write_as_gguf(checkpoint, tmp_path / "m.gguf", GPT_OSS)
    found = []
    for source in (checkpoint, path):
        container = make_container(source, tmp_path / f"{source.name}.vindex3")
        assert verify_container(container, SilentProgress()) == []
        with open_checkpoint(source) as opened:
            assert list(compare_with_source(container, opened, SilentProgress())) == []
        tokens = load_oracle("gpt_oss", OWN).tokens
        session = Session(open_run(container, RunOptions(backend=backend)).prepared, len(tokens))
        found.append(session.logits(session.advance(tokens)))
    assert_close(found[1], found[0])


@pytest.mark.parametrize("name", CASES)
@BACKENDS
def test_a_gguf_file_computes_what_the_checkpoint_does(
    tmp_path: Path, name: str, backend: str
) -> None:
    oracle = load_oracle(name, OWN)
    path = write_as_gguf(oracle.checkpoint, tmp_path / "m.gguf", CASES[name])
    run = open_run(make_container(path, tmp_path / "out"), RunOptions(backend=backend))
    tokens = [*oracle.tokens, *oracle.greedy]
    session = Session(run.prepared, len(tokens))
    logits = session.logits(session.advance(tokens))
    assert_close(logits[: len(oracle.tokens)], oracle.logits)
    assert logits[len(oracle.tokens) - 1 : -1].argmax(axis=1).tolist() == oracle.greedy
