"""``walk``: whether the rows that let a bank's neurons fire can be searched, bank by bank."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from larql.errors import RefusalKind, UsageError
from larql.format.generation import Generation
from larql.format.graph import Component, DenseFfn, RoutedFfn
from larql.format.moe.authority import PARTIAL, WHOLE, achievable, fold
from larql.format.moe.bank_routes import (
    BankReport,
    graph_bank,
    manifest_bank,
    manifest_contracts,
    searched_view,
)
from larql.format.moe.decode_routes import bank_files, contradictions, storage_of
from larql.format.moe.examine import Examiner
from larql.format.moe.findings import Cause, Diagnosis, Operation, diagnose
from larql.format.moe.manifest import Manifest
from larql.format.moe.states import Absent, Executable, Why, state_name
from larql.format.moe.traversal import Tier
from larql.format.operations.contract import OperandContract
from larql.format.operations.linear import Linear

__all__ = ["searched_rows", "walk"]

Region = tuple[str, str]
_NO_FEATURES = Diagnosis(
    Cause.NO_ROUTE,
    "gate vectors",
    "",
    "no layer has dense features, and experts are not searched in this generation",
    RefusalKind.UNSUPPORTED,
    "search a VINDEX3 container of the model",
    defect=False,
)
_OUTSIDE = Absent(Why.OUTSIDE, "its layer was not asked for")


@dataclass(frozen=True)
class _Target:
    """One bank that is searched: its regions if it can be, else why not."""

    name: str
    layer: int
    regions: tuple[Region, ...]
    diagnoses: tuple[Diagnosis, ...]
    partial: bool = False
    omitted: bool = False


def searched_rows(ffn: DenseFfn) -> Linear:
    """Return the rows of a dense feed-forward network that let its neurons fire."""
    return ffn.up if ffn.gate is None else ffn.gate


def walk(
    examiner: Examiner,
    component: Component | None,
    manifest: Manifest | None,
    broken: Sequence[Diagnosis],
    *,
    partial: bool = False,
    layers: tuple[int, int] | None = None,
) -> Operation:
    """Return whether all banks of a component can be searched.

    Every bank, or none: where ``partial`` is asked for, those that can be, and what was dropped is
    reported. A vector has the carrier's width even for a latent bank, which is searched through its
    transform.

    Parameters
    ----------
    examiner : Examiner
    component : Component or None
        None: the banks of the manifest.
    manifest : Manifest or None
    broken : sequence of Diagnosis
        What is wrong with graph and manifest.
    partial : bool
    layers : (int, int) or None
        Half-open range of the layers whose banks are asked for; None: all.

    Raises
    ------
    UsageError
        If no layer of that range has a bank.
    """
    if examiner.container.generation is Generation.VINDEX2:
        every = list(_feature_targets(examiner))
        if not every:
            broken = (*broken, _NO_FEATURES)
    elif component is not None:
        every = list(_targets(examiner, component, manifest, partial))
    elif manifest is not None:
        every = list(_manifest_targets(examiner, manifest, partial))
    else:
        every = []
    first, end = layers or (0, sys.maxsize)
    targets = [target for target in every if first <= target.layer < end]
    if every and not targets:
        raise UsageError(
            f"{examiner.container.path}: layers {first}:{end} have no bank; those with banks are "
            f"{min(t.layer for t in every)} to {max(t.layer for t in every)}"
        )
    outside = [(t.name, state_name(_OUTSIDE)) for t in every if t not in targets]
    covered = [target for target in targets if not target.diagnoses]
    diagnoses = [d for target in targets for d in target.diagnoses]
    if not targets:
        diagnoses = [*broken, *diagnoses]
    served = covered if partial else targets
    regions = [region for target in served for region in target.regions]
    authority = None
    if regions and (partial or not diagnoses):
        gaps = [target for target in served if target.partial]
        authority = fold(
            regions,
            completeness=PARTIAL if any(not t.omitted for t in gaps) else WHOLE,
            omission=PARTIAL if any(t.omitted for t in gaps) else WHOLE,
        )
    return Operation(
        name="walk",
        component=None if component is None else component.id,
        scope="profile",
        authority=authority,
        achievable=None if authority is None else achievable([authority]),
        diagnoses=tuple(dict.fromkeys(diagnoses)),
        asked=tuple(target.name for target in targets),
        covered=tuple(target.name for target in covered),
        outside=tuple(outside),
        notes=tuple(_notes(examiner)),
    )


def _notes(examiner: Examiner) -> Iterator[str]:
    files = examiner.container.text_files()
    if "tokenizer.json" not in files or not files["tokenizer.json"].is_file():
        yield "there is no tokenizer, so results have ids and no text"


def _targets(
    examiner: Examiner, component: Component, manifest: Manifest | None, partial: bool
) -> Iterator[_Target]:
    beside = examiner.container.beside(component.id)
    for layer in component.layers:
        at = f"{component.id}.layer.{layer.index:03d}"
        for block in layer.blocks:
            mixer = block.mixer
            if isinstance(mixer, DenseFfn):
                yield _dense(examiner, f"{at}/ffn", mixer, layer.index)
            if isinstance(mixer, RoutedFfn):
                searched_view(mixer.bank)
                named = {mixer.bank.gate, mixer.bank.gate_up}
                contracts = [
                    contract
                    for contract in mixer.bank.contracts(layer.index, mixer.router.top)
                    if contract.name in named
                ]
                files = bank_files(manifest, (beside, layer.index))
                report = graph_bank(
                    examiner, f"{at}/experts", contracts, files, mixer.bank.experts, partial=partial
                )
                around: list[Region] = []
                conflicts = list(contradictions(examiner.selection, contracts))
                if mixer.latent is not None:
                    for contract in mixer.latent.into.contracts(layer.index, "walk"):
                        _add(examiner, contract, around, conflicts)
                found = _of_bank(report, layer.index, conflicts)
                yield dataclasses.replace(found, regions=(*around, *found.regions))
                if mixer.shared is not None:
                    yield _dense(examiner, f"{at}/shared", mixer.shared.ffn, layer.index)
                for number, ffn in enumerate(mixer.weighted or ()):
                    yield _dense(examiner, f"{at}/shared.{number}", ffn, layer.index)


def _feature_targets(examiner: Examiner) -> Iterator[_Target]:
    """Yield what is searched of a VINDEX2 directory: the dense features of each layer."""
    from larql.format.vindex2.container import Vindex2
    from larql.format.vindex2.features import feature_banks, feature_state

    assert isinstance(examiner.container, Vindex2)
    for bank in feature_banks(examiner.container):
        state = feature_state(examiner.container, examiner.selection, bank)
        if isinstance(state, Executable):
            yield _Target(bank.name, bank.layer, ((bank.operand, state.fidelity),), ())
        else:
            yield _Target(bank.name, bank.layer, (), (diagnose(bank.operand, state),))


def _of_bank(report: BankReport, layer: int, more: Sequence[Diagnosis] = ()) -> _Target:
    return _Target(
        report.name,
        layer,
        report.regions,
        (*more, *report.diagnoses),
        report.tier is Tier.PARTIAL,
        report.omitted,
    )


def _dense(examiner: Examiner, name: str, ffn: DenseFfn, layer: int) -> _Target:
    contracts = list(searched_rows(ffn).contracts(layer, "walk"))
    regions: list[Region] = []
    diagnoses = list(contradictions(examiner.selection, contracts))
    for contract in contracts:
        _add(examiner, contract, regions, diagnoses)
    return _Target(name, layer, tuple(regions), tuple(diagnoses))


def _add(
    examiner: Examiner,
    contract: OperandContract,
    regions: list[Region],
    diagnoses: list[Diagnosis],
) -> None:
    state = examiner.operand(contract)
    if isinstance(state, Executable):
        regions.append((contract.name, state.fidelity))
    else:
        diagnoses.append(diagnose(contract.name, state))


def _manifest_targets(examiner: Examiner, manifest: Manifest, partial: bool) -> Iterator[_Target]:
    hidden = examiner.container.index.hidden_size
    for layer in manifest.layers:
        banks = (("routed", layer.routed_bank), ("shared", layer.shared_bank))
        for kind, bank in banks:
            if bank is None:
                continue
            report = manifest_bank(
                examiner,
                f"{layer.text} {kind} bank",
                bank,
                storage_of(manifest, bank.storage),
                searched=True,
                partial=partial,
            )
            regions: list[Region] = []
            diagnoses: list[Diagnosis] = []
            if bank.input_space == "latent" and layer.transforms is not None:
                for contract in manifest_contracts(layer, hidden):
                    if contract.name == layer.transforms.routed_input:
                        _add(examiner, contract, regions, diagnoses)
            found = _of_bank(report, layer.layer, diagnoses)
            yield _Target(
                found.name,
                found.layer,
                (*regions, *found.regions),
                found.diagnoses,
                found.partial,
                found.omitted,
            )
