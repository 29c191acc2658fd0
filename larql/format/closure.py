"""Which operands a component's operations need, and whether a container's representations serve.

An operation's operand contract is its name, its logical shape and where it is used. A container
closes when every contract is met by a representation of that shape; a container that does not
close is not written, and does not bind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from larql.format.graph import Block, Component, DraftInput, PerLayerEmbedding, SoftmaxAttention
from larql.format.index import Representation
from larql.format.operations.contract import (
    BankPlace,
    Defect,
    OperandContract,
    above_0,
    at_least_1,
    equal,
)

__all__ = [
    "BankPlace",
    "Defect",
    "OperandContract",
    "block_contracts",
    "check_closure",
    "check_geometry",
    "operand_contracts",
]


def block_contracts(block: Block, layer: int) -> Iterator[OperandContract]:
    """Yield the operands of one block in the order in which they are used."""
    if block.norm is not None:
        yield from block.norm.contracts(layer, f"{block.site}.norm")
    yield from block.mixer.contracts(layer)
    if block.conv is not None:
        yield from block.conv.contracts(layer, f"{block.site}.conv")
    if block.post_norm is not None:
        yield from block.post_norm.contracts(layer, f"{block.site}.post_norm")
    if block.carrier_scale is not None:
        yield OperandContract(block.carrier_scale, (1,), layer, f"{block.site}.carrier_scale")


def operand_contracts(component: Component) -> tuple[OperandContract, ...]:
    """Return every operand that a full run of a component reads, in execution order.

    A tied head names the embedding's operand again.
    """
    embed, head = component.embed, component.head
    contracts = [OperandContract(embed.weight, (embed.vocab, embed.width), None, "embed")]
    if embed.norm is not None:
        contracts.extend(embed.norm.contracts(None, "embed.norm"))
    if component.draft_input is not None:
        contracts.extend(_draft_contracts(component.draft_input))
    if component.per_layer is not None:
        contracts.append(component.per_layer.contract())
    for layer in component.layers:
        for block in layer.blocks:
            contracts.extend(block_contracts(block, layer.index))
    contracts.extend(head.norm.contracts(None, "head.norm"))
    contracts.append(
        OperandContract(head.weight, (head.rows or head.vocab, head.width), None, "head")
    )
    return tuple(contracts)


def _draft_contracts(entry: DraftInput) -> Iterator[OperandContract]:
    yield from entry.embedding_norm.contracts(None, "draft_input.embedding_norm")
    yield from entry.hidden_norm.contracts(None, "draft_input.hidden_norm")
    yield from entry.projection.contracts(None, "draft_input.projection")


def check_geometry(component: Component) -> list[Defect]:
    """Return the contradictions among a component's own numbers, in execution order."""
    return list(_check_component(component))


def _check_component(component: Component) -> Iterator[Defect]:
    hidden, vocab = component.hidden_size, component.vocab_size
    embed, head = component.embed, component.head
    where = component.id
    yield from at_least_1(
        where,
        ("hidden size", hidden),
        ("vocab size", vocab),
        ("context length", component.context_length),
    )
    at = f"{where}.embedding"
    if embed.vocab < vocab:
        yield Defect(at, f"vocab is {embed.vocab}, expected at least {vocab}")
    yield from equal(at, "width", embed.width, hidden)
    if embed.norm is not None:
        yield from embed.norm.defects(hidden, at)
    entry = component.draft_input
    if (entry is not None) != (component.role == "draft"):
        yield Defect(where, "a draft input belongs to the role draft, and to no other")
    if entry is not None:
        at = f"{where}.draft_input"
        yield from entry.embedding_norm.defects(hidden, at)
        yield from entry.hidden_norm.defects(hidden, at)
        yield from entry.projection.defects(hidden, 2 * hidden, at, "projection")
    table = component.per_layer
    if table is not None:
        yield from table.defects(embed.vocab, len(component.layers), f"{where}.per_layer")
    for layer in component.layers:
        at = f"{where}.layer.{layer.index:03d}"
        sites = [block.site for block in layer.blocks]
        if len(set(sites)) != len(sites):
            yield Defect(at, f"has two blocks at one site ({', '.join(sites)})")
        for block in layer.blocks:
            yield from _check_block(block, hidden, f"{at} {block.site}")
            yield from _check_sources(component, block, layer.index, f"{at} {block.site}")
    at = f"{where}.output_head"
    yield from equal(at, "vocab", head.vocab, vocab)
    yield from equal(at, "width", head.width, hidden)
    if head.rows is not None and head.rows <= vocab:
        yield Defect(at, f"has {head.rows} rows for {vocab} logits, expected more or no number")
    yield from head.norm.defects(hidden, at)
    yield from above_0(at, ("softcap", head.softcap))
    if head.tied != (head.weight == embed.weight):
        yield Defect(at, f"tied is {head.tied}, but its weight is {head.weight}")


def _check_block(block: Block, hidden: int, where: str) -> Iterator[Defect]:
    mixer = block.mixer
    if block.site != mixer.site:
        yield Defect(where, f"holds {type(mixer).__name__}, which belongs to {mixer.site}")
    if block.norm is not None:
        yield from block.norm.defects(hidden, where)
    yield from mixer.defects(hidden, where)
    if block.conv is not None:
        yield from block.conv.defects(hidden, where, "convolution")
    if block.post_norm is not None:
        yield from block.post_norm.defects(hidden, where)


def _check_sources(component: Component, block: Block, layer: int, where: str) -> Iterator[Defect]:
    """Yield what is wrong with what a block takes from outside of its layer."""
    mixer = block.mixer
    if isinstance(mixer, PerLayerEmbedding):
        table = component.per_layer
        if table is None:
            yield Defect(where, "looks its embeddings up, but the component has no table for them")
        else:
            yield from equal(where, "width", mixer.width, table.width)
    if isinstance(mixer, SoftmaxAttention) and mixer.shared is not None:
        if block.conv is not None:
            yield Defect(where, "has a convolution, but keeps no state of its own")
        kept = [
            spec
            for earlier in component.layers[: min(layer, mixer.shared + 1)]
            for other in earlier.blocks
            for spec in other.mixer.state(earlier.index)
        ]
        if mixer.rows(mixer.shared) not in kept:
            yield Defect(
                where,
                f"shares the keys and values of layer {mixer.shared}, which keeps none before it "
                f"of that form and window",
            )


def check_closure(
    component: Component,
    representations: Mapping[str, Representation],
    elsewhere: Callable[[str], bool] = lambda _operand: False,
) -> list[Defect]:
    """Return what keeps a component's operands from closing, in execution order.

    Parameters
    ----------
    component : Component
        The component to close.
    representations : mapping
        Operand name to the representation that would be bound.
    elsewhere : callable
        Says of an operand whether it is declared to be left out, so that it may be missing.
    """
    defects = check_geometry(component)
    seen: set[tuple[str, str]] = set()
    for contract in operand_contracts(component):
        representation = representations.get(contract.name)
        if representation is None:
            if elsewhere(contract.name):
                continue
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
