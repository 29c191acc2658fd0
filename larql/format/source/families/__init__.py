"""One small file per model family; only here does a family's name mean anything."""

from __future__ import annotations

from larql.format.source.builder import Family
from larql.format.source.families import (
    gemma3,
    granitemoehybrid,
    lfm2,
    llama,
    qwen3_5,
    qwen3_next,
)

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    gemma3.FAMILY,
    qwen3_5.FAMILY,
    qwen3_next.FAMILY,
    granitemoehybrid.FAMILY,
    lfm2.FAMILY,
)
