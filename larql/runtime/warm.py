"""Compiling, before the first token, the kernels that a run needs."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from pathlib import Path

from larql.runtime.routes import LeftOut
from larql.runtime.run import Run
from larql.runtime.session import Session

__all__ = ["is_warm", "warm"]

# More than one block of keys, so that attention over several is compiled as well.
_POSITIONS = 70


def is_warm(run: Run) -> bool:
    """Return whether the kernels that a run needs are compiled and kept.

    A run on the reference backend needs none. Where compiled kernels cannot be kept there is
    nothing to do beforehand either.
    """
    marker = _marker(run)
    return marker is None or marker.exists()


def warm(run: Run) -> float:
    """Compile, or load, every kernel that a run needs, by running a few tokens.

    Returns
    -------
    float
        Seconds that it took.
    """
    began = time.perf_counter()
    left_out: list[LeftOut] = []
    if run.prepared.plan.embeds:
        # Experts that are not here must not keep the others' kernels from being compiled.
        session = Session(run.prepared, _POSITIONS + 2, left_out=left_out)
        carrier = session.advance([0] * _POSITIONS)
        session.logits(carrier[-3:])
        session.step([0])
        session.step([0])
    marker = _marker(run)
    if marker is not None and not left_out:
        with contextlib.suppress(OSError):
            marker.touch()
    return time.perf_counter() - began


def _kept_in() -> Path | None:
    from larql.kernels import setup

    return setup.current().cache_directory


def _marker(run: Run) -> Path | None:
    """Return the file that says that kernels for runs of this kind are kept."""
    if run.prepared.backend.name != "production":
        return None
    directory = _kept_in()
    if directory is None:
        return None
    plan, bound = run.prepared.plan, run.prepared.selection.bound
    kinds = {run.prepared.backend.activations, f"kv {run.prepared.backend.kv}"}
    kinds |= {f"encoding {bound[c.name].encoding.name}" for c in plan.contracts()}
    kinds |= {_kind(block) for layer in plan.layers for block in layer.blocks}
    name = hashlib.sha256(json.dumps(sorted(kinds)).encode()).hexdigest()[:16]
    return directory / f"warm-{name}"


def _kind(value: object) -> str:
    """Return which parts an operation has and of which kinds, without its numbers and names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f.name, _kind(getattr(value, f.name))) for f in dataclasses.fields(value)]
        inner = ", ".join(f"{name} {part}" for name, part in parts if part)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, bool) or value is None:
        return str(value)
    # Operands are named <object>/<tensor>; what else is text is a kind.
    return value if isinstance(value, str) and "/" not in value else ""
