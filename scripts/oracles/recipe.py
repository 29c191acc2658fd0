"""What a recorded oracle is made of: a configuration, random weights, and how they are stored.

A recipe knows neither torch nor transformers, so tests may read it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Config", "Draw", "Recipe", "offset_norms", "older_style", "usual"]

Config = dict[str, Any]
Values = npt.NDArray[np.float32]
Draw = Callable[[str, tuple[int, ...], np.random.Generator], Values]
"""Name and shape of a tensor, and a generator, to its values."""


@dataclass(frozen=True)
class Recipe:
    """One tiny checkpoint and what is asked of it.

    Attributes
    ----------
    name : str
        Name of the directory: the family, and the variant behind a dash.
    config : mapping
        Keys for ``AutoConfig.for_model``, ``model_type`` among them. Small numbers, peculiar
        options.
    dtype : str
        How the weights are stored. The oracle computes in float32 either way.
    shards : int
        Number of weight files, about.
    rewrite : callable or None
        From ``config.json`` as transformers writes it to the one that is stored; None: as written.
        Transformers reads the rewritten one, so a rewriting that changes the model is noticed.
    draw : callable
        Values of a tensor.
    prompt, greedy : int
        Tokens of the prompt, longer than every window; tokens that are generated after it.
    seed : int
    """

    name: str
    config: Mapping[str, Any]
    dtype: Literal["float32", "bfloat16"] = "float32"
    shards: int = 1
    rewrite: Callable[[Config], Config] | None = None
    draw: Draw = lambda name, shape, generator: usual(name, shape, generator)
    prompt: int = 22
    greedy: int = 6
    seed: int = 0


def usual(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Values:
    """Draw weights that leave no option without effect: norms away from 1, biases away from 0."""
    normal = generator.standard_normal(shape)
    if len(shape) == 0 or (len(shape) == 1 and not name.endswith("norm.weight")):
        return (0.4 * normal).astype(np.float32)
    if len(shape) == 1:
        return (1.2 + 0.3 * normal).astype(np.float32)
    gain = 1.0 if name.endswith("embed_tokens.weight") else 1.7
    return (normal * (gain / math.sqrt(shape[-1]))).astype(np.float32)


def offset_norms(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> Values:
    """Draw as :func:`usual`, for a family whose norms store ``w`` and mean ``1 + w``."""
    values = usual(name, shape, generator)
    if len(shape) == 1 and name.endswith("norm.weight"):
        return ((values - 1.2) * 0.5 + 0.45).astype(np.float32)
    return values


def older_style(config: Config) -> Config:
    """Rewrite a flat ``config.json`` as transformers 4 wrote it.

    ``rope_parameters`` becomes ``rope_theta`` and ``rope_scaling``, ``dtype`` ``torch_dtype``, and
    ``layer_types`` is left to the keys that it was made of.
    """
    older = copy.deepcopy(config)
    older["torch_dtype"] = older.pop("dtype", None)
    older.pop("layer_types", None)
    rope = dict(older.pop("rope_parameters", None) or {})
    if rope:
        older["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            older["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        older["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    older["transformers_version"] = "4.51.0"
    return older
