"""Manifests of four kinds of router, and the document of one of them written by hand."""

from __future__ import annotations

from typing import Any

from larql.format.moe.manifest import (
    Dims,
    ExpertBank,
    GroupedTopK,
    Manifest,
    MoeLayer,
    Router,
    RouterInput,
    Storage,
    TopK,
    Transforms,
)

GATED = "gated-mlp-v1"


def bank(storage: str, experts: int = 8, programme: str = GATED) -> ExpertBank:
    return ExpertBank(experts, programme, storage, Dims(64, 32, 64))


OWN_INPUT = MoeLayer(
    0,
    Router(
        "layer.0/router.weight",
        "softmax",
        "before",
        TopK(2),
        True,
        expert_scale="layer.0/router.expert_scale",
        input=RouterInput("residual", 1e-6, "layer.0/router.scale", 0.125),
    ),
    bank("a"),
    routed_output_norm="layer.0/ffn.post_norm.weight",
)
AFTER_SELECTION = MoeLayer(
    1,
    Router("r", "softmax", "after", TopK(4), False, gate_bias="b"),
    ExpertBank(32, "gpt-oss-expert-v1", "b", Dims(64, 64, 64), fused_rows="interleaved"),
    combine="replace",
)
GROUPED = MoeLayer(
    2,
    Router(
        "r",
        "sigmoid",
        "before",
        GroupedTopK(8, 4, 2, "top2_sum"),
        True,
        correction_bias="c",
        route_scale=2.5,
        quantile_balance="q",
    ),
    bank("c", 64),
    shared_bank=bank("d", 1),
)
SINK = MoeLayer(
    3,
    Router(
        "r",
        "sigmoid",
        "after",
        TopK(16),
        True,
        correction_bias="c",
        global_scale="g",
        shared_sink=True,
    ),
    ExpertBank(112, "latent-moe-v1", "e", Dims(256, 256, 256), "latent"),
    Transforms("layer.3/in", "layer.3/out"),
    bank("f", 2, "shared-routed-mlp-v1"),
)
STORAGES = tuple(Storage(key, (f"routed/{key}.lyrw",), 0) for key in "abcdef")
ALL = Manifest((OWN_INPUT, AFTER_SELECTION, GROUPED, SINK), STORAGES)

# The whole of a manifest as it is written, key by key.
DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "layers": [
        {
            "layer": 3,
            "router": {
                "scores": "r",
                "score": "sigmoid",
                "scored": "after",
                "selection": {"op": "top_k", "k": 16},
                "renormalise": True,
                "correction_bias": "c",
                "route_scale": 1.0,
                "global_scale": "g",
                "shared_sink": True,
                "input": {"source": "expert_input", "factor": 1.0},
            },
            "routed_bank": {
                "experts": 112,
                "programme": "latent-moe-v1",
                "storage": "e",
                "dims": {"input": 256, "intermediate": 256, "output": 256},
                "input_space": "latent",
            },
            "transforms": {"routed_input": "layer.3/in", "routed_output": "layer.3/out"},
            "shared_bank": {
                "experts": 2,
                "programme": "shared-routed-mlp-v1",
                "storage": "f",
                "dims": {"input": 64, "intermediate": 32, "output": 64},
                "input_space": "hidden",
            },
            "reduction": "weighted_sum",
            "combine": "add",
        }
    ],
    "storages": [
        {"key": "e", "files": ["routed/e.lyrw"], "bank_id": 0},
        {"key": "f", "files": ["routed/f.lyrw"], "bank_id": 0},
    ],
}
