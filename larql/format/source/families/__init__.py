"""One small file per model family; only here does a family's name mean anything."""

from __future__ import annotations

from larql.format.source.builder import Family
from larql.format.source.families import (
    deepseek_v3,
    gemma2,
    gemma3,
    gemma4,
    glm4_moe,
    gpt_oss,
    granite,
    granitemoehybrid,
    inkling,
    kimi_linear,
    lfm2,
    llama,
    mistral,
    mixtral,
    olmo2,
    olmoe,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    seed_oss,
    smollm3,
)

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    phi3.FAMILY,
    granite.FAMILY,
    smollm3.FAMILY,
    olmo2.FAMILY,
    seed_oss.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma4.FAMILY,
    deepseek_v3.FAMILY,
    glm4_moe.FAMILY,
    olmoe.FAMILY,
    gpt_oss.FAMILY,
    qwen3_5.FAMILY,
    qwen3_5_moe.FAMILY,
    qwen3_next.FAMILY,
    granitemoehybrid.FAMILY,
    lfm2.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    kimi_linear.FAMILY,
    inkling.FAMILY,
)
