"""A plan as a list of operations for a reader: each with its numbers and its operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from larql.format.closure import OperandContract, block_contracts, operand_contracts
from larql.format.graph import Norm
from larql.format.index import Representation
from larql.runtime.plan import Plan

__all__ = ["OperandLine", "Operation", "operand_lines", "operations"]


@dataclass(frozen=True)
class Operation:
    """One operation of a plan.

    Attributes
    ----------
    layer : int or None
    site : str
        ``embed``, ``attention``, ``ffn`` or ``head``.
    op : str
        The operation's name in the graph's vocabulary.
    detail : str
        Its judged numbers in a few words.
    operands : tuple of OperandContract
        What it reads.
    """

    layer: int | None
    site: str
    op: str
    detail: str
    operands: tuple[OperandContract, ...]


@dataclass(frozen=True)
class OperandLine:
    """One operand of an operation and whether the container serves it.

    Attributes
    ----------
    contract : OperandContract
    encoding : str or None
        Stored encoding, None where the container has no such operand.
    problem : str or None
        What keeps it from closing.
    """

    contract: OperandContract
    encoding: str | None
    problem: str | None


def operations(plan: Plan) -> Iterator[Operation]:
    """Yield a plan's operations in execution order."""
    component = plan.component
    outer = {c.use: c for c in operand_contracts(component) if c.layer is None}
    if plan.embeds:
        embed = component.embed
        detail = f"{embed.vocab} rows of {embed.width}, scale {embed.scale:.9g}"
        yield Operation(None, "embed", "embed", detail, (outer["embed"],))
        if embed.norm is not None:
            norms = [c for use, c in outer.items() if use.startswith("embed.norm")]
            yield _norm(embed.norm, None, "embed", norms)
        table = component.per_layer
        if table is not None:
            detail = (
                f"{table.vocab} rows of {table.width} for each of {table.layers} layers, scale "
                f"{table.scale:.9g}"
            )
            yield Operation(None, "embed", "per_layer_table", detail, (table.contract(),))
    entry = component.draft_input
    if entry is not None:
        used = [c for use, c in outer.items() if use.startswith("draft_input")]
        detail = f"{entry.projection.outputs} from two norms, the {entry.first}'s first"
        yield Operation(None, "draft_input", "draft_input", detail, tuple(used))
    for layer in plan.layers:
        for block in layer.blocks:
            contracts = list(block_contracts(block, layer.index))
            before = [c for c in contracts if c.use.startswith(f"{block.site}.norm")]
            after = [c for c in contracts if c.use.startswith(f"{block.site}.post_norm")]
            convolved = [c for c in contracts if c.use.startswith(f"{block.site}.conv")]
            scaled = [c for c in contracts if c.use == f"{block.site}.carrier_scale"]
            inner = [c for c in contracts if c not in (*before, *after, *scaled, *convolved)]
            if block.norm is not None:
                yield _norm(block.norm, layer.index, block.site, before)
            mixer = block.mixer
            yield Operation(layer.index, block.site, mixer.op, mixer.words(), tuple(inner))
            if block.conv is not None:
                text = f"{block.conv.channels} channels × {block.conv.taps}"
                text += ", added to its input" if block.conv.residual else ""
                yield Operation(layer.index, block.site, "convolution", text, tuple(convolved))
            if block.post_norm is not None:
                yield _norm(block.post_norm, layer.index, block.site, after)
            if block.residual_scale != 1.0:
                text = f"{block.residual_scale:.9g}"
                yield Operation(layer.index, block.site, "residual_scale", text, ())
            if scaled:
                text = "the whole carrier"
                yield Operation(layer.index, block.site, "carrier_scale", text, tuple(scaled))
    if plan.has_head:
        head = component.head
        norms = [c for use, c in outer.items() if use.startswith("head.norm")]
        yield _norm(head.norm, None, "head", norms)
        detail = f"{head.vocab} logits" + (f" of {head.rows} rows" if head.rows else "")
        detail += ", tied to the embedding" if head.tied else ""
        if head.multiplier != 1.0:
            detail += f", multiplier {head.multiplier:.9g}"
        if head.softcap is not None:
            detail += f", softcap {head.softcap:.9g}"
        yield Operation(None, "head", "head", detail, (outer["head"],))


def operand_lines(
    operation: Operation, representations: Mapping[str, Representation]
) -> tuple[OperandLine, ...]:
    """Return an operation's operands with what the container holds for each."""
    lines = []
    for contract in operation.operands:
        stored = representations.get(contract.name)
        if stored is None:
            lines.append(OperandLine(contract, None, "missing"))
        elif stored.shape != contract.shape:
            problem = f"has shape {list(stored.shape)}, expected {list(contract.shape)}"
            lines.append(OperandLine(contract, stored.encoding.name, problem))
        else:
            lines.append(OperandLine(contract, stored.encoding.name, None))
    return tuple(lines)


def _norm(norm: Norm, layer: int | None, site: str, contracts: list[OperandContract]) -> Operation:
    offset = f", offset {norm.offset:g}" if norm.offset else ""
    detail = f"{norm.kind} over {norm.width}, eps {norm.eps:.9g}{offset}"
    return Operation(layer, site, "norm", detail, tuple(contracts))
