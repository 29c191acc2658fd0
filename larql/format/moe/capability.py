"""What a container can do, how faithfully, and what exactly is missing.

Three operations are asked about. ``walk`` searches the rows that let a bank's neurons fire, and
consults no ``down``, router or kernel. ``local_decode`` runs a component here. Both are of the
active profile. ``reconstruct_canonical`` writes the checkpoint back; it is of the document, from
the baselines, whatever profile is active.

Headers and tables are read, and no weight: whether bytes are those that the index vouches for is
what ``verify`` answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from larql.errors import BindingDefect, ContainerError, LarqlError, RefusalKind, ResidencyRefusal
from larql.errors import Refusal as RefusalError
from larql.format.closure import check_geometry, operand_contracts
from larql.format.container import Container
from larql.format.graph import Component
from larql.format.index import Representation, load_json
from larql.format.moe.authority import achievable, fold
from larql.format.moe.decode_routes import decode
from larql.format.moe.defects import manifest_defects
from larql.format.moe.examine import Examiner
from larql.format.moe.findings import Cause, Diagnosis, Operation, diagnose
from larql.format.moe.manifest import Manifest
from larql.format.moe.manifest_json import manifest_from_json
from larql.format.moe.profiles import Selection, document_selection, selection_of
from larql.format.moe.states import Executable
from larql.format.moe.verify import contradictions
from larql.format.moe.walk_routes import walk

__all__ = ["Capability", "capability_of", "sound_manifest", "walk_of"]


@dataclass(frozen=True)
class Capability:
    """The answer for one container under one profile.

    Attributes
    ----------
    profile : str or None
        None: the document as it stands.
    chain : tuple of str
        The profile and those that it inherits from.
    operations : tuple of Operation
    """

    profile: str | None
    chain: tuple[str, ...]
    operations: tuple[Operation, ...]

    @property
    def defects(self) -> tuple[Diagnosis, ...]:
        """What is not as the container declares it, each once."""
        found = (d for operation in self.operations for d in operation.defects)
        return tuple(dict.fromkeys(found))


def capability_of(
    container: Container,
    profile: str | None = None,
    *,
    partial: bool = False,
    layers: tuple[int, int] | None = None,
) -> Capability:
    """Ask what a container can do.

    Parameters
    ----------
    container : Container
    profile : str or None
        None: the profile ``default``, or the document where it has none of that name.
    partial : bool
        Whether a walk that covers only some of the banks is asked for.
    layers : (int, int) or None
        Half-open range of the layers whose banks a walk is asked to cover; None: all.

    Raises
    ------
    UsageError
        If there is no such profile, or no layer of the range has a bank.
    ContainerError
        As :func:`~larql.format.moe.profiles.selection_of`.
    """
    components, broken = _components(container)
    selection = selection_of(container.index, components, profile, str(container.path))
    examiner = Examiner(container, selection)
    manifest, more = _manifest(container)
    broken += more
    operations: list[Operation] = []
    for component in components or (None,):
        operations.append(
            walk(examiner, component, manifest, broken, partial=partial, layers=layers)
        )
        producers = _producers(container, component)
        operations.append(decode(examiner, component, manifest, broken, producers))
    operations.append(_reconstruct(container, selection, () if components else broken))
    return Capability(selection.profile, selection.chain, tuple(operations))


def walk_of(
    container: Container,
    selection: Selection,
    component: str | None,
    partial: bool,
    layers: tuple[int, int] | None,
) -> Operation:
    """Ask whether a component's banks can be searched.

    Parameters
    ----------
    container : Container
    selection : Selection
        What the active profile selects.
    component : str or None
        None: the container has no graph, and its manifest's banks are meant.
    partial, layers
        As :func:`capability_of`.

    Raises
    ------
    UsageError
        If no layer of the range has a bank.
    """
    manifest, broken = _manifest(container)
    found = None if component is None else container.component(component)
    examiner = Examiner(container, selection)
    return walk(examiner, found, manifest, broken, partial=partial, layers=layers)


def sound_manifest(container: Container) -> Manifest | None:
    """Return a container's manifest, None if it has none that is sound."""
    return _manifest(container)[0]


