"""Latent attention as DeepSeek's checkpoints and those after them store it."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.graph import LatentAttention, Linear, Norm, Rope
from larql.format.rows import RowSelection
from larql.format.source.builder import Builder, Part

__all__ = ["LATENT_PARTS", "LatentGeometry", "latent_attention"]

LATENT_PARTS = {
    "attention.q_down": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.latent": "self_attn.kv_a_proj_with_mqa",
    "attention.k_rope": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.k_up": "self_attn.kv_b_proj",
    "attention.v_up": "self_attn.kv_b_proj",
}
"""Names inside a layer, but for the queries'."""

_DIRECT, _NARROW = "self_attn.q_proj", "self_attn.q_b_proj"


@dataclass(frozen=True)
class LatentGeometry:
    """Number of heads and widths; ``q_rank`` None: queries are projected from the carrier."""

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    latent_dim: int
    q_rank: int | None = None

    def parts(self) -> dict[str, str]:
        """Return the names inside a layer, for the naming of a checkpoint."""
        queries = _DIRECT if self.q_rank is None else _NARROW
        return {**LATENT_PARTS, "attention.q_nope": queries, "attention.q_rope": queries}


def latent_attention(
    b: Builder,
    layer: int,
    hidden: int,
    geometry: LatentGeometry,
    *,
    scale: float,
    eps: float,
    bias: bool,
    rope: Rope | None,
) -> LatentAttention:
    """Describe latent attention; fused projections are taken apart by rows.

    Parameters
    ----------
    eps : float
        Of the norms of latents and narrow queries.
    bias : bool
        Whether the projections from and to the carrier have one, those that go over heads aside.
    """
    g = geometry
    heads = g.heads

    def by_head(part: str, first: int, width: int, each: int, inputs: int) -> Linear:
        rows = Part(RowSelection(first, width, each, heads), heads * each)
        return b.linear(part, layer, heads * width, inputs, bias=False, rows=rows)

    def down(part: str, first: int, width: int) -> Linear:
        rows = Part(RowSelection.span(first, width), g.latent_dim + g.rope_dim)
        return b.linear(part, layer, width, hidden, bias=bias, rows=rows)

    queries, q_down, q_norm = hidden, None, None
    if g.q_rank is not None:
        queries = g.q_rank
        q_down = b.linear("attention.q_down", layer, queries, hidden, bias=bias)
        q_norm = b.norm("attention.q_norm", layer, queries, eps, 0.0)
    key, value = g.nope_dim + g.rope_dim, g.nope_dim + g.value_dim
    latent_norm: Norm = b.norm("attention.latent_norm", layer, g.latent_dim, eps, 0.0)
    return LatentAttention(
        heads=heads,
        nope_dim=g.nope_dim,
        rope_dim=g.rope_dim,
        value_dim=g.value_dim,
        latent_dim=g.latent_dim,
        scale=scale,
        q_down=q_down,
        q_norm=q_norm,
        q_nope=by_head("attention.q_nope", 0, g.nope_dim, key, queries),
        q_rope=by_head("attention.q_rope", g.nope_dim, g.rope_dim, key, queries),
        latent=down("attention.latent", 0, g.latent_dim),
        latent_norm=latent_norm,
        k_rope=down("attention.k_rope", g.latent_dim, g.rope_dim),
        k_up=by_head("attention.k_up", 0, g.nope_dim, value, g.latent_dim),
        v_up=by_head("attention.v_up", g.nope_dim, g.value_dim, value, g.latent_dim),
        o=b.linear("attention.o", layer, hidden, heads * g.value_dim, bias=bias),
        rope=rope,
    )
