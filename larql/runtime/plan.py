"""A plan: one component's operations over named operands, cut to an execution slice.

Nothing is read to make a plan but the container's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

from larql.errors import UnsupportedRefusal, UsageError
from larql.format.closure import OperandContract, operand_contracts
from larql.format.container import Container
from larql.format.graph import (
    Block,
    Component,
    LatentAttention,
    Layer,
    Rope,
    SoftmaxAttention,
    StateSpec,
    kept_by,
    state_schema,
)
from larql.runtime.slices import ExecutionSlice, Head, LayerRange, layers_of

__all__ = ["Plan", "check_tokens", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """What one run executes.

    Attributes
    ----------
    component : Component
    slice : ExecutionSlice
    layers : tuple of Layer
        The layers that the slice executes, in order.
    """

    component: Component
    slice: ExecutionSlice
    layers: tuple[Layer, ...]

    @property
    def embeds(self) -> bool:
        """Whether the run begins with token ids."""
        return not isinstance(self.slice, LayerRange | Head)

    @property
    def has_head(self) -> bool:
        """Whether the run ends with logits."""
        return not isinstance(self.slice, LayerRange)

    @property
    def executed_layers(self) -> tuple[int, ...]:
        """Indices of the layers that are executed."""
        return tuple(layer.index for layer in self.layers)

    def contracts(self) -> tuple[OperandContract, ...]:
        """Return the operands that the run reads, each once, in order of first use."""
        executed = set(self.executed_layers)
        wanted: dict[str, OperandContract] = {}
        for contract in operand_contracts(self.component):
            if contract.layer is not None:
                needed = contract.layer in executed
            elif contract.use.startswith("embed"):
                needed = self.embeds
            else:
                needed = self.has_head
            if needed:
                wanted.setdefault(contract.name, contract)
        return tuple(wanted.values())

    def swept(self) -> tuple[OperandContract, ...]:
        """Return the operands that each step reads as a whole.

        These are all but the experts, of which a step reads those chosen, and the embeddings, of
        which it reads one row for each position, unless one is the head's weight too.
        """
        component = self.component
        looked_up = set() if component.per_layer is None else {component.per_layer.weight}
        if not (self.has_head and component.head.weight == component.embed.weight):
            looked_up.add(component.embed.weight)
        return tuple(c for c in self.contracts() if c.chosen is None and c.name not in looked_up)

    def rope_list(self, context: int) -> Literal["short", "long"] | None:
        """Return which of two lists of rotary frequencies a session uses, where there are two.

        Parameters
        ----------
        context : int
            Positions that the session has room for.
        """
        limits = [rope.limit for rope in _ropes(self.layers) if rope.limit is not None]
        if not limits:
            return None
        return "long" if context > min(limits) else "short"

    def settled(self, context: int) -> Plan:
        """Return the plan of a session with room for ``context`` positions.

        Where a rope has two lists of frequencies, the one that the room decides is left, so that
        all positions of the session are turned by the same.
        """
        if self.rope_list(context) is None:
            return self
        layers = tuple(
            replace(layer, blocks=tuple(_settled_block(block, context) for block in layer.blocks))
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def state(self) -> tuple[StateSpec, ...]:
        """Return the continuation state of the executed layers."""
        executed = set(self.executed_layers)
        return tuple(r for r in state_schema(self.component) if r.layer in executed)


def _ropes(layers: Sequence[Layer]) -> Iterator[Rope]:
    for layer in layers:
        for block in layer.blocks:
            mixer = block.mixer
            if isinstance(mixer, SoftmaxAttention | LatentAttention) and mixer.rope is not None:
                yield mixer.rope


def _settled_block(block: Block, context: int) -> Block:
    mixer = block.mixer
    if not isinstance(mixer, SoftmaxAttention | LatentAttention) or mixer.rope is None:
        return block
    return replace(block, mixer=replace(mixer, rope=mixer.rope.settled(context)))


def make_plan(container: Container, component: str, wanted: ExecutionSlice) -> Plan:
    """Plan a run of a container's component.

    Raises
    ------
    UsageError
        If there is no such component, or the slice does not fit it.
    ContainerError
        If the graph cannot be read.
    UnsupportedRefusal
        If this build does not know the graph, or the component only drafts.
    """
    found = container.component(component)
    if (found.role == "draft") != isinstance(wanted, Head):
        raise UnsupportedRefusal(
            f"{container.path}: component {component!r} drafts for another one and does not run by "
            f"itself; `larql exec --component {component}` runs both"
            if found.role == "draft"
            else f"{container.path}: component {component!r} drafts for no other one"
        )
    layers = layers_of(wanted, len(found.layers))
    if isinstance(wanted, LayerRange):
        _refuse_dependent(found, wanted)
    return Plan(found, wanted, tuple(found.layers[i] for i in layers))


def _refuse_dependent(component: Component, wanted: LayerRange) -> None:
    """Refuse a range of layers that need more than the hidden states that enter it."""
    if component.per_layer is not None:
        raise UsageError(
            f"layers {wanted.start}:{wanted.end}: each layer adds an embedding of the token, which "
            f"hidden states do not tell; run the whole component or a draft"
        )
    for layer in component.layers[wanted.start : wanted.end]:
        for block in layer.blocks:
            source = kept_by(block, layer.index)
            if source < wanted.start:
                raise UsageError(
                    f"layers {wanted.start}:{wanted.end}: layer {layer.index} attends to the keys "
                    f"and values of layer {source}, which the range leaves out; begin at layer "
                    f"{source} or before"
                )


def check_tokens(tokens: Sequence[int], vocab: int, name: str | None = None) -> None:
    """Refuse what is no token id, and ids outside a vocabulary.

    Parameters
    ----------
    tokens : sequence of int
        Integers of Python or NumPy; 1.0 and True are none.
    vocab : int
    name : str or None
        The option or argument that they were given for; it begins the message.

    Raises
    ------
    UsageError
        Naming the first bad position.
    """
    where = "" if name is None else f"{name}: "
    for position, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise UsageError(
                f"{where}token {token!r:.40} at position {position} is no integer; token ids are "
                f"whole numbers"
            )
        if not 0 <= token < vocab:
            raise UsageError(
                f"{where}token {token} at position {position} is outside the vocabulary of {vocab}"
            )
