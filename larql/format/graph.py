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

__all__ = [
    "Activation",
    "Block",
    "Component",
    "DenseFfn",
    "Edge",
    "Embed",
    "Graph",
    "Head",
    "KvRows",
    "Layer",
    "Linear",
    "Mixer",
    "Norm",
    "Rope",
    "RopeScaling",
    "Site",
    "SoftmaxAttention",
    "state_schema",
]

Site = Literal["attention", "ffn"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"]


@dataclass(frozen=True)
class Norm:
    """Normalisation over the last axis: ``x / rms(x) * (weight + offset)`` or layer norm.

    Attributes
    ----------
    kind : {"rms", "layer"}
        ``rms``: ``sqrt(mean(x**2) + eps)`` divides; ``layer``: the mean is subtracted first.
    width : int
        Length of the normalised axis.
    eps : float
        Added to the mean square (or variance) before the root.
    offset : float
        Added to the stored weight: 1.0 where a checkpoint stores ``w`` and means ``1 + w``.
    weight, bias : str or None
        Operands of shape ``[width]``; None where the operation has none.
    """

    kind: Literal["rms", "layer"]
    width: int
    eps: float
    offset: float = 0.0
    weight: str | None = None
    bias: str | None = None


@dataclass(frozen=True)
class Linear:
    """``y = W x + b`` with ``W`` of shape ``[outputs, inputs]`` and ``b`` of ``[outputs]``."""

    weight: str
    outputs: int
    inputs: int
    bias: str | None = None


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched.

    ``linear`` divides every frequency by ``factor``. ``llama3`` divides those whose wavelength
    exceeds ``original_context / low_freq_factor``, keeps those below
    ``original_context / high_freq_factor`` and interpolates between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_context: int | None = None


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dims`` of a head.

    Attributes
    ----------
    layout : {"half", "adjacent"}
        Which element is turned with element i: ``i + dims/2``, or the neighbour ``2i, 2i+1``.
    dims : int
        Number of leading dimensions that turn.
    theta : float
        Pair i turns by ``theta ** (-2 i / dims)`` radians per position.
    scaling : RopeScaling or None
        Closed-form stretching of the frequencies.
    factors : str or None
        Operand of shape ``[dims / 2]`` that divides the frequencies.
    """

    layout: Literal["half", "adjacent"]
    dims: int
    theta: float
    scaling: RopeScaling | None = None
    factors: str | None = None


@dataclass(frozen=True)
class Embed:
    """Row lookup in ``weight`` (``[vocab, width]``) times ``scale``."""

    weight: str
    vocab: int
    width: int
    scale: float = 1.0


@dataclass(frozen=True)
class SoftmaxAttention:
    """Causal softmax attention with grouped heads.

    Attributes
    ----------
    heads, kv_heads : int
        Query heads, and key/value heads that they share in equal groups.
    key_dim, value_dim : int
        Width of one head's queries and keys, and of its values.
    scale : float
        Factor of the query-key products.
    window : int or None
        A query at position q sees keys ``q - window < k <= q``; None: all ``k <= q``.
    softcap : float or None
        Scores become ``softcap * tanh(score / softcap)`` before the mask.
    q, k, v, o : Linear
        Projections; rows of q, k, v are heads in order.
    q_norm, k_norm : Norm or None
        Per-head norms, before rope.
    rope : Rope or None
        Rotary embedding of queries and keys; None: no positions.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    window: int | None = None
    softcap: float | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None


@dataclass(frozen=True)
class DenseFfn:
    """``down(activation(gate x) * up x)``, or ``down(activation(up x))`` without a gate."""

    activation: Activation
    up: Linear
    down: Linear
    gate: Linear | None = None


Mixer = SoftmaxAttention | DenseFfn


@dataclass(frozen=True)
class Block:
    """One write to the carrier: ``x += residual_scale * post_norm(mixer(norm(x)))``."""

    site: Site
    mixer: Mixer
    norm: Norm | None = None
    post_norm: Norm | None = None
    residual_scale: float = 1.0


@dataclass(frozen=True)
class Layer:
    """The blocks of one layer in execution order."""

    index: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Head:
    """Carrier to logits: ``softcap(multiplier * W norm(x))``.

    ``tied`` states that ``weight`` is the embedding's own operand.
    """

    norm: Norm
    weight: str
    vocab: int
    width: int
    tied: bool
    multiplier: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True)
class KvRows:
    """Continuation state of one attention layer: one key and one value row per position.

    ``span`` is ``full``, or ``window`` with ``window`` positions visible to a query.
    """

    layer: int
    heads: int
    key_dim: int
    value_dim: int
    span: Literal["full", "window"]
    window: int | None = None


@dataclass(frozen=True)
class Component:
    """One runnable part of a model.

    Attributes
    ----------
    id : str
        ``target`` for the model proper.
    role : str
        ``decoder`` for a causal language model.
    hidden_size, vocab_size, context_length : int
        Carrier width, number of logits, and the position count it was trained for.
    """

    id: str
    role: Literal["decoder"]
    hidden_size: int
    vocab_size: int
    context_length: int
    embed: Embed
    layers: tuple[Layer, ...]
    head: Head


@dataclass(frozen=True)
class Edge:
    """Which component's tap another component consumes."""

    producer: str
    tap: str
    consumer: str


@dataclass(frozen=True)
class Graph:
    """All components of a container and the hidden states that pass between them."""

    components: tuple[Component, ...]
    edges: tuple[Edge, ...] = ()


def state_schema(component: Component) -> tuple[KvRows, ...]:
    """Return the continuation state that a component's layers keep, in layer order."""
    regions = []
    for layer in component.layers:
        for block in layer.blocks:
            mixer = block.mixer
            if isinstance(mixer, SoftmaxAttention):
                regions.append(
                    KvRows(
                        layer=layer.index,
                        heads=mixer.kv_heads,
                        key_dim=mixer.key_dim,
                        value_dim=mixer.value_dim,
                        span="full" if mixer.window is None else "window",
                        window=mixer.window,
                    )
                )
    return tuple(regions)
