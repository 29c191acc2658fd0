"""Embeddings of layers by kernels."""

from __future__ import annotations

from larql.format.graph import PerLayerEmbedding
from larql.kernels.activation import gate
from larql.kernels.elementwise import add_scaled, scale
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.dense_ffn import kernel_kind
from larql.runtime.token_inputs import LayerInputs

__all__ = ["per_layer_embedding"]


def per_layer_embedding(
    mixer: PerLayerEmbedding, x: Float32, tokens: LayerInputs, arithmetic: Arithmetic
) -> Float32:
    """Return the operation's output for each position."""
    own = arithmetic.linear(mixer.context, tokens.embedded)
    scale(own, mixer.context_scale)
    own = arithmetic.norm(mixer.norm, own)
    add_scaled(own, tokens.rows, 1.0)
    scale(own, mixer.combined)
    gates = arithmetic.linear(mixer.gate, x)
    gate(gates, own, kernel_kind(mixer.activation), own)
    return arithmetic.linear(mixer.up, own)
