"""Recorded oracles: tiny checkpoints, and what transformers computed from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

__all__ = [
    "BANK_ENCODINGS",
    "EXPERT_WIDTH",
    "MIXTURES",
    "NAMES",
    "OWN",
    "ROOT",
    "Oracle",
    "load_oracle",
]

OWN = Path(__file__).parent
ROOT = Path(os.environ.get("LARQL_TEST_ORACLES") or OWN).absolute()
NAMES = tuple(sorted(path.parent.name for path in ROOT.glob("*/recorded.safetensors")))

# One oracle of each family with routed experts, and what its experts are rounded to.
MIXTURES = (
    "deepseek_v3",
    "gemma4-experts",
    "glm4_moe-groups",
    "gpt_oss",
    "granitemoehybrid-routed",
    "inkling",
    "kimi_linear",
    "mixtral",
    "olmoe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next-routed",
)
BANK_ENCODINGS = ("q4_k", "mxfp4")
EXPERT_WIDTH = 16
"""What the width of these experts is a multiple of: kernels read padded rows in such steps."""


@dataclass(frozen=True)
class Oracle:
    """One checkpoint and what is known of it.

    Attributes
    ----------
    name : str
    checkpoint : Path
    tokens, greedy : list of int
        The prompt, and the tokens that follow it greedily.
    hidden : float32 ``[layers + 1, T, hidden]``
        What enters the first layer, and what each layer leaves.
    logits : float32 ``[T, vocab]``
    facts : mapping
        Recipe, seed, dtype of the weights, and versions.
    """

    name: str
    checkpoint: Path
    tokens: list[int]
    greedy: list[int]
    hidden: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]
    facts: Mapping[str, str]


def load_oracle(name: str, root: Path = ROOT) -> Oracle:
    directory = root / name
    with safe_open(directory / "recorded.safetensors", framework="np") as file:
        return Oracle(
            name=name,
            checkpoint=directory / "checkpoint",
            tokens=file.get_tensor("tokens").tolist(),
            greedy=file.get_tensor("greedy").tolist(),
            hidden=file.get_tensor("hidden"),
            logits=file.get_tensor("logits"),
            facts=file.metadata(),
        )
