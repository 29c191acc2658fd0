"""Embeddings of layers in float64."""

from __future__ import annotations

import numpy as np

from larql.format.graph import PerLayerEmbedding
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS
from larql.runtime.token_inputs import LayerInputs

__all__ = ["per_layer_embedding"]


def per_layer_embedding(
    mixer: PerLayerEmbedding, inputs: list[Float64], tokens: LayerInputs, arithmetic: Arithmetic
) -> list[Float64]:
    """Return the operation's output for each position."""
    contexts = arithmetic.linear(mixer.context, list(tokens.embedded.astype(np.float64)))
    gates = arithmetic.linear(mixer.gate, inputs)
    inner = []
    for context, row, gate in zip(contexts, tokens.rows, gates, strict=True):
        own = arithmetic.norm(mixer.norm, context * mixer.context_scale) + row
        inner.append(ACTIVATIONS[mixer.activation](gate) * (own * mixer.combined))
    return arithmetic.linear(mixer.up, inner)