def _components(container: Container) -> tuple[tuple[Component, ...], list[Diagnosis]]:
    name = container.index.system_graph
    if name is None:
        detail = "the container has no system graph, so nothing says what surrounds its banks"
        return (), [_contract("system graph", detail, RefusalKind.BINDING_DEFECT, defect=False)]
    try:
        components = container.graph.components
    except LarqlError as error:
        kind = error.kind if isinstance(error, RefusalError) else RefusalKind.BINDING_DEFECT
        return (), [_contract(name, str(error), kind)]
    broken = [
        _contract(component.id, defect.line(), RefusalKind.BINDING_DEFECT)
        for component in components
        for defect in check_geometry(component)
    ]
    return components, broken


def _producers(container: Container, component: Component | None) -> tuple[Component, ...]:
    if component is None:
        return ()
    names = {edge.producer for edge in container.graph.edges if edge.consumer == component.id}
    return tuple(other for other in container.graph.components if other.id in names)


def _manifest(container: Container) -> tuple[Manifest | None, list[Diagnosis]]:
    """Return the manifest where it is sound, and what is wrong with it where not."""
    name = container.index.moe_manifest
    if name is None:
        return None, []
    path = container.path / name
    try:
        manifest = manifest_from_json(load_json(path), str(path))
        container.check_bytes(name)
    except LarqlError as error:
        kind = error.kind if isinstance(error, RefusalError) else RefusalKind.BINDING_DEFECT
        return None, [_contract(name, str(error), kind)]
    problems = [defect.message for defect in manifest_defects(manifest)]
    sound = not problems
    if sound and container.index.system_graph is not None:
        with suppress(LarqlError):  # the graph's own, which is told beside
            found = contradictions(manifest, container.index, container.graph.components)
            problems = [defect.problem for defect in found]
    defects = [_contract(name, problem, RefusalKind.BINDING_DEFECT) for problem in problems]
    # One that only contradicts the graph is gone through: what it lacks is told as well.
    return (manifest if sound else None), defects


def _contract(where: str, detail: str, kind: RefusalKind, *, defect: bool = True) -> Diagnosis:
    advice = "extract the checkpoint again" if defect else "take the container of the whole model"
    return Diagnosis(Cause.MISSING_CONTRACT, where, "", detail, kind, advice, defect)


def _reconstruct(container: Container, active: Selection, broken: Sequence[Diagnosis]) -> Operation:
    from larql.format.source.recipes import plan_reconstruction

    examiner = Examiner(container, document_selection(container.index))
    baselines = container.index.by_operand()
    diagnoses = [*broken, *_unusable(examiner, baselines.values(), active)]
    try:
        if not broken:
            plan_reconstruction(container)
    except LarqlError as error:
        diagnoses.insert(0, _refused(error, container, active))
    regions = [(value.operand, value.fidelity) for value in baselines.values()]
    authority = None if diagnoses else fold(regions)
    return Operation(
        name="reconstruct_canonical",
        component=None,
        scope="document",
        authority=authority,
        achievable=None if authority is None else achievable([authority]),
        diagnoses=tuple(diagnoses),
    )


def _unusable(
    examiner: Examiner, baselines: Iterable[Representation], active: Selection
) -> Iterator[Diagnosis]:
    for value in baselines:
        state = examiner.stored(value)
        if not isinstance(state, Executable):
            found = diagnose(value.operand, state)
            declared = active.omitted(value.operand) or active.is_remote(value.operand)
            yield Diagnosis(
                found.cause,
                found.where,
                found.state,
                found.detail,
                found.kind,
                found.repair,
                found.defect and not declared,
            )


def _refused(error: LarqlError, container: Container, active: Selection) -> Diagnosis:
    """Return why no plan leads to the checkpoint; only an index that is wrong is a defect."""
    where = "checkpoint"
    detail = str(error).removeprefix(f"{container.path}: ")
    if isinstance(error, ResidencyRefusal):
        gone = (
            contract.name
            for component in container.graph.components
            for contract in operand_contracts(component)
            if contract.name not in container.index.by_operand()
        )
        declared = all(active.omitted(name) or active.is_remote(name) for name in gone)
        return Diagnosis(
            Cause.MISSING_INPUT, where, "", detail, error.kind, "", defect=not declared
        )
    if isinstance(error, BindingDefect | ContainerError):
        return Diagnosis(Cause.MISSING_CONTRACT, where, "", detail, RefusalKind.BINDING_DEFECT, "")
    return Diagnosis(Cause.NO_ROUTE, where, "", detail, RefusalKind.UNSUPPORTED, "", defect=False)
