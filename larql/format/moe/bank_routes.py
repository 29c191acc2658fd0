"""Whether a bank of experts can be used: its roles over its segments, by alternative layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from larql.errors import RefusalKind
from larql.format.graph import ExpertBank
from larql.format.lyrw.codes import Role, role_text
from larql.format.moe import manifest as m
from larql.format.moe.examine import Examiner
from larql.format.moe.findings import Cause, Diagnosis, diagnose
from larql.format.moe.held import cut
from larql.format.moe.programmes import PROGRAMMES
from larql.format.moe.states import Absent, State, Why
from larql.format.moe.traversal import Choice, Segment, Tier, Traversal, choose, fold_runs, traverse
from larql.format.moe.views import DIRECT, RowSlice, View, viewed
from larql.format.operations.contract import OperandContract
from larql.format.rows import RowSelection

__all__ = ["BankReport", "graph_bank", "manifest_bank", "manifest_contracts", "searched_view"]

_SEARCHED = frozenset({Role.GATE, Role.GATE_UP_FUSED})


@dataclass(frozen=True)
class BankReport:
    """What a bank comes to.

    Attributes
    ----------
    name : str
    choice : Choice
        Over the layouts that its programme accepts.
    regions : tuple of (str, str)
        Name and fidelity of what the first usable layout consumes.
    diagnoses : tuple of Diagnosis
        Of the alternatives, where none serves.
    omitted : bool
        Whether something is missing because the profile leaves it out, and nothing for another
        reason.
    """

    name: str
    choice: Choice
    regions: tuple[tuple[str, str], ...]
    diagnoses: tuple[Diagnosis, ...]
    omitted: bool = False

    @property
    def tier(self) -> Tier:
        """Of the first layout that serves, else of the one that comes farthest."""
        found = [t.tier for _, t in self.choice.usable or self.choice.failed]
        order = list(Tier)
        return max(found, key=order.index) if found else Tier.ROLE_FAILURE


def searched_view(bank: ExpertBank) -> View:
    """Return how the rows that a walk searches lie in the region that holds them."""
    if bank.gate_up is None:
        return DIRECT
    interleaved = bank.fused_rows == "interleaved"
    view = RowSlice(
        RowSelection(0, 1, 2, bank.width) if interleaved else RowSelection.span(0, bank.width)
    )
    viewed(view, (2 * bank.width, bank.hidden))
    return view


def graph_bank(
    examiner: Examiner,
    name: str,
    contracts: Sequence[OperandContract],
    files: Sequence[str],
    population: int,
    *,
    partial: bool = False,
) -> BankReport:
    """Examine a bank of which the graph names each operand.

    Parameters
    ----------
    examiner : Examiner
    name : str
    contracts : sequence of OperandContract
        Those of its operands that are consumed.
    files : sequence of str
        That the manifest gives for it; empty: the representations say.
    population : int
    partial : bool
        Whether a bank of which some entries are whole serves.
    """
    bounds = examiner.bounds(contract.name for contract in contracts)
    roles: dict[str, Mapping[Segment, State]] = {}
    for contract in contracts:
        value = examiner.selection.bound.get(contract.name)
        if value is None or value.shape != contract.shape:
            whole = Segment(0, population)
            roles[contract.name] = {whole: examiner.operand(contract)}
            continue
        listed = files if value.segment in files else (value.segment,)
        roles[contract.name] = examiner.entries(value, listed, population, bounds)
    roles = _aligned(roles)
    required = next(iter(roles.values())) if roles else {}
    return _report(name, {"as the graph says": traverse(tuple(required), roles)}, partial)


def _aligned(
    roles: Mapping[str, Mapping[Segment, State]],
) -> dict[str, Mapping[Segment, State]]:
    """Cut all roles alike, wherever one of them is cut; the finest cut names the segments."""
    bounds = {bound for states in roles.values() for s in states for bound in (s.first, s.end)}
    pieces = {
        role: [
            (part, state) for segment, state in states.items() for part in cut([segment], bounds)
        ]
        for role, states in roles.items()
    }
    finest = max(roles, key=lambda role: len(roles[role]), default="")
    names = {(part.first, part.end): part for part, _ in pieces.get(finest, [])}
    return {
        role: {names.get((part.first, part.end), part): state for part, state in found}
        for role, found in pieces.items()
    }


def manifest_bank(
    examiner: Examiner,
    name: str,
    bank: m.ExpertBank,
    storage: m.Storage,
    *,
    searched: bool,
    partial: bool = False,
) -> BankReport:
    """Examine a bank that only a manifest describes, by the layouts of its programme.

    Parameters
    ----------
    examiner : Examiner
    name : str
    bank : ExpertBank
        Of the manifest, without defects.
    storage : Storage
        Where it lies.
    searched : bool
        Only the rows that a walk searches.
    partial : bool
        Whether a bank of which some entries are whole serves.
    """
    programme = PROGRAMMES[bank.programme]
    held = examiner.held(storage.files, storage.bank_id, bank.experts, name)
    present = {schema.role for schema in held.bank.schemas} if held.bank else set()
    found: dict[str, Traversal] = {}
    for layout in programme.layouts:
        wanted = tuple(r for r in layout if r in _SEARCHED) if searched else layout
        label = " + ".join(role_text(role) for role in wanted)
        roles: dict[str, Mapping[Segment, State]] = {}
        for role in wanted:
            roles.update(_role(examiner, name, bank, storage, role))
        found[label] = traverse(held.registry, roles)
    report = _report(name, found, partial)
    closest = None if searched or held.bank is None else programme.closest(present)
    if closest is None:
        return report
    kind = RefusalKind.BINDING_DEFECT
    text = f"no layout of programme {bank.programme} has its roles; {closest.text()}"
    no_route = Diagnosis(Cause.NO_ROUTE, name, "", text, kind, "get the container again")
    return BankReport(name, report.choice, (), (no_route, *report.diagnoses))


def _role(
    examiner: Examiner, name: str, bank: m.ExpertBank, storage: m.Storage, role: Role
) -> Iterator[tuple[str, Mapping[Segment, State]]]:
    """Yield the states of a role's regions; biases of two matrices are two regions of one role."""
    held = examiner.held(storage.files, storage.bank_id, bank.experts, name)
    dims = bank.dims
    shapes = {
        Role.GATE: (dims.intermediate, dims.input),
        Role.UP: (dims.intermediate, dims.input),
        Role.GATE_UP_FUSED: (2 * dims.intermediate, dims.input),
        Role.DOWN: (dims.output, dims.intermediate),
    }
    schemas = [s for s in held.bank.schemas if s.role == role] if held.bank else []
    fidelity = {
        value.tensor: value.fidelity
        for value in examiner.container.index.representations.values()
        if value.segment in storage.files
    }
    if not schemas:
        label = f"{name} {role_text(role)}"
        missing = Absent(Why.NOWHERE, f"no file of the bank has a region of role {role_text(role)}")
        yield label, {s: held.problem(s) or missing for s in held.registry}
    for schema in schemas:
        states: dict[Segment, State] = {}
        expected = shapes.get(role, (schema.rows, schema.cols))
        # What nothing vouches for has no fidelity to build on.
        level = fidelity.get(f"{storage.bank_id}/{schema.schema_index}", "analysis-only")
        label = f"{name} {role_text(role)}"
        for segment in held.registry:
            file = held.owner(segment)
            states[segment] = (
                examiner.not_held(held, segment, label)
                if file is None
                else examiner.region(file, storage.bank_id, segment, schema, expected, level)
            )
        yield (label if len(schemas) == 1 else f"{label} {schema.schema_index}"), states


