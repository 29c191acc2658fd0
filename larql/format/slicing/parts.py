"""What each part of a model holds of its graph.

A part is a set of roles, or of text files. Parts overlap: the rows that a walk
searches are ``gate``, and the same rows belong to the feed-forward network they are taken from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from larql.format.graph import Block, Component, DenseFfn, RoutedFfn
from larql.format.moe.walk_routes import searched_rows
from larql.format.operations.contract import OperandContract
from larql.format.slicing.presets import Part

__all__ = ["Use", "operand_uses"]


@dataclass(frozen=True)
class Use:
    """One place of the graph that reads an operand.

    Attributes
    ----------
    operand : str
    layer : int or None
        None outside of the layers.
    part : Part
        To which that place belongs.
    """

    operand: str
    layer: int | None
    part: Part


def operand_uses(component: Component) -> Iterator[Use]:
    """Yield every use of every operand of a component, in the order of the graph."""
    embed, head = component.embed, component.head
    yield Use(embed.weight, None, Part.EMBED)
    if embed.norm is not None:
        yield from _uses(embed.norm.contracts(None, ""), Part.NORMS)
    if component.per_layer is not None:
        yield Use(component.per_layer.weight, None, Part.EMBED)
    entry = component.draft_input
    if entry is not None:
        yield from _uses(entry.embedding_norm.contracts(None, ""), Part.NORMS)
        yield from _uses(entry.hidden_norm.contracts(None, ""), Part.NORMS)
        yield from _uses(entry.projection.contracts(None, ""), Part.ATTN)
    for layer in component.layers:
        for block in layer.blocks:
            yield from _block(block, layer.index)
    yield from _uses(head.norm.contracts(None, ""), Part.NORMS)
    yield Use(head.weight, None, Part.HEAD)


def _block(block: Block, layer: int) -> Iterator[Use]:
    for norm in (block.norm, block.post_norm):
        if norm is not None:
            yield from _uses(norm.contracts(layer, ""), Part.NORMS)
    if block.carrier_scale is not None:
        yield Use(block.carrier_scale, layer, Part.NORMS)
    mixer = block.mixer
    if block.conv is not None:
        kinds = {DenseFfn: Part.FFN, RoutedFfn: Part.EXPERT_LAYERS}
        yield from _uses(block.conv.contracts(layer, ""), kinds.get(type(mixer), Part.ATTN))
    if isinstance(mixer, DenseFfn):
        yield from _dense(mixer, layer)
    elif isinstance(mixer, RoutedFfn):
        yield from _routed(mixer, layer)
    else:
        yield from _uses(mixer.contracts(layer), Part.ATTN)


def _dense(ffn: DenseFfn, layer: int) -> Iterator[Use]:
    yield from _uses(ffn.contracts(layer), Part.FFN)
    yield from _uses(searched_rows(ffn).contracts(layer, ""), Part.GATE)


def _routed(mixer: RoutedFfn, layer: int) -> Iterator[Use]:
    known = list(_named_parts(mixer, layer))
    yield from known
    # Whatever else stands between router and experts serves the experts.
    names = {use.operand for use in known}
    rest = (contract for contract in mixer.contracts(layer) if contract.name not in names)
    yield from _uses(rest, Part.EXPERT_LAYERS)


def _named_parts(mixer: RoutedFfn, layer: int) -> Iterator[Use]:
    yield from _uses(mixer.router.contracts(layer), Part.ROUTER)
    yield from _uses(mixer.bank.contracts(layer, mixer.router.top), Part.EXPERT_LAYERS)
    for name in (mixer.bank.gate, mixer.bank.gate_up):
        if name is not None:
            yield Use(name, layer, Part.GATE)
    if mixer.latent is not None:  # the rows are searched through it
        for part in (Part.GATE, Part.EXPERT_LAYERS):
            yield from _uses(mixer.latent.into.contracts(layer, ""), part)
    norms = [mixer.norm, mixer.post_norm]
    for ffn in mixer.weighted or ():
        yield from _dense(ffn, layer)
    if mixer.shared is not None:
        norms += [mixer.shared.norm, mixer.shared.post_norm]
        yield from _dense(mixer.shared.ffn, layer)
        if mixer.shared.gate is not None:
            yield from _uses(mixer.shared.gate.contracts(layer, ""), Part.FFN)
    for norm in norms:
        if norm is not None:
            yield from _uses(norm.contracts(layer, ""), Part.NORMS)


def _uses(contracts: Iterable[OperandContract], part: Part) -> Iterator[Use]:
    for contract in contracts:
        yield Use(contract.name, contract.layer, part)
