"""Which code runs an operation."""

from __future__ import annotations

from collections.abc import Sequence

from larql.format.graph import (
    DenseFfn,
    GatedDelta,
    Kda,
    LatentAttention,
    Mixer,
    PerLayerEmbedding,
    RoutedFfn,
    ShortConvolution,
    SoftmaxAttention,
    Ssm,
)
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import dense_ffn
from larql.runtime.backends.reference.gated_delta import gated_delta
from larql.runtime.backends.reference.kda import kda
from larql.runtime.backends.reference.latent_attention import latent_attention
from larql.runtime.backends.reference.per_layer_embedding import per_layer_embedding
from larql.runtime.backends.reference.routed_ffn import routed_ffn
from larql.runtime.backends.reference.short_convolution import short_convolution
from larql.runtime.backends.reference.softmax_attention import softmax_attention
from larql.runtime.backends.reference.ssm import ssm
from larql.runtime.regions import Region
from larql.runtime.routes import LeftOutNotes
from larql.runtime.taps import BlockTaps
from larql.runtime.token_inputs import LayerInputs

__all__ = ["mix"]


def mix(
    mixer: Mixer,
    inputs: list[Float64],
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
    tokens: LayerInputs | None = None,
    notes: LeftOutNotes | None = None,
) -> list[Float64]:
    """Run an operation for positions ``start, start + 1, …``.

    Parameters
    ----------
    mixer : Mixer
    inputs : list of float64 ``[hidden]``
        One for each position.
    regions : sequence of Region
        The operation's continuation state; the positions are added to it.
    start : int
    taps : BlockTaps or None
        Where an observer wants what is computed on the way.
    arithmetic : Arithmetic
        Holds the operands.
    tokens : LayerInputs or None
        What the tokens give to the layer.
    notes : LeftOutNotes or None
        Where a best-effort step notes the positions that go without their experts.

    Returns
    -------
    list of float64 ``[hidden]``
    """
    match mixer:
        case SoftmaxAttention():
            return softmax_attention(mixer, inputs, regions, start, taps, arithmetic)
        case GatedDelta():
            return gated_delta(mixer, inputs, regions, start, taps, arithmetic)
        case Kda():
            return kda(mixer, inputs, regions, start, taps, arithmetic)
        case Ssm():
            return ssm(mixer, inputs, regions, start, taps, arithmetic)
        case ShortConvolution():
            return short_convolution(mixer, inputs, regions, start, taps, arithmetic)
        case LatentAttention():
            return latent_attention(mixer, inputs, regions, start, taps, arithmetic)
        case DenseFfn():
            return dense_ffn(mixer, inputs, regions, start, taps, arithmetic)
        case RoutedFfn():
            return routed_ffn(mixer, inputs, start, taps, arithmetic, notes)
        case PerLayerEmbedding():
            assert tokens is not None
            return per_layer_embedding(mixer, inputs, tokens, arithmetic)
