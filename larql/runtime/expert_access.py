"""Where the experts of a run come from, and the routes that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from larql.errors import BindingDefect, ContainerError, UsageError
from larql.format.container import Container
from larql.format.graph import ExpertBank, RoutedFfn
from larql.format.index import Representation
from larql.format.moe.profiles import Selection
from larql.format.names import component_beside
from larql.runtime.backends.base import Backend
from larql.runtime.operands import OperandStore, StoredBank, StoredOperand
from larql.runtime.plan import Plan
from larql.runtime.routes import BoundExperts, ExpertRoute, InProcess, Part, ShardedExperts

__all__ = ["EVERYTHING", "ExpertAccess", "Stores", "bind_routes"]


@dataclass(frozen=True)
class ExpertAccess:
    """How a run reaches its experts; by default it has all that are in its own container.

    Attributes
    ----------
    shard : (int, int) or None
        Half-open range of the experts of each bank that are bound from the run's own container.
    shards : tuple of Container
        Containers beside it that hold more of the experts.
    in_process : bool
        Ask the experts of this process across the boundary that a route to elsewhere has.
    kept : mapping or None
        By layer, the experts that are bound of it; layers that it does not name are not narrowed.
    """

    shard: tuple[int, int] | None = None
    shards: tuple[Container, ...] = ()
    in_process: bool = False
    kept: Mapping[int, frozenset[int]] | None = None

    def provenance(self) -> dict[str, object]:
        """Return what a sidecar says of it; nothing where it is the default."""
        if self == ExpertAccess():
            return {}
        return {
            "experts": {
                "shard": None if self.shard is None else list(self.shard),
                "shards": [shard.fingerprint for shard in self.shards],
                "in_process": self.in_process,
                "kept": None
                if self.kept is None
                else {str(layer): sorted(experts) for layer, experts in self.kept.items()},
            }
        }


class Stores:
    """The operands of a run's own container, and of the shards beside it.

    Parameters
    ----------
    own : OperandStore
    access : ExpertAccess
    """

    def __init__(self, own: OperandStore, access: ExpertAccess) -> None:
        self.own = own
        self.others = [OperandStore(shard, shard.select(None)) for shard in access.shards]
        self._from: dict[str, OperandStore] = {}

    @property
    def reads(self) -> int:
        """Operands fetched so far."""
        return sum(store.reads for store in (self.own, *self.others))

    @property
    def bytes_read(self) -> int:
        """Their stored bytes."""
        return sum(store.bytes_read for store in (self.own, *self.others))

    def fetch(self, name: str, shape: tuple[int, ...]) -> StoredOperand | StoredBank:
        """Map an operand: of the own container, or of a shard where that declares it elsewhere.

        A bank of a shard is returned with no expert resident: the route to the shard has them.

        Raises
        ------
        Refusal
            As :meth:`~larql.runtime.operands.OperandStore.fetch`; also if the shard is not one of
            this model.
        """
        store = self._holder(name)
        counted = store.reads, store.bytes_read
        found = store.fetch(name, shape)
        if isinstance(found, StoredBank) and store is not self.own:
            store.reads, store.bytes_read = counted  # they are counted where they are bound
            return found.only(())
        return found

    def selection(self) -> Selection:
        """Return the own container's selection, and what shards serve in its place."""
        lent = {
            name: s.selection.bound[name] for name, s in self._from.items() if s is not self.own
        }
        own = self.own.selection
        return replace(own, bound={**own.bound, **lent}) if lent else own

    def prefault(self, name: str) -> None:
        """Bring an operand that has been fetched into memory."""
        self._holder(name).prefault(name)

    def states(self, name: str) -> Representation:
        """Return what is said of an operand by the container that states it first."""
        return self._holder(name).selection.bound[name]

    def _holder(self, name: str) -> OperandStore:
        if name not in self._from:
            self._from[name] = self._find(name)
        return self._from[name]

    def _find(self, name: str) -> OperandStore:
        selection = self.own.selection
        if name in selection.bound or not selection.is_remote(name):
            return self.own
        for other in self.others:
            if name in other.selection.bound:
                _check_pieces(self.own.container, other.container)
                return other
        return self.own


def _check_pieces(one: Container, other: Container) -> None:
    """Refuse two containers that were not cut from the same one."""
    ours, theirs = (c.index.derived_from_model or c.fingerprint for c in (one, other))
    if ours != theirs:
        raise BindingDefect(
            f"{other.path}: is of model {theirs}, {one.path} of {ours}; it is not a shard of this "
            f"model"
        )


