"""The banks of a container one by one: what each runs, where it lies, and whether it will bind.

Headers and tables are read, and no weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from larql.errors import LarqlError, UnsupportedRefusal
from larql.format.container import Container
from larql.format.graph import ExpertBank
from larql.format.index import INDEX_NAME
from larql.format.moe import manifest as m
from larql.format.moe.bank_routes import BankReport, graph_bank, manifest_bank
from larql.format.moe.decode_routes import storage_of
from larql.format.moe.examine import Examiner
from larql.format.moe.from_graph import Place, routed_layers
from larql.format.moe.profiles import select
from larql.format.moe.states import (
    Absent,
    Damaged,
    Executable,
    Mismatch,
    State,
    Unsupported,
    is_defect,
    state_name,
)
from larql.format.moe.verify import read_manifest
from larql.format.operations.contract import BankPlace, Defect
from larql.format.region_bytes import regions_stand

__all__ = ["BankView", "bank_views", "sound_manifest", "verify_banks", "with_places"]

ROUTED, SHARED = "routed", "shared"


@dataclass(frozen=True)
class BankView:
    """One bank.

    Attributes
    ----------
    layer : int
    bank : str
        ``routed`` or ``shared``.
    programme : str
    experts, chosen : int
        Population, and how many of it a position reads.
    storage : str
        Key of the manifest's storages.
    files : tuple of str
    report : BankReport
    component : str or None
        Whose layer it is; None: that of the model proper.
    """

    layer: int
    bank: str
    programme: str
    experts: int
    chosen: int
    storage: str
    files: tuple[str, ...]
    report: BankReport
    component: str | None = None

    @property
    def binds(self) -> bool:
        """Whether all of it can be bound here."""
        return bool(self.report.choice.usable)

    @property
    def binding(self) -> str:
        """Whether it can be bound, in words."""
        if self.binds:
            return "binds"
        if not self.report.diagnoses:
            return "does not bind"
        first = self.report.diagnoses[0]
        kind = first.kind.value
        more = len(self.report.diagnoses) - 1
        return f"{kind}: {first.where}: {first.state}" + (f", and {more} more" if more else "")


def sound_manifest(container: Container) -> m.Manifest | None:
    """Return a container's manifest; None if it has none, or one that is not as it should be."""
    name = container.index.moe_manifest
    if name is None:
        return None
    manifest, defects = read_manifest(container.path, name)
    return None if defects else manifest


def bank_views(container: Container, profile: str | None = None) -> tuple[BankView, ...]:
    """Examine every bank of a container, in the order of the manifest; none if that has defects.

    Parameters
    ----------
    container : Container
        With or without a graph.
    profile : str or None
        As :func:`~larql.format.moe.profiles.select` takes it.

    Raises
    ------
    ContainerError, UsageError
        If graph or profile cannot be read.
    """
    manifest = sound_manifest(container)
    if manifest is None:
        return ()
    examiner = Examiner(container, select(container.index, profile, str(container.path)))
    banks = _graph_banks(container)
    found = []
    for layer in manifest.layers:
        for kind, bank in ((ROUTED, layer.routed_bank), (SHARED, layer.shared_bank)):
            if bank is None:
                continue
            storage = storage_of(manifest, bank.storage)
            name = f"{layer.text} {kind} bank"
            known = banks.get((layer.component, layer.layer)) if kind == ROUTED else None
            if known is None:
                report = manifest_bank(examiner, name, bank, storage, searched=False)
            else:
                contracts = list(known.contracts(layer.layer, layer.router.selection.k))
                report = graph_bank(examiner, name, contracts, storage.files, known.experts)
            chosen = layer.router.selection.k if kind == ROUTED else bank.experts
            found.append(
                BankView(
                    layer.layer, kind, bank.programme, bank.experts, chosen, storage.key,
                    storage.files, report, layer.component,
                )
            )  # fmt: skip
    return tuple(found)


def _graph_banks(container: Container) -> Mapping[Place, ExpertBank]:
    if container.index.system_graph is None:
        return {}
    return {place: mixer.bank for place, mixer in routed_layers(container.graph.components)}


