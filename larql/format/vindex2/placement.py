"""Which file of a VINDEX2 directory holds each operand of a component."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from larql.errors import CompileError
from larql.format.closure import operand_contracts
from larql.format.graph import Block, Component, DenseFfn, ExpertBank, Layer, Norm, RoutedFfn
from larql.format.lyrw.v1 import LayerWeights, layer_file_name
from larql.format.operations.contract import OperandContract
from larql.format.vindex2.index import LayerFeatures
from larql.format.vindex2.layout import (
    ATTENTION,
    DOWN,
    EMBEDDINGS,
    GATE,
    HEAD,
    NORMS,
    ROUTER,
    UP,
    FfnLayout,
)

__all__ = [
    "Form",
    "Place",
    "contiguous",
    "dense_of",
    "entries_fault",
    "features_of",
    "places",
    "routed_of",
    "widest_network",
]


class Form(Enum):
    """How a file holds an operand."""

    LISTED = "listed"
    FEATURES = "features"
    EMBEDDINGS = "embeddings"
    DENSE_ENTRY = "dense_entry"
    EXPERTS = "experts"


@dataclass(frozen=True)
class Place:
    """Where an operand belongs.

    Attributes
    ----------
    file : str
    form : Form
        ``LISTED``: a tensor of the manifest. ``FEATURES``: the gate vectors of its layer.
        ``EMBEDDINGS``: all of ``embeddings.bin``. ``DENSE_ENTRY``: a part of the one entry of a
        layer file. ``EXPERTS``: the same part of each entry.
    part : str
        ``gate``, ``up``, ``gate_up`` or ``down`` of an entry; else empty.
    contract : OperandContract
        Name and shape.
    """

    file: str
    form: Form
    part: str
    contract: OperandContract


def dense_of(block: Block) -> DenseFfn | None:
    """Return the feed-forward network of a block that every position passes through.

    Beside experts that is the shared one, unless the router weighs it.
    """
    mixer = block.mixer
    if isinstance(mixer, DenseFfn):
        return mixer
    if isinstance(mixer, RoutedFfn) and mixer.shared is not None:
        return mixer.shared.ffn
    return None


def routed_of(layer: Layer) -> RoutedFfn | None:
    """Return the operation of a layer that routes to experts."""
    found = (block.mixer for block in layer.blocks if isinstance(block.mixer, RoutedFfn))
    return next(found, None)


def features_of(layer: Layer) -> tuple[OperandContract, OperandContract] | None:
    """Return the operands of a layer's gate vectors and of what its features write.

    Without a gate, what decides whether a feature fires is its row of ``up``.
    """
    for block in layer.blocks:
        dense = dense_of(block)
        if dense is not None:
            keys = dense.up if dense.gate is None else dense.gate
            (key, *_bias), (value, *_more) = (
                list(linear.contracts(layer.index, "ffn")) for linear in (keys, dense.down)
            )
            return key, value
    return None


def contiguous(component: Component) -> Component:
    """Return a component whose fused experts have the rows of gate before those of up.

    That is the one order that a layer file has.
    """
    layers = tuple(
        replace(layer, blocks=tuple(_contiguous_block(block) for block in layer.blocks))
        for layer in component.layers
    )
    return replace(component, layers=layers)


def _contiguous_block(block: Block) -> Block:
    mixer = block.mixer
    if not isinstance(mixer, RoutedFfn) or mixer.bank.fused_rows != "interleaved":
        return block
    bank = replace(mixer.bank, fused_rows="contiguous_halves")
    return replace(block, mixer=replace(mixer, bank=bank))


def places(component: Component, layout: FfnLayout | None) -> dict[str, Place]:
    """Return where each operand of a component belongs, in execution order.

    Raises
    ------
    CompileError
        If dense networks are to lie in layer files and one of them cannot.
    """
    special: dict[str, tuple[str, Form, str]] = {
        component.embed.weight: (EMBEDDINGS, Form.EMBEDDINGS, "")
    }
    for file, norm in ((NORMS, component.embed.norm), (NORMS, component.head.norm)):
        special.update(_norm_places(norm, file))
    if not component.head.tied:
        special[component.head.weight] = (HEAD, Form.LISTED, "")
    for layer in component.layers:
        for block in layer.blocks:
            special.update(_block_places(block, layer, layout))
    found: dict[str, Place] = {}
    for contract in operand_contracts(component):
        file, form, part = special.get(contract.name) or (_file_of(contract), Form.LISTED, "")
        found.setdefault(contract.name, Place(file, form, part, contract))
    return found


def _file_of(contract: OperandContract) -> str:
    """Return the file of an operand that has no place of its own."""
    return UP if contract.use.startswith("ffn") else ATTENTION


def _norm_places(norm: Norm | None, file: str) -> Iterator[tuple[str, tuple[str, Form, str]]]:
    if norm is not None:
        for contract in norm.contracts(None, ""):
            yield contract.name, (file, Form.LISTED, "")


def _block_places(
    block: Block, layer: Layer, layout: FfnLayout | None
) -> Iterator[tuple[str, tuple[str, Form, str]]]:
    yield from _norm_places(block.norm, NORMS)
    yield from _norm_places(block.post_norm, NORMS)
    if block.carrier_scale is not None:
        yield block.carrier_scale, (NORMS, Form.LISTED, "")
    mixer = block.mixer
    dense = dense_of(block)
    if isinstance(mixer, RoutedFfn):
        yield from _routed_places(mixer, layer.index)
    if dense is not None:
        apart = layout is FfnLayout.PER_LAYER and isinstance(mixer, DenseFfn)
        yield from _dense_places(dense, layer.index, apart=apart)


def _dense_places(
    ffn: DenseFfn, layer: int, *, apart: bool
) -> Iterator[tuple[str, tuple[str, Form, str]]]:
    for linear, file in ((ffn.gate, UP), (ffn.up, UP), (ffn.down, DOWN)):
        if linear is not None and linear.bias is not None:
            yield linear.bias, (file, Form.LISTED, "")
    if ffn.scale is not None:
        yield ffn.scale, (DOWN, Form.LISTED, "")
    if not apart:
        keys, value = ffn.up if ffn.gate is None else ffn.gate, ffn.down
        yield ffn.up.weight, (UP, Form.LISTED, "")
        yield keys.weight, (GATE, Form.FEATURES, "")
        yield value.weight, (DOWN, Form.LISTED, "")
        return
    if ffn.gate is None:
        raise CompileError(
            f"layer {layer}: its feed-forward network has no gate, and an entry of a layer file "
            f"has one; leave --ffn-layout out"
        )
    for linear, part in ((ffn.gate, "gate"), (ffn.up, "up"), (ffn.down, "down")):
        yield linear.weight, (layer_file_name(layer), Form.DENSE_ENTRY, part)


def _routed_places(mixer: RoutedFfn, layer: int) -> Iterator[tuple[str, tuple[str, Form, str]]]:
    for contract in mixer.router.contracts(layer):
        yield contract.name, (ROUTER, Form.LISTED, "")
    for norm in (mixer.norm, mixer.post_norm):
        yield from _norm_places(norm, NORMS)
    bank, file = mixer.bank, layer_file_name(layer)
    for name, part in (
        (bank.gate, "gate"),
        (bank.up, "up"),
        (bank.gate_up, "gate_up"),
        (bank.down, "down"),
    ):
        if name is not None:
            yield name, (file, Form.EXPERTS, part)
    if bank.down_bias is not None:
        yield bank.down_bias, (DOWN, Form.LISTED, "")
    if mixer.shared is not None:
        yield from _norm_places(mixer.shared.norm, NORMS)
        yield from _norm_places(mixer.shared.post_norm, NORMS)
    for ffn in mixer.weighted or ():
        yield ffn.down.weight, (DOWN, Form.LISTED, "")


def entries_fault(
    bank: ExpertBank, file: LayerWeights, experts: tuple[int, int] | None
) -> str | None:
    """Return what is wrong with a layer file of a bank, None if nothing is.

    Parameters
    ----------
    bank : ExpertBank
    file : LayerWeights
    experts : (int, int) or None
        The half-open range that the index says a shard has; None: all.
    """
    count = file.shape.num_entries
    if count != bank.experts:
        return (
            f"has {count} experts, the model has {bank.experts}; a layer must have all of its "
            f"experts"
        )
    first, end = experts or (0, count)
    held = [entry for entry in range(count) if file.holds(entry)]
    if held == list(range(first, min(end, count))):
        return None
    said = "which must all be here" if experts is None else f"of which {first}:{end} must be here"
    return f"has {len(held)} experts of {count}, {said}"


def widest_network(component: Component, layers: Iterable[LayerFeatures]) -> int:
    """Return the width of the dense networks, or of an expert where there are none."""
    dense = max((entry.num_features for entry in layers), default=0)
    experts = [r.bank.width for layer in component.layers if (r := routed_of(layer)) is not None]
    return dense or max(experts, default=0)
