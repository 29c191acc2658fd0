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
    Rope,
    SoftmaxAttention,
)
from larql.format.index import Representation

__all__ = [
    "Defect",
    "OperandContract",
    "block_contracts",
    "check_closure",
    "check_geometry",
    "operand_contracts",
]


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
    """Return the contradictions among a component's own numbers, in execution order."""
    return list(_check_component(component))


def _check_component(component: Component) -> Iterator[Defect]:
    hidden, vocab = component.hidden_size, component.vocab_size
    embed, head = component.embed, component.head
    where = component.id
    yield from _at_least_1(
        where,
        ("hidden size", hidden),
        ("vocab size", vocab),
        ("context length", component.context_length),
    )
    yield from _equal(f"{where}.embedding", "vocab", embed.vocab, vocab)
    yield from _equal(f"{where}.embedding", "width", embed.width, hidden)
    for layer in component.layers:
        at = f"{where}.layer.{layer.index:03d}"
        sites = [block.site for block in layer.blocks]
        if len(set(sites)) != len(sites):
            yield Defect(at, f"has two blocks at one site ({', '.join(sites)})")
        for block in layer.blocks:
            yield from _check_block(block, hidden, f"{at} {block.site}")
    at = f"{where}.output_head"
    yield from _equal(at, "vocab", head.vocab, vocab)
    yield from _equal(at, "width", head.width, hidden)
    yield from _check_norm(head.norm, hidden, at)
    yield from _above_0(at, ("softcap", head.softcap))
    if head.tied != (head.weight == embed.weight):
        yield Defect(at, f"tied is {head.tied}, but its weight is {head.weight}")


def _check_block(block: Block, hidden: int, where: str) -> Iterator[Defect]:
    mixer = block.mixer
    if (block.site == "attention") != isinstance(mixer, SoftmaxAttention):
        yield Defect(where, f"holds {type(mixer).__name__}, which belongs to the other site")
    yield from _check_norm(block.norm, hidden, where)
    if isinstance(mixer, SoftmaxAttention):
        yield from _check_attention(mixer, hidden, where)
    elif isinstance(mixer, DenseFfn):
        yield from _at_least_1(where, ("up outputs", mixer.up.outputs))
        yield from _equal(where, "up inputs", mixer.up.inputs, hidden)
        yield from _equal(where, "down outputs", mixer.down.outputs, hidden)
        yield from _equal(where, "down inputs", mixer.down.inputs, mixer.up.outputs)
        if mixer.gate is not None:
            yield from _equal(where, "gate inputs", mixer.gate.inputs, hidden)
            yield from _equal(where, "gate outputs", mixer.gate.outputs, mixer.up.outputs)
    yield from _check_norm(block.post_norm, hidden, where)


def _equal(where: str, what: str, found: int, expected: int) -> Iterator[Defect]:
    if found != expected:
        yield Defect(where, f"{what} is {found}, expected {expected}")


def _at_least_1(where: str, *counts: tuple[str, int | None]) -> Iterator[Defect]:
    for what, found in counts:
        if found is not None and found < 1:
            yield Defect(where, f"{what} is {found}, expected at least 1")


def _above_0(where: str, *numbers: tuple[str, float | None]) -> Iterator[Defect]:
    for what, found in numbers:
        if found is not None and not found > 0:
            yield Defect(where, f"{what} is {found}, expected a number above 0")


def _check_norm(norm: Norm | None, width: int, where: str) -> Iterator[Defect]:
    if norm is None:
        return
    yield from _equal(where, "norm width", norm.width, width)
    if norm.kind == "rms" and norm.bias is not None:
        yield Defect(where, f"an rms norm has no bias, but {norm.bias} is named as one")
    if norm.eps < 0:
        yield Defect(where, f"norm eps is {norm.eps}, expected 0 or more")


def _check_rope(rope: Rope, key_dim: int, where: str) -> Iterator[Defect]:
    if rope.dims % 2 or not 0 < rope.dims <= key_dim:
        yield Defect(where, f"rope turns {rope.dims} dims, expected an even count ≤ {key_dim}")
    yield from _above_0(where, ("rope theta", rope.theta))
    scaling = rope.scaling
    if scaling is None:
        return
    yield from _above_0(where, ("rope factor", scaling.factor))
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    context = scaling.original_context
    if scaling.kind == "linear":
        if (low, high, context) != (None, None, None):
            yield Defect(where, "linear rope scaling has numbers of another kind")
    elif low is None or high is None or context is None:
        yield Defect(where, "rope scaling lacks a frequency factor or the original context")
    else:
        yield from _above_0(where, ("low_freq_factor", low))
        yield from _at_least_1(where, ("original_context", context))
        if not high > low:
            yield Defect(where, f"high_freq_factor is {high}, expected more than {low}")


def _check_attention(mixer: SoftmaxAttention, hidden: int, where: str) -> Iterator[Defect]:
    yield from _at_least_1(
        where,
        ("heads", mixer.heads),
        ("kv heads", mixer.kv_heads),
        ("key width", mixer.key_dim),
        ("value width", mixer.value_dim),
        ("window", mixer.window),
    )
    yield from _above_0(where, ("softcap", mixer.softcap))
    expected = {
        "q": (mixer.q, mixer.heads * mixer.key_dim, hidden),
        "k": (mixer.k, mixer.kv_heads * mixer.key_dim, hidden),
        "v": (mixer.v, mixer.kv_heads * mixer.value_dim, hidden),
        "o": (mixer.o, hidden, mixer.heads * mixer.value_dim),
    }
    for name, (linear, outputs, inputs) in expected.items():
        if (linear.outputs, linear.inputs) != (outputs, inputs):
            yield Defect(
                where,
                f"{name} is [{linear.outputs}, {linear.inputs}], expected [{outputs}, {inputs}]",
            )
    if mixer.kv_heads and mixer.heads % mixer.kv_heads:
        yield Defect(where, f"{mixer.heads} heads cannot share {mixer.kv_heads} kv heads equally")
    for norm in (mixer.q_norm, mixer.k_norm):
        yield from _check_norm(norm, mixer.key_dim, f"{where} q/k")
    if mixer.rope is not None:
        yield from _check_rope(mixer.rope, mixer.key_dim, where)


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
