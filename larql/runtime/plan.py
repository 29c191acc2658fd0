"""A plan: one component's operations over named operands, cut to an execution slice.

Nothing is read to make a plan but the container's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from larql.errors import UsageError
from larql.format.closure import OperandContract, operand_contracts
from larql.format.container import Container
from larql.format.graph import Component, KvRows, Layer, state_schema
from larql.runtime.slices import Draft, ExecutionSlice, Full, LayerRange, layers_of

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
        return not isinstance(self.slice, LayerRange)

    @property
    def has_head(self) -> bool:
        """Whether the run ends with logits."""
        return isinstance(self.slice, Full | Draft)

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
            elif contract.use == "embed":
                needed = self.embeds
            else:
                needed = self.has_head
            if needed:
                wanted.setdefault(contract.name, contract)
        return tuple(wanted.values())

    def swept(self) -> tuple[OperandContract, ...]:
        """Return the operands that each step reads as a whole.

        These are all but the embedding, of which a step reads one row for each position, unless
        it is the head's weight too.
        """
        embed = self.component.embed.weight
        tied = self.has_head and self.component.head.weight == embed
        return tuple(c for c in self.contracts() if tied or c.name != embed)

    def state(self) -> tuple[KvRows, ...]:
        """Return the continuation state of the executed layers."""
        executed = set(self.executed_layers)
        return tuple(r for r in state_schema(self.component) if r.layer in executed)


def make_plan(container: Container, component: str, wanted: ExecutionSlice) -> Plan:
    """Plan a run of a container's component.

    Raises
    ------
    UsageError
        If there is no such component, or the slice does not fit it.
    ContainerError, UnsupportedRefusal
        If the graph cannot be read.
    """
    found = container.component(component)
    layers = layers_of(wanted, len(found.layers))
    return Plan(found, wanted, tuple(found.layers[i] for i in layers))


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