def verify_banks(container: Container, damaged: Collection[str]) -> Iterator[Defect]:
    """Yield what keeps the banks of a container from binding, region by region.

    Parameters
    ----------
    container : Container
    damaged : collection of str
        Files of which it is known already that they are not what the index vouches for.
    """
    if container.index.system_graph is None and container.index.moe_manifest is not None:
        yield from read_manifest(container.path, container.index.moe_manifest)[1]
    try:
        views = bank_views(container)
    except LarqlError as error:
        # With a graph, what is wrong with profiles is told beside it.
        if container.index.system_graph is None:
            yield Defect(INDEX_NAME, str(error).removeprefix(f"{container.path}: "))
        views = ()
    told = set(damaged)
    for view in views:
        for defect in _bank_defects(view, container):
            told.update(view.files)
            if defect.where not in damaged:
                yield defect
    for value in container.index.representations.values():
        if value.segment in told:
            continue
        try:
            if container.index.holds_banks(value.segment):
                container.entries(value)
        except UnsupportedRefusal:
            continue  # a segment of no known kind, which is told where segments are
        except LarqlError as error:
            text = str(error).removeprefix(f"{container.path}/")
            place = next(
                (_place(v, value.operand) for v in views if value.segment in v.files), None
            )
            yield Defect(value.segment, f"operand {value.operand}: {text}", place)


def _place(view: BankView, operand: str) -> BankPlace:
    return BankPlace(view.layer, view.bank, _role(operand), component=view.component)


def with_places(container: Container, defects: Iterable[Defect]) -> list[Defect]:
    """Say of defects of whole files which part of which bank the file holds."""
    manifest = sound_manifest(container)
    places = {} if manifest is None else _places(manifest)
    found = []
    for defect in defects:
        place = places.get(defect.where)
        if defect.place is None and place is not None:
            roles = _damaged_roles(container, defect.where)
            placed = [dataclasses.replace(place, role=role) for role in roles] or [place]
            found += [dataclasses.replace(defect, place=one) for one in placed]
        else:
            found.append(defect)
    return found


def _damaged_roles(container: Container, file: str) -> list[str]:
    """Return the roles of a damaged file whose bytes have changed; none where no other is sound."""
    values = [v for v in container.index.representations.values() if v.segment == file]
    stand = {_role(value.operand): regions_stand(container, value) for value in values}
    sound = any(stands is True for stands in stand.values())
    return [role for role, stands in stand.items() if sound and stands is False]


def _places(manifest: m.Manifest) -> Mapping[str, BankPlace]:
    found: dict[str, BankPlace] = {}
    for layer in manifest.layers:
        for kind, bank in ((ROUTED, layer.routed_bank), (SHARED, layer.shared_bank)):
            if bank is None:
                continue
            files = storage_of(manifest, bank.storage).files
            for number, file in enumerate(files):
                # A file may hold both of a layer's banks.
                both = file in found and found[file].bank != kind
                segment = number if len(files) > 1 else None
                bank_name = None if both else kind
                found[file] = BankPlace(layer.layer, bank_name, None, segment, layer.component)
    return found


def _bank_defects(view: BankView, container: Container) -> Iterator[Defect]:
    """Yield what should not be so; what a profile leaves out or has elsewhere should."""
    if view.binds:
        return
    seen = set()
    for label, traversal in view.report.choice.failed:
        for gap in traversal.gaps:
            role = _role(gap.role)
            for segment, state in gap.missing:
                if not is_defect(state) or (role, segment) in seen:
                    continue
                seen.add((role, segment))
                place = BankPlace(view.layer, view.bank, role, segment.index, view.component)
                text = _detail(state).removeprefix(f"{container.path}/")
                problem = (
                    f"{place.text()}: {state_name(state)}: {text} ({traversal.tier.value}, {label})"
                )
                number = segment.index or 0
                file = view.files[number] if number < len(view.files) else view.files[0]
                yield Defect(file, problem, place)


def _role(name: str) -> str:
    """Return a region's role, of an operand's name or of a report's label."""
    tail = name.rpartition("experts.")[2] if "/" in name else name.rpartition("bank ")[2]
    return tail.removesuffix(".weight")


def _detail(state: State) -> str:
    match state:
        case Absent(detail=detail) | Mismatch(detail) | Damaged(detail) | Unsupported(detail):
            return detail
        case Executable():
            return ""
