"""Arms: the two runs that are compared, and what may be expected of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal, UsageError
from larql.format.container import Container
from larql.runtime.observe.sites import write_sites
from larql.runtime.parity.recorder import Recorder
from larql.runtime.parity.verdict import EXACT, FLOAT32, KV_F16, Q8, Tolerance
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session

__all__ = [
    "Arm",
    "Numerics",
    "Pair",
    "RefusedArmError",
    "Start",
    "expected_tolerance",
    "open_pair",
    "rounding_of",
]

Float32 = npt.NDArray[np.float32]
# Backend, activations, kv: what decides the bits beside the container.
Numerics = tuple[str, str, str]
Start = Callable[[Container, RunOptions], Run]


class RefusedArmError(Exception):
    """An arm was refused, which ends the comparison; never shown to a user by itself.

    Attributes
    ----------
    arm : str
    refusal : Refusal
    """

    def __init__(self, arm: str, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.arm = arm
        self.refusal = refusal


@dataclass(frozen=True, eq=False)
class Arm:
    """One of the two runs.

    Attributes
    ----------
    name : str
        ``baseline`` or ``examined``.
    run : Run
    """

    name: str
    run: Run

    @property
    def numerics(self) -> Numerics:
        """How it computes."""
        backend = self.run.prepared.backend
        return backend.name, backend.activations, backend.kv

    def recorder(self, locked: Float32 | None = None) -> Recorder:
        """Return an observer for a session of this arm."""
        prepared = self.run.prepared
        return Recorder(self.run.options.chunk or prepared.backend.default_chunk, locked)

    def session(self, context: int, observer: Recorder | None = None) -> Session:
        """Start a stream of tokens."""
        return self.run.session(context, observer)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Say whose refusal it is, if one comes."""
        with _asked(self.name):
            yield


@contextmanager
def _asked(name: str) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        raise RefusedArmError(name, refusal) from refusal


@dataclass(frozen=True, eq=False)
class Pair:
    """Both arms.

    Attributes
    ----------
    baseline : Arm
        Its values are what errors are relative to, and what blocks are locked to.
    examined : Arm
    """

    baseline: Arm
    examined: Arm

    @property
    def same_run(self) -> bool:
        """Whether both arms are one and the same, so that they agree unless chance decides."""
        a, b = self.baseline, self.examined
        return (
            a.run.container.fingerprint == b.run.container.fingerprint
            and a.numerics == b.numerics
            and a.run.options.chunk == b.run.options.chunk
            and a.run.options.experts == b.run.options.experts
            and a.run.prepared.selection.bound == b.run.prepared.selection.bound
        )


def expected_tolerance(a: Numerics, b: Numerics) -> Tolerance:
    """Return what may be asked of two arms unless a user says otherwise.

    Arms that compute in the same way must give the same bits, whatever containers their weights
    come from.
    """
    return EXACT if a == b else rounding_of(a, b)


def rounding_of(a: Numerics, b: Numerics) -> Tolerance:
    """Return the tolerance for the coarsest rounding that two arms do not share."""
    if a[1] != b[1]:
        return Q8
    return KV_F16 if a[2] != b[2] else FLOAT32


def open_pair(
    containers: tuple[Container, Container],
    options: tuple[RunOptions, RunOptions],
    start: Start = open_run,
) -> Pair:
    """Prepare both arms.

    Parameters
    ----------
    containers, options
        The baseline's, then those of the examined arm.
    start : callable
        Prepares one.

    Raises
    ------
    RefusedArmError
        If an operand of one is missing, contradictory or of an unsupported encoding.
    UsageError
        If they are not the same sequence of writes of one width, over one vocabulary.
    """
    arms = []
    for name, container, wanted in zip(("baseline", "examined"), containers, options, strict=True):
        with _asked(name):
            arms.append(Arm(name, start(container, wanted)))
    pair = Pair(*arms)
    plans = [arm.run.prepared.plan for arm in arms]
    for what, found in (
        ("sites", [len(write_sites(plan)) for plan in plans]),
        ("hidden size", [plan.component.hidden_size for plan in plans]),
        ("vocabulary", [plan.component.vocab_size for plan in plans]),
    ):
        if found[0] != found[1]:
            raise UsageError(
                f"{containers[1].path}: has {what} {found[1]}, the baseline "
                f"{containers[0].path} has {found[0]}; compare runs of one architecture"
            )
    if write_sites(plans[0]) != write_sites(plans[1]):
        raise UsageError(
            f"{containers[1].path}: writes at other sites than the baseline {containers[0].path}; "
            f"compare runs of one architecture"
        )
    return pair
