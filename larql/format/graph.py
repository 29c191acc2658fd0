"""The system graph: what each component computes, layer by layer, with every judged number.

The operations are a closed vocabulary. A model family only chooses among them and fills in
numbers; whoever executes a graph needs no other fact about the model. Operands are named
``<object>/<tensor>``, for example ``target.layer.007/attention.q.weight``.

A field that is None is absent from the JSON: an operation's surface is there if and only if the
program runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.format.operations import Mixer
from larql.format.operations.contract import Site
from larql.format.operations.convolution import Convolution
from larql.format.operations.dense_ffn import Activation, DenseFfn
from larql.format.operations.distance import DistanceBias, PositionScale
from larql.format.operations.gated_delta import GatedDelta
from larql.format.operations.kda import Kda
from larql.format.operations.latent_attention import LatentAttention
from larql.format.operations.linear import Linear, Norm
from larql.format.operations.per_layer_embedding import PerLayerEmbedding, PerLayerTable
from larql.format.operations.rope import Rope, RopeScaling
from larql.format.operations.routed_ffn import (
    ExpertBank,
    ExpertGroups,
    LatentSpace,
    RoutedFfn,
    Router,
    SharedExperts,
)
from larql.format.operations.short_convolution import ShortConvolution
from larql.format.operations.softmax_attention import SoftmaxAttention
from larql.format.operations.ssm import Ssm
from larql.format.operations.states import ConvolutionRows, KvRows, LatentRows, Recurrent, StateSpec

__all__ = [
    "Activation",
    "Block",
    "Component",
    "Convolution",
    "ConvolutionRows",
    "DenseFfn",
    "DistanceBias",
    "DraftInput",
    "Edge",
    "Embed",
    "ExpertBank",
    "ExpertGroups",
    "GatedDelta",
    "Graph",
    "Head",
    "Kda",
    "KvRows",
    "LatentAttention",
    "LatentRows",
    "LatentSpace",
    "Layer",
    "Linear",
    "Mixer",
    "Norm",
    "PerLayerEmbedding",
    "PerLayerTable",
    "PositionScale",
    "Recurrent",
    "Rope",
    "RopeScaling",
    "RoutedFfn",
    "Router",
    "SharedExperts",
    "ShortConvolution",
    "Site",
    "SoftmaxAttention",
    "Ssm",
    "StateSpec",
    "kept_by",
    "separable",
    "state_schema",
]


@dataclass(frozen=True)
class Embed:
    """Row lookup in ``weight`` (``[vocab, width]``) times ``scale``."""

    weight: str
    vocab: int
    width: int
    scale: float = 1.0
    norm: Norm | None = None


@dataclass(frozen=True)
class Block:
    """One write to the carrier: ``x += residual_scale * post_norm(conv(mixer(norm(x))))``.

    With ``carrier_scale``, an operand of one number, the whole carrier is multiplied by it after
    the sum, as part of the same write. ``conv`` keeps its inputs behind what the mixer keeps.
    """

    site: Site
    mixer: Mixer
    norm: Norm | None = None
    post_norm: Norm | None = None
    residual_scale: float = 1.0
    carrier_scale: str | None = None
    conv: Convolution | None = None

    def state(self, layer: int) -> tuple[StateSpec, ...]:
        """Return what it keeps between positions: its mixer's, then its convolution's."""
        own = () if self.conv is None else (self.conv.state(layer, self.site),)
        return (*self.mixer.state(layer), *own)


@dataclass(frozen=True)
class Layer:
    """The blocks of one layer in execution order."""

    index: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Head:
    """Carrier to logits: ``softcap(multiplier * W norm(x))``.

    ``tied`` states that ``weight`` is the embedding's own operand. ``rows`` is how many rows that
    has where they are more than there are logits: the rows behind pad the vocabulary.
    """

    norm: Norm
    weight: str
    vocab: int
    width: int
    tied: bool
    multiplier: float = 1.0
    softcap: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class DraftInput:
    """What enters the first layer of a component that drafts: ``projection [norm(e), norm(h)]``.

    e is the embedding of the token behind a position, h what the producer's tap gives there. The
    halves stand in the order that ``first`` states, each with a norm of its own.
    """

    first: Literal["embedding", "hidden"]
    embedding_norm: Norm
    hidden_norm: Norm
    projection: Linear


@dataclass(frozen=True)
class Component:
    """One runnable part of a model.

    Attributes
    ----------
    id : str
        ``target`` for the model proper.
    role : str
        ``decoder`` for a causal language model; ``draft`` for one that guesses the decoder's next
        tokens from its hidden states, and may name the decoder's embedding and head as its own.
    draft_input : DraftInput or None
        Of a draft only.
    hidden_size, vocab_size, context_length : int
        Carrier width, number of logits, and the position count it was trained for.
    per_layer : PerLayerTable or None
        What its layers' own embeddings are looked up in, where they have any.
    """

    id: str
    role: Literal["decoder", "draft"]
    hidden_size: int
    vocab_size: int
    context_length: int
    embed: Embed
    layers: tuple[Layer, ...]
    head: Head
    draft_input: DraftInput | None = None
    per_layer: PerLayerTable | None = None


@dataclass(frozen=True)
class Edge:
    """Which component's tap another component consumes.

    The tap ``final_norm`` is what the producer's head multiplies: its carrier after the last norm.
    """

    producer: str
    tap: str
    consumer: str


@dataclass(frozen=True)
class Graph:
    """All components of a container and the hidden states that pass between them."""

    components: tuple[Component, ...]
    edges: tuple[Edge, ...] = ()


def state_schema(component: Component) -> tuple[StateSpec, ...]:
    """Return the continuation state that a component's layers keep, in execution order."""
    return tuple(
        spec
        for layer in component.layers
        for block in layer.blocks
        for spec in block.state(layer.index)
    )


def kept_by(block: Block, layer: int) -> int:
    """Return the layer that keeps the state of a block: its own, or one whose rows it shares."""
    mixer = block.mixer
    if isinstance(mixer, SoftmaxAttention) and mixer.shared is not None:
        return mixer.shared
    return layer


def separable(component: Component) -> bool:
    """Return whether each layer can run on its own, from hidden states alone."""
    return component.per_layer is None and all(
        kept_by(block, layer.index) == layer.index
        for layer in component.layers
        for block in layer.blocks
    )
