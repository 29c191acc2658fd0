"""Prepared operands: a plan's operands, bound to a backend."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from larql.errors import BindingDefect, UnsupportedRefusal
from larql.format.codec import decode
from larql.format.container import Container
from larql.format.graph import RoutedFfn
from larql.format.moe.profiles import Selection
from larql.format.moe.verify import check_manifest
from larql.runtime.backends.base import Backend
from larql.runtime.expert_access import EVERYTHING, ExpertAccess, Stores, bind_routes
from larql.runtime.operands import OperandStore, StoredBank, StoredOperand
from larql.runtime.plan import Plan, make_plan
from larql.runtime.slices import ExecutionSlice, Head

__all__ = ["PreparedOperands", "prepare", "prepare_beside"]

_WEIGH_EXPERTS = frozenset(
    f"ffn.router.{part}" for part in ("correction", "expert_scale", "global_scale")
)


@dataclass(frozen=True)
class PreparedOperands:
    """What a session runs on; any number of sessions may share it.

    Attributes
    ----------
    container : Container
    selection : Selection
        Which representation serves each operand, of the container or of a shard beside it.
    plan : Plan
    backend : Backend
        Holds the operands that the plan needs, and no others.
    reads, bytes_read : int
        Operands fetched and their stored bytes.
    seconds : float
        How long preparing took.
    experts : ExpertAccess
        How its experts are reached.
    """

    container: Container
    selection: Selection
    plan: Plan
    backend: Backend
    reads: int
    bytes_read: int
    seconds: float
    experts: ExpertAccess = EVERYTHING


def prepare(
    container: Container,
    component: str,
    wanted: ExecutionSlice,
    backend: Backend,
    *,
    selection: Selection | None = None,
    prefault: bool = False,
    experts: ExpertAccess = EVERYTHING,
) -> PreparedOperands:
    """Bind the operands of a slice to a backend.

    Parameters
    ----------
    container : Container
    component : str
        Id of the component to run.
    wanted : ExecutionSlice
        Which part of it.
    backend : Backend
        A fresh backend.
    selection : Selection or None
        Which representation serves each operand; None: as the container says by itself.
    prefault : bool
        Bring into memory what each step reads, instead of leaving that to the first step.
    experts : ExpertAccess
        How experts are reached; by default all are the container's own.

    Raises
    ------
    UsageError
        If the component or slice does not exist, or a range of experts leaves their bank.
    ResidencyRefusal
        If the selection leaves an operand out.
    BindingDefect
        If an operand is missing, unreadable or contradicts the index.
    UnsupportedRefusal
        If the backend has no code for an operand's encoding.
    """
    plan = make_plan(container, component, wanted)
    chosen = container.select(None) if selection is None else selection
    return _bound(plan, container, chosen, backend, (), prefault, experts)


def prepare_beside(target: PreparedOperands, component: str) -> PreparedOperands:
    """Bind what drafts for a prepared component to the same backend.

    Embedding and head are the target's, and so is whatever else it has prepared: only the rest is
    fetched.

    Raises
    ------
    UnsupportedRefusal
        If the component drafts for none, or reads another tap than the final norm.
    BindingDefect
        If an operand is missing, unreadable or contradicts the index.
    """
    container, producer = target.container, target.plan.component.id
    plan = make_plan(container, component, Head())
    for edge in container.graph.edges:
        if edge.consumer == component and (edge.producer, edge.tap) != (producer, "final_norm"):
            raise UnsupportedRefusal(
                f"{container.path}: component {component!r} reads {edge.tap!r} of "
                f"{edge.producer!r}; this build gives it the final norm of {producer!r}"
            )
    held = {contract.name for contract in target.plan.contracts()}
    # Which experts of which layer a run was narrowed to is said of the target's layers.
    access = replace(target.experts, kept=None) if _routes(plan) else EVERYTHING
    return _bound(plan, container, target.selection, target.backend, held, False, access)


def _routes(plan: Plan) -> bool:
    return any(isinstance(b.mixer, RoutedFfn) for layer in plan.layers for b in layer.blocks)


def _check_finite(operand: StoredOperand, where: str) -> None:
    """Refuse a vector in which stands no number: one expert's would poison whoever chooses it."""
    values = decode(operand.encoding, operand.data, operand.shape[0])
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        number = int(wrong[0])
        raise BindingDefect(
            f"{where}: operand {operand.name}: number {number} is {values[number]}, expected a "
            f"finite one; the checkpoint is damaged, extract a sound one"
        )


def _bound(
    plan: Plan,
    container: Container,
    selection: Selection,
    backend: Backend,
    held: Collection[str],
    prefault: bool,
    experts: ExpertAccess,
) -> PreparedOperands:
    """Fetch the operands of a plan that a backend does not hold yet, and bind them."""
    began = time.perf_counter()
    stores = Stores(OperandStore(container, selection), experts)
    banks: dict[str, StoredBank] = {}
    if _routes(plan):
        check_manifest(container)
    for contract in plan.contracts():
        if contract.name in held:
            continue
        found = stores.fetch(contract.name, contract.shape)
        if isinstance(found, StoredBank):
            banks[contract.name] = found
            continue
        if contract.use in _WEIGH_EXPERTS:
            _check_finite(found, str(container.path))
        backend.bind(found)
    bind_routes(plan, banks, backend, experts, stores)
    if prefault:
        for contract in plan.swept():
            stores.prefault(contract.name)
    seconds = time.perf_counter() - began
    return PreparedOperands(
        container, stores.selection(), plan, backend, stores.reads, stores.bytes_read, seconds,
        experts,
    )  # fmt: skip
