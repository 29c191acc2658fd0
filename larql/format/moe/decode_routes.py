"""``local_decode``: whether a component runs here, from its tensors and the banks of its layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from larql.errors import RefusalKind
from larql.format.closure import operand_contracts
from larql.format.container import Container
from larql.format.graph import Component
from larql.format.index import Representation
from larql.format.moe.authority import Achievable, achievable, fold, level_of
from larql.format.moe.bank_routes import (
    BankReport,
    graph_bank,
    manifest_bank,
    manifest_contracts,
)
from larql.format.moe.examine import Examiner
from larql.format.moe.findings import Cause, Choices, Diagnosis, Operation, diagnose
from larql.format.moe.from_graph import Place, routed_layers
from larql.format.moe.manifest import Manifest, Storage
from larql.format.moe.profiles import Selection
from larql.format.moe.states import Executable, state_name
from larql.format.operations.contract import OperandContract

__all__ = ["bank_files", "contradictions", "decode", "representation_choices", "storage_of"]

Region = tuple[str, str]


def decode(
    examiner: Examiner,
    component: Component | None,
    manifest: Manifest | None,
    broken: Sequence[Diagnosis],
    producers: Sequence[Component] = (),
) -> Operation:
    """Return whether a component can be decoded here; failures are collected, not the first told.

    Parameters
    ----------
    examiner : Examiner
    component : Component or None
        None: the container has no graph that can be read, and only the banks are looked at.
    manifest : Manifest or None
        None: there is none, or it is not sound.
    broken : sequence of Diagnosis
        What is wrong with graph and manifest.
    producers : sequence of Component
        Those whose hidden states it consumes, and which run with it.
    """
    components = () if component is None else (*producers, component)
    contracts = [c for each in components for c in operand_contracts(each)]
    container = examiner.container
    banks = _bank_contracts(container, components)
    among = {container.beside(each.id) for each in components} if components else None
    dense = _dense(contracts, banks, manifest, among, container.index.hidden_size)
    regions: list[Region] = []
    groups: list[Choices] = []
    diagnoses = [*broken, *contradictions(examiner.selection, contracts)]
    for contract in dense:
        state = examiner.operand(contract)
        if isinstance(state, Executable):
            regions.append((contract.name, state.fidelity))
        else:
            diagnoses.append(diagnose(contract.name, state))
    reports = list(_banks(examiner, component, banks, manifest))
    for report in reports:
        diagnoses += report.diagnoses
        regions += report.regions
    fidelities: dict[str, list[str]] = {}
    for name, fidelity in regions:
        fidelities.setdefault(name, [fidelity])
    stored = _by_operand(examiner)
    for contract in (*dense, *(c for _, inside in banks for c in inside)):
        found, levels = representation_choices(examiner, contract, stored)
        if found is not None:
            groups.append(found)
            fidelities[contract.name] = levels or fidelities.get(contract.name, [])
    for report in reports:
        if report.choice.kind == "choice" or (report.choice.usable and report.choice.failed):
            groups.append(_layouts(report))
            for name, _ in report.regions:
                fidelities.pop(name, None)
            fidelities[report.name] = [
                fold((role, state.fidelity) for role, state in traversal.regions).level
                for _, traversal in report.choice.usable
            ]
    diagnoses = list(dict.fromkeys(diagnoses))
    authority = None if diagnoses else fold(regions)
    return Operation(
        name="local_decode",
        component=None if component is None else component.id,
        scope="profile",
        authority=authority,
        achievable=None
        if authority is None
        else _range([levels for levels in fidelities.values() if levels]),
        groups=tuple(groups),
        diagnoses=tuple(diagnoses),
    )


def _bank_contracts(
    container: Container, components: Sequence[Component]
) -> list[tuple[Place, list[OperandContract]]]:
    """Return place and operands of every bank, in execution order."""
    return [
        (
            (container.beside(component.id), layer),
            list(mixer.bank.contracts(layer, mixer.router.top)),
        )
        for component in components
        for (_, layer), mixer in routed_layers((component,))
    ]


def _dense(
    contracts: Sequence[OperandContract],
    banks: Sequence[tuple[Place, Sequence[OperandContract]]],
    manifest: Manifest | None,
    among: Collection[str | None] | None,
    hidden: int,
) -> list[OperandContract]:
    """Return what does not lie in banks, each once; the manifest adds to components ``among``."""
    inside = {contract.name for _, found in banks for contract in found}
    dense = {c.name: c for c in contracts if c.name not in inside}
    for layer in () if manifest is None else manifest.layers:
        if among is None or layer.component in among:
            for contract in manifest_contracts(layer, hidden):
                dense.setdefault(contract.name, contract)
    return list(dense.values())


def _banks(
    examiner: Examiner,
    component: Component | None,
    banks: Sequence[tuple[Place, Sequence[OperandContract]]],
    manifest: Manifest | None,
) -> Iterator[BankReport]:
    for place, contracts in banks:
        name = contracts[0].name.split("/")[0] + "/experts"
        files = bank_files(manifest, place)
        yield graph_bank(examiner, name, contracts, files, contracts[0].shape[0])
    if component is None and manifest is not None:
        for moe_layer in manifest.layers:
            for kind, bank in (
                ("routed", moe_layer.routed_bank),
                ("shared", moe_layer.shared_bank),
            ):
                if bank is not None:
                    storage = storage_of(manifest, bank.storage)
                    name = f"{moe_layer.text} {kind} bank"
                    yield manifest_bank(examiner, name, bank, storage, searched=False)


def storage_of(manifest: Manifest, key: str) -> Storage:
    """Return a storage of a sound manifest."""
    return next(storage for storage in manifest.storages if storage.key == key)


def bank_files(manifest: Manifest | None, place: Place) -> tuple[str, ...]:
    """Return the files of a layer's routed bank, empty where no manifest says."""
    for item in () if manifest is None else manifest.layers:
        if manifest is not None and (item.component, item.layer) == place:
            return storage_of(manifest, item.routed_bank.storage).files
    return ()


