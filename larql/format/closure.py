"""Which operands a component's operations need, and whether a container's representations serve.

An operation's operand contract is its name, its logical shape and where it is used. A container
closes when every contract is met by a representation of that shape; a container that does not
close is not written, and does not bind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from larql.format.graph import (
    Block,
    Component,
    DenseFfn,
    Linear,
    Mixer,
    Norm,
    SoftmaxAttention,
)
from larql.format.index import Representation

__all__ = ["Defect", "OperandContract", "block_contracts", "check_closure", "operand_contracts"]


@dataclass(frozen=True)
class OperandContract:
    """One operand that one operation reads.

    Attributes
    ----------
    name : str
        ``<object>/<tensor>``.
    shape : tuple of int
        Logical shape, outermost axis first; the last axis is the contracted one.
    layer : int or None
        Layer index, None outside the layers.
    use : str
        The operation and its role, e.g. ``attention.q``.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None
    use: str


@dataclass(frozen=True)
class Defect:
    """One thing that keeps a container from closing, verifying or binding."""

    where: str
    problem: str

    def line(self) -> str:
        """Return the defect as one line."""
        return f"{self.where}: {self.problem}"


def _linear(linear: Linear, layer: int | None, use: str) -> Iterator[OperandContract]:
    yield OperandContract(linear.weight, (linear.outputs, linear.inputs), layer, use)
    if linear.bias is not None:
        yield OperandContract(linear.bias, (linear.outputs,), layer, f"{use}.bias")


def _norm(norm: Norm | None, layer: int | None, use: str) -> Iterator[OperandContract]:
    if norm is None:
        return
    if norm.weight is not None:
        yield OperandContract(norm.weight, (norm.width,), layer, use)
    if norm.bias is not None:
        yield OperandContract(norm.bias, (norm.width,), layer, f"{use}.bias")


