"""Prepared operands: a plan's operands, bound to a backend."""

from __future__ import annotations

import time
from dataclasses import dataclass

from larql.format.container import Container
from larql.format.moe.profiles import Selection
from larql.runtime.backends.base import Backend
from larql.runtime.expert_access import EVERYTHING, ExpertAccess, bind_routes
from larql.runtime.operands import OperandStore, StoredBank
from larql.runtime.plan import Plan, make_plan
from larql.runtime.slices import ExecutionSlice

__all__ = ["PreparedOperands", "prepare"]


@dataclass(frozen=True)
class PreparedOperands:
    """What a session runs on; any number of sessions may share it.

    Attributes
    ----------
    container : Container
    selection : Selection
        Which representation serves each operand.
    plan : Plan
    backend : Backend
        Holds the operands that the plan needs, and no others.
    reads, bytes_read : int
        Operands fetched and their stored bytes.
    seconds : float
        How long preparing took.
    """

    container: Container
    selection: Selection
    plan: Plan
    backend: Backend
    reads: int
    bytes_read: int
    seconds: float


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
    began = time.perf_counter()
    plan = make_plan(container, component, wanted)
    if selection is None:
        selection = container.select(None)
    store = OperandStore(container, selection)
    banks: dict[str, StoredBank] = {}
    for contract in plan.contracts():
        found = store.fetch(contract.name, contract.shape)
        if isinstance(found, StoredBank):
            banks[contract.name] = found
        else:
            backend.bind(found)
    bind_routes(plan, banks, backend, experts, store)
    if prefault:
        for contract in plan.swept():
            store.prefault(contract.name)
    seconds = time.perf_counter() - began
    return PreparedOperands(
        container, selection, plan, backend, store.reads, store.bytes_read, seconds
    )