def contradictions(
    selection: Selection, contracts: Sequence[OperandContract]
) -> Iterator[Diagnosis]:
    """Yield the operands for which a profile selects two representations at once."""
    for name in dict.fromkeys(contract.name for contract in contracts):
        if name in selection.contradictions:
            ids = ", ".join(selection.contradictions[name])
            yield Diagnosis(
                Cause.INVALID_SELECTION,
                name,
                "",
                f"profile {selection.profile} selects {ids} for it at once",
                RefusalKind.BINDING_DEFECT,
                "select one variant that has it",
            )


def _by_operand(examiner: Examiner) -> Mapping[str, Sequence[Representation]]:
    found: dict[str, list[Representation]] = {}
    for value in examiner.container.index.representations.values():
        found.setdefault(value.operand, []).append(value)
    return found


def representation_choices(
    examiner: Examiner,
    contract: OperandContract,
    stored: Mapping[str, Sequence[Representation]],
) -> tuple[Choices | None, list[str]]:
    """Return the choice among an operand's representations, and the fidelities of the usable ones.

    None where there is one representation, or a profile has chosen.
    """
    name, selection = contract.name, examiner.selection
    values = stored.get(name, ())
    if len(values) < 2 or name in selection.chosen or selection.omitted(name):
        return None, []
    usable: list[str] = []
    failed: list[tuple[str, str]] = []
    fidelities: list[str] = []
    for value in values:
        state = examiner.operand(contract, value)
        if isinstance(state, Executable):
            usable.append(value.id)
            fidelities.append(state.fidelity)
        else:
            failed.append((value.id, state_name(state)))
    return Choices(name, tuple(usable), tuple(failed)), fidelities


def _layouts(report: BankReport) -> Choices:
    return Choices(
        report.name,
        tuple(label for label, _ in report.choice.usable),
        tuple((label, traversal.text) for label, traversal in report.choice.failed),
    )


def _range(options: Sequence[Sequence[str]]) -> Achievable | None:
    """Return best and worst over independent choices, without multiplying them out."""
    strongest = fold(("", best) for best in (_extreme(group, 0) for group in options))
    weakest = fold(("", worst) for worst in (_extreme(group, -1) for group in options))
    return achievable([strongest, weakest])


def _extreme(fidelities: Sequence[str], place: int) -> str:
    return sorted(fidelities, key=level_of)[place]