def _mixer(mixer: Mixer, layer: int) -> Iterator[OperandContract]:
    if isinstance(mixer, SoftmaxAttention):
        yield from _linear(mixer.q, layer, "attention.q")
        yield from _linear(mixer.k, layer, "attention.k")
        yield from _linear(mixer.v, layer, "attention.v")
        yield from _norm(mixer.q_norm, layer, "attention.q_norm")
        yield from _norm(mixer.k_norm, layer, "attention.k_norm")
        if mixer.rope is not None and mixer.rope.factors is not None:
            yield OperandContract(
                mixer.rope.factors, (mixer.rope.dims // 2,), layer, "attention.rope.factors"
            )
        yield from _linear(mixer.o, layer, "attention.o")
    elif isinstance(mixer, DenseFfn):
        if mixer.gate is not None:
            yield from _linear(mixer.gate, layer, "ffn.gate")
        yield from _linear(mixer.up, layer, "ffn.up")
        yield from _linear(mixer.down, layer, "ffn.down")


def block_contracts(block: Block, layer: int) -> Iterator[OperandContract]:
    """Yield the operands of one block in the order in which they are used."""
    yield from _norm(block.norm, layer, f"{block.site}.norm")
    yield from _mixer(block.mixer, layer)
    yield from _norm(block.post_norm, layer, f"{block.site}.post_norm")


def operand_contracts(component: Component) -> tuple[OperandContract, ...]:
    """Return every operand that a full run of a component reads, in execution order.

    A tied head names the embedding's operand again.
    """
    embed, head = component.embed, component.head
    contracts = [OperandContract(embed.weight, (embed.vocab, embed.width), None, "embed")]
    for layer in component.layers:
        for block in layer.blocks:
            contracts.extend(block_contracts(block, layer.index))
    contracts.extend(_norm(head.norm, None, "head.norm"))
    contracts.append(OperandContract(head.weight, (head.vocab, head.width), None, "head"))
    return tuple(contracts)


def check_geometry(component: Component) -> list[Defect]:
    """Return the contradictions among a component's own numbers."""
    hidden = component.hidden_size
    defects = []

    def check(where: str, what: str, found: int, expected: int) -> None:
        if found != expected:
            defects.append(Defect(where, f"{what} is {found}, expected {expected}"))

    check(f"{component.id}.embedding", "width", component.embed.width, hidden)
    check(f"{component.id}.output_head", "width", component.head.width, hidden)
    check(f"{component.id}.output_head", "norm width", component.head.norm.width, hidden)
    check(f"{component.id}.output_head", "vocab", component.head.vocab, component.vocab_size)
    for layer in component.layers:
        for block in layer.blocks:
            where = f"{component.id}.layer.{layer.index:03d} {block.site}"
            for norm in (block.norm, block.post_norm):
                if norm is not None:
                    check(where, "norm width", norm.width, hidden)
            mixer = block.mixer
            if isinstance(mixer, SoftmaxAttention):
                _check_attention(mixer, hidden, where, defects)
            elif isinstance(mixer, DenseFfn):
                check(where, "up inputs", mixer.up.inputs, hidden)
                check(where, "down outputs", mixer.down.outputs, hidden)
                check(where, "down inputs", mixer.down.inputs, mixer.up.outputs)
                if mixer.gate is not None:
                    check(where, "gate inputs", mixer.gate.inputs, hidden)
                    check(where, "gate outputs", mixer.gate.outputs, mixer.up.outputs)
    return defects


def _check_attention(
    mixer: SoftmaxAttention, hidden: int, where: str, defects: list[Defect]
) -> None:
    expected = {
        "q": (mixer.q, mixer.heads * mixer.key_dim, hidden),
        "k": (mixer.k, mixer.kv_heads * mixer.key_dim, hidden),
        "v": (mixer.v, mixer.kv_heads * mixer.value_dim, hidden),
        "o": (mixer.o, hidden, mixer.heads * mixer.value_dim),
    }
    for name, (linear, outputs, inputs) in expected.items():
        if (linear.outputs, linear.inputs) != (outputs, inputs):
            defects.append(
                Defect(
                    where,
                    f"{name} is [{linear.outputs}, {linear.inputs}], "
                    f"expected [{outputs}, {inputs}]",
                )
            )
    if mixer.kv_heads == 0 or mixer.heads % mixer.kv_heads:
        defects.append(
            Defect(where, f"{mixer.heads} heads cannot share {mixer.kv_heads} kv heads equally")
        )
    for norm in (mixer.q_norm, mixer.k_norm):
        if norm is not None and norm.width != mixer.key_dim:
            defects.append(
                Defect(where, f"q/k norm width is {norm.width}, expected {mixer.key_dim}")
            )
    rope = mixer.rope
    if rope is not None and (rope.dims % 2 or not 0 < rope.dims <= mixer.key_dim):
        defects.append(
            Defect(where, f"rope turns {rope.dims} dims, expected an even count ≤ {mixer.key_dim}")
        )
    if mixer.window == 0:
        defects.append(Defect(where, "window is 0, expected at least 1 or none"))


def check_closure(
    component: Component, representations: Mapping[str, Representation]
) -> list[Defect]:
    """Return what keeps a component's operands from closing, in execution order.

    Parameters
    ----------
    component : Component
        The component to close.
    representations : mapping
        Operand name to the representation that would be bound.
    """
    defects = check_geometry(component)
    seen: set[tuple[str, str]] = set()
    for contract in operand_contracts(component):
        representation = representations.get(contract.name)
        if representation is None:
            problem = f"operand {contract.name} of {contract.use} is not in the container"
        elif representation.shape != contract.shape:
            problem = (
                f"operand {contract.name} of {contract.use} has shape "
                f"{list(representation.shape)}, expected {list(contract.shape)}"
            )
        else:
            continue
        key = (contract.name, problem)
        if key not in seen:
            seen.add(key)
            layer = "" if contract.layer is None else f" layer {contract.layer}"
            defects.append(Defect(f"{component.id}{layer}", problem))
    return defects