def _report(name: str, found: Mapping[str, Traversal], partial: bool) -> BankReport:
    choice = choose(name, found.items(), partial=partial)
    if choice.usable:
        traversal = choice.usable[0][1]
        regions = tuple((role, state.fidelity) for role, state in traversal.regions)
        omitted = bool(traversal.gaps) and all(
            isinstance(state, Absent) and state.why is Why.OMITTED
            for gap in traversal.gaps
            for _, state in gap.missing
        )
        return BankReport(name, choice, tuple(dict.fromkeys(regions)), (), omitted)
    diagnoses = tuple(
        diagnosis for _, traversal in choice.failed for diagnosis in _diagnoses(traversal)
    )
    return BankReport(name, choice, (), tuple(dict.fromkeys(diagnoses)))


def _diagnoses(traversal: Traversal) -> Iterator[Diagnosis]:
    for gap in traversal.gaps:
        for where, state in fold_runs(gap.missing):
            found = diagnose(f"{gap.role}, {where}", state)
            yield Diagnosis(
                found.cause,
                found.where,
                found.state,
                f"{traversal.tier.value}: {found.detail}",
                found.kind,
                found.repair,
                found.defect,
            )


def manifest_contracts(layer: m.MoeLayer, hidden: int) -> Iterator[OperandContract]:
    """Yield the operands outside of banks that a manifest names for a layer.

    Parameters
    ----------
    layer : MoeLayer
    hidden : int
        The carrier's width.
    """
    router, bank = layer.router, layer.routed_bank
    sink = 0
    if router.shared_sink:
        sink = layer.shared_bank.experts if layer.shared_bank else router.dense_sinks or 0
    e, dims = bank.experts, bank.dims
    named: list[tuple[str | None, tuple[int, ...], str]] = [
        (router.input.scale, (hidden,), "router.input.scale"),
        (router.scores, (e + sink, hidden), "router.scores"),
        (router.gate_bias, (e,), "router.gate_bias"),
        (router.correction_bias, (e,), "router.correction_bias"),
        (router.quantile_balance, (e,), "router.quantile_balance"),
        (router.global_scale, (1,), "router.global_scale"),
        (router.expert_scale, (e,), "router.expert_scale"),
        (layer.routed_output_norm, (hidden,), "routed_output_norm"),
    ]
    if layer.transforms is not None:
        named += [
            (layer.transforms.routed_input, (dims.input, hidden), "transforms.routed_input"),
            (layer.transforms.routed_output, (hidden, dims.output), "transforms.routed_output"),
        ]
    for name, shape, use in named:
        if name is not None:
            yield OperandContract(name, shape, layer.layer, use)
