"""One run of a container: open, plan, prepare, and the provenance of whatever it produces."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from larql.format.container import Container
from larql.provenance import environment, format_cap, tokens_sha256
from larql.runtime.backends.base import Carrier
from larql.runtime.backends.registry import make_backend
from larql.runtime.expert_access import EVERYTHING, ExpertAccess
from larql.runtime.observer import SessionObserver
from larql.runtime.prepared import PreparedOperands, prepare
from larql.runtime.resident import resident, trim
from larql.runtime.routes import LeftOut, told
from larql.runtime.session import Session
from larql.runtime.slices import ExecutionSlice, slice_of

__all__ = ["Run", "RunOptions", "open_run"]


@dataclass(frozen=True)
class RunOptions:
    """How a container is executed.

    Component, slice, backend, activations, kv and profile decide the answer; the others change no
    bit. (A session's context does where a model has two lists of rotary frequencies.)

    Attributes
    ----------
    component : str
    backend : str
        ``production`` or ``reference``.
    draft_depth : int or None
        Number of leading layers to execute, None for all.
    threads : int or None
        None: one for each usable core.
    chunk : int or None
        Most positions advanced at once.
    activations : str
        ``f32`` or ``q8``.
    kv : str
        ``f32`` or ``f16``: how keys and values are kept.
    prefault : bool
        Bring the operands into memory before the first step.
    profile : str or None
        Profile of the container, which selects among what it holds; None: ``default``, or the
        container as it stands where it has none of that name.
    experts : ExpertAccess
        How routed experts are reached.
    best_effort : bool
        Go on without the routed part of positions whose experts are refused.
    """

    component: str = "target"
    backend: str = "production"
    draft_depth: int | None = None
    threads: int | None = None
    chunk: int | None = None
    activations: str = "f32"
    kv: str = "f32"
    prefault: bool = False
    profile: str | None = None
    experts: ExpertAccess = EVERYTHING
    best_effort: bool = False

    @property
    def slice(self) -> ExecutionSlice:
        """The execution slice that the depth names."""
        return slice_of(self.draft_depth)


@dataclass
class Run:
    """A prepared container, and the time spent in its steps.

    Attributes
    ----------
    container : Container
    options : RunOptions
    prepared : PreparedOperands
    step_seconds : float
        Time spent advancing and reading logits so far.
    left_out : list of LeftOut or None
        What its sessions went on without; None: they refuse.
    """

    container: Container
    options: RunOptions
    prepared: PreparedOperands
    step_seconds: float = field(default=0.0)
    left_out: list[LeftOut] | None = None

    def session(self, context: int, observer: SessionObserver | None = None) -> Session:
        """Start a stream of tokens with room for ``context`` positions."""
        return Session(
            self.prepared,
            context,
            self.options.chunk,
            observer,
            self.left_out,
        )

    def timed_step(self, session: Session, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Advance a session and return the last position's logits, counting the time."""
        return self.timed_advance(session, tokens)[1]

    def timed_advance(
        self, session: Session, tokens: Sequence[int]
    ) -> tuple[Carrier, npt.NDArray[np.float32]]:
        """Advance a session and return carrier and last logits, counting the time.

        Returns
        -------
        float32 ``[len(tokens), hidden]``
            The carrier after the last layer.
        float32 ``[vocab]``
            The logits of the last position.
        """
        began = time.perf_counter()
        carrier = session.advance(tokens)
        row: npt.NDArray[np.float32] = session.logits(carrier[-1:])[0]
        self.step_seconds += time.perf_counter() - began
        return carrier, row

    def timed_rows(
        self, session: Session, tokens: Sequence[int]
    ) -> tuple[Carrier, npt.NDArray[np.float32], float]:
        """Advance a session, counting the time.

        Returns
        -------
        float32 ``[len(tokens), hidden]``
            The carrier after the last layer.
        float32 ``[len(tokens), vocab]``
            The logits of every position.
        float
            Seconds that it took.
        """
        began = time.perf_counter()
        carrier = session.advance(tokens)
        rows = session.logits(carrier)
        seconds = time.perf_counter() - began
        self.step_seconds += seconds
        return carrier, rows, seconds

    def provenance(self, tokens: Sequence[int], context: int) -> dict[str, object]:
        """Return what a sidecar says of numbers made from ``tokens``."""
        plan, backend = self.prepared.plan, self.prepared.backend
        rope_list = plan.rope_list(context)
        trim()  # some rows of logits that were freed would decide what is told of memory
        return {
            "container": {
                "fingerprint": self.container.fingerprint,
                "profile": self.prepared.selection.profile,
                "model": self.container.index.model,
                "source": dict(self.container.index.source),
            },
            "component": plan.component.id,
            "backend": backend.name,
            "numerics": backend.numerics,
            "activations": backend.activations,
            "kv": backend.kv,
            "draft_depth": self.options.draft_depth,
            "executed_layers": list(plan.executed_layers),
            "tokens": list(tokens),
            "tokens_sha256": tokens_sha256(tokens),
            "positions": len(tokens),
            "vocab": plan.component.vocab_size,
            "context": context,
            **({} if rope_list is None else {"rope_list": rope_list}),
            "operand_reads": self.prepared.reads,
            "operand_bytes": self.prepared.bytes_read,
            "prepare_seconds": self.prepared.seconds,
            "step_seconds": self.step_seconds,
            **resident(),
            **self.options.experts.provenance(),
            **({} if self.left_out is None else {"best_effort": told(self.left_out)}),
            "threads": backend.threads,
            "max_format": format_cap(),
            "environment": {**environment(), **backend.environment()},
        }


def open_run(container: Container, options: RunOptions) -> Run:
    """Prepare a container for execution.

    Raises
    ------
    UsageError
        If the component, depth, backend or profile does not exist.
    Refusal
        If an operand is missing, contradictory or of an unsupported encoding.
    """
    selection = container.select(options.profile)  # refused before the kernels are loaded
    backend = make_backend(options.backend, options.threads, options.activations, options.kv)
    prepared = prepare(
        container,
        options.component,
        options.slice,
        backend,
        selection=selection,
        prefault=options.prefault,
        experts=options.experts,
    )
    return Run(container, options, prepared, left_out=[] if options.best_effort else None)
