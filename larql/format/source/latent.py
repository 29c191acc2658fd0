"""Latent attention as DeepSeek's checkpoints and those after them store it.

GGUF files keep the projection from latents whole, or its keys and values apart; then each head's
part for keys is turned.
"""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.graph import LatentAttention, Linear, Norm, Rope
from larql.format.rows import RowSelection
from larql.format.source.binder import Part
from larql.format.source.builder import Builder

__all__ = ["LATENT_PARTS", "LatentGeometry", "gguf_latent_geometry", "latent_attention"]

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
_GGUF_PARTS = {
    "attention.q_down": "attn_q_a",
    "attention.q_norm": "attn_q_a_norm",
    "attention.latent": "attn_kv_a_mqa",
    "attention.k_rope": "attn_kv_a_mqa",
    "attention.latent_norm": "attn_kv_a_norm",
}
_GGUF_WHOLE = {"attention.k_up": "attn_kv_b", "attention.v_up": "attn_kv_b"}
_GGUF_APART = {"attention.k_up": "attn_k_b", "attention.v_up": "attn_v_b"}


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

    def gguf_parts(self, *, apart: bool) -> dict[str, str]:
        """Return the names in a GGUF file, for its naming.

        Parameters
        ----------
        apart : bool
            Whether keys and values are made of latents by two tensors.
        """
        queries = "attn_q" if self.q_rank is None else "attn_q_b"
        parts = {
            **_GGUF_PARTS,
            **(_GGUF_APART if apart else _GGUF_WHOLE),
            "attention.q_nope": queries,
            "attention.q_rope": queries,
        }
        return {part: f"blk.{{i}}.{name}" for part, name in parts.items()}


def gguf_latent_geometry(b: Builder, heads: int) -> tuple[LatentGeometry, bool]:
    """Read the metadata of latent attention, and whether its ``k_up`` and ``v_up`` are apart.

    Keys and values are as wide as latent rows in files that say how wide they are without, and so
    seen have one head.

    Raises
    ------
    CompileError
        Naming the key, if a number is missing or contradicts another.
    """
    config = b.config
    latent, rope = config.count("attention.kv_lora_rank"), config.count("rope.dimension_count")
    apart = config.has("attention.key_length_mla")
    whole = "attention.key_length_mla" if apart else "attention.key_length"
    key = config.count(whole)
    value = config.count("attention.value_length_mla" if apart else "attention.value_length")
    if apart:
        config.neutral("attention.key_length", latent + rope)
        # Files of hybrids leave a default here, which nothing reads.
        config.irrelevant("attention.value_length")
    if key <= rope:
        config.contradiction(whole, "rope.dimension_count", key, rope)
        key = rope + 1
    q_rank = config.optional_count("attention.q_lora_rank")
    return LatentGeometry(heads, key - rope, rope, value, latent, q_rank), apart


def latent_attention(
    b: Builder,
    layer: int,
    hidden: int,
    geometry: LatentGeometry,
    *,
    scale: float,
    eps: float,
    bias: bool | None,
    rope: Rope | None,
    apart: bool = False,
) -> LatentAttention:
    """Describe latent attention; fused projections are taken apart by rows.

    Parameters
    ----------
    eps : float
        Of the norms of latents and narrow queries.
    bias : bool or None
        Whether the projections from and to the carrier have one, those that go over heads aside;
        None: where the checkpoint carries one.
    apart : bool
        ``k_up`` and ``v_up`` are tensors of three axes, the first one turned head by head.
    """
    g = geometry
    heads = g.heads

    def by_head(part: str, first: int, width: int, each: int, inputs: int) -> Linear:
        rows = Part(RowSelection(first, width, each, heads), heads * each)
        return b.linear(part, layer, heads * width, inputs, bias=False, rows=rows)

    def down(part: str, first: int, width: int) -> Linear:
        rows = Part(RowSelection.span(first, width), g.latent_dim + g.rope_dim)
        return b.linear(part, layer, width, hidden, bias=bias, rows=rows)

    def by_itself(part: str, rows: int, columns: int) -> Linear:
        return b.linear(
            part, layer, heads * rows, columns, bias=False, stored=(heads, rows, columns)
        )

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
        k_up=by_itself("attention.k_up", g.latent_dim, g.nope_dim)
        if apart
        else by_head("attention.k_up", 0, g.nope_dim, value, g.latent_dim),
        v_up=by_itself("attention.v_up", g.value_dim, g.latent_dim)
        if apart
        else by_head("attention.v_up", g.nope_dim, g.value_dim, value, g.latent_dim),
        o=b.linear("attention.o", layer, hidden, heads * g.value_dim, bias=bias),
        rope=rope,
        k_up_rows="latent" if apart else None,
    )