EVERYTHING = ExpertAccess()
"""All experts, from the run's own container."""


def bind_routes(
    plan: Plan,
    banks: Mapping[str, StoredBank],
    backend: Backend,
    access: ExpertAccess,
    stores: Stores,
) -> None:
    """Bind the banks of a plan, and have the backend reach them as was asked for.

    Parameters
    ----------
    plan : Plan
    banks : mapping
        Operands that have an entry for each expert, by name.
    backend : Backend
    access : ExpertAccess
    stores : Stores
        Of the run's container and the shards.

    Raises
    ------
    UsageError
        If a range of experts leaves a bank, or experts are spoken of where there are none.
    BindingDefect
        If a shard's banks are not those of the plan, or two shards hold an expert.
    UnsupportedRefusal
        If the backend has no code for an operand's encoding.
    """
    routed = [
        (layer.index, block.mixer)
        for layer in plan.layers
        for block in layer.blocks
        if isinstance(block.mixer, RoutedFfn)
    ]
    if not routed and access != EVERYTHING:
        raise UsageError(
            f"{stores.own.container.path}: the layers that run have no routed experts; leave "
            f"--shard, --experts and --route out"
        )
    for layer, mixer in routed:
        bank = mixer.bank
        own = {name: banks[name] for name in _operands(bank)}
        if access.shard is not None:
            first, end = access.shard
            if end > bank.experts:
                raise UsageError(
                    f"--shard {first}:{end}: layer {layer} has experts 0 to {bank.experts - 1}"
                )
            own = {name: operand.only(range(first, end)) for name, operand in own.items()}
        if access.kept is not None and layer in access.kept:
            kept = access.kept[layer]
            own = {name: operand.only(kept) for name, operand in own.items()}
        experts = backend.bind_experts(bank, own)
        route: ExpertRoute = experts
        if stores.others:
            route = _sharded(layer, bank, own, experts, stores, backend)
        backend.take_route(bank, InProcess(route) if access.in_process else route)


def _operands(bank: ExpertBank) -> list[str]:
    names = (
        bank.gate, bank.up, bank.gate_up, bank.gate_up_bias, bank.down, bank.down_bias
    )  # fmt: skip
    return [name for name in names if name is not None]


def _sharded(
    layer: int,
    bank: ExpertBank,
    own: Mapping[str, StoredBank],
    experts: BoundExperts,
    stores: Stores,
    backend: Backend,
) -> ExpertRoute:
    parts = [Part(str(stores.own.container.path), experts, experts.resident)]
    for other in stores.others:
        found = _of_shard(layer, own, stores, other)
        if found is not None:
            bound = backend.bind_experts(bank, found)
            parts.append(Part(str(other.container.path), bound, bound.resident))
    return ShardedExperts(parts, f"layer {layer}")


def _of_shard(
    layer: int, own: Mapping[str, StoredBank], stores: Stores, store: OperandStore
) -> dict[str, StoredBank] | None:
    """Map what a shard holds of one bank; None where it has no file of the layer."""
    shard = store.container
    whose = component_beside(next(iter(own)))
    others = {
        name
        for value in shard.index.representations.values()
        if shard.index.holds_banks(value.segment) and component_beside(value.operand) != whose
        for name in shard.bank_names(value.segment)
    }
    files = [
        file
        for name in shard.index.segments
        if shard.index.holds_banks(name) and name not in others
        for file in (shard.bank_file(name),)
        if file.tables.logical_layer == layer
    ]
    if not files:
        return None
    from larql.format.banks import entry_regions

    found = {}
    try:
        for file in files:
            shard.check_bytes(str(file.path.relative_to(shard.path)))
        for name, operand in own.items():
            value = stores.states(name)
            _check_same(shard, name, value)
            regions = entry_regions(files, value)
            found[name] = store.stored_bank(name, operand.encoding, operand.shape, regions)
    except ContainerError as error:
        raise BindingDefect(str(error)) from error
    return found


def _check_same(shard: Container, name: str, value: Representation) -> None:
    """Refuse a shard of other weights: it states the bytes that its regions were made of."""
    other = shard.operands.get(name)
    if other is None or (other.source, other.encoding) != (value.source, value.encoding):
        found = "nothing" if other is None else f"{other.encoding.name} of {other.source.sha256}"
        raise BindingDefect(
            f"{shard.path}: states {found} for operand {name}, expected {value.encoding.name} of "
            f"{value.source.sha256}; it is not a shard of this model"
        )
