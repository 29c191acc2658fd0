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
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.dense_ffn import dense_ffn
from larql.runtime.backends.production.gated_delta import gated_delta
from larql.runtime.backends.production.kda import kda
from larql.runtime.backends.production.latent_attention import latent_attention
from larql.runtime.backends.production.per_layer_embedding import per_layer_embedding
from larql.runtime.backends.production.routed_ffn import routed_ffn
from larql.runtime.backends.production.short_convolution import short_convolution
from larql.runtime.backends.production.softmax_attention import softmax_attention
from larql.runtime.backends.production.ssm import ssm
from larql.runtime.regions import Region
from larql.runtime.routes import LeftOutNotes
from larql.runtime.taps import BlockTaps
from larql.runtime.token_inputs import LayerInputs

__all__ = ["mix"]


def mix(
    mixer: Mixer,
    x: Float32,
    regions: Sequence[Region],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
    tokens: LayerInputs | None = None,
    notes: LeftOutNotes | None = None,
) -> Float32:
    """Run an operation for positions ``start, start + 1, …``.

    Parameters
    ----------
    mixer : Mixer
    x : float32 ``[T, hidden]``
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
    float32 ``[T, hidden]``
        In memory that the next block uses again.
    """
    match mixer:
        case SoftmaxAttention():
            return softmax_attention(mixer, x, regions, start, taps, arithmetic)
        case GatedDelta():
            return gated_delta(mixer, x, regions, start, taps, arithmetic)
        case Kda():
            return kda(mixer, x, regions, start, taps, arithmetic)
        case Ssm():
            return ssm(mixer, x, regions, start, taps, arithmetic)
        case ShortConvolution():
            return short_convolution(mixer, x, regions, start, taps, arithmetic)
        case LatentAttention():
            return latent_attention(mixer, x, regions, start, taps, arithmetic)
        case DenseFfn():
            return dense_ffn(mixer, x, regions, start, taps, arithmetic)
        case RoutedFfn():
            return routed_ffn(mixer, x, start, taps, arithmetic, notes)
        case PerLayerEmbedding():
            assert tokens is not None
            return per_layer_embedding(mixer, x, tokens, arithmetic)
