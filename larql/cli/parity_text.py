"""A comparison of two runs as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from larql.cli import render

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.parity.compare import Comparison, Wanted
    from larql.runtime.parity.ends import Ends
    from larql.runtime.parity.verdict import Checkpoint
    from larql.runtime.run import RunOptions

__all__ = ["print_comparison"]


def print_comparison(
    found: Comparison, wanted: Wanted, arms: Sequence[tuple[str, Container, RunOptions]]
) -> None:
    """Print a comparison.

    Parameters
    ----------
    found : Comparison
    wanted : Wanted
    arms : sequence of (str, Container, RunOptions)
        The baseline, then the examined arm.
    """
    from larql.runtime.parity.document import verdict_text

    facts: list[tuple[str, object]] = []
    for name, container, how in arms:
        chunk = "" if how.chunk is None else f", {how.chunk} positions at once"
        part = how.experts.shard
        shard = "" if part is None else f", experts {part[0]}:{part[1]}"
        profile = "" if how.profile is None else f", profile {how.profile}"
        text = f"{container.path}, {how.backend}, {how.activations}, kv {how.kv}"
        text += f"{chunk}{profile}{shard}"
        facts.append((name, text))
    tolerance = wanted.tolerance
    words = "equal bits" if tolerance.asserts_bits else f"{tolerance.relative:g} of the largest"
    facts.append(("tolerance", f"{tolerance.name}: {words}"))
    facts.append(("verdict", verdict_text(found)))
    if found.halt is not None:
        facts.append(("refused", f"{found.halt.arm}, {found.halt.phase}"))
    render.key_values(facts)
    if found.sweep is not None:
        _print_layers(found)
    for leg in found.oracle:
        worst = max(leg.checkpoints, key=lambda c: c.error or 0.0)
        render.line(
            f"layer {leg.layer} of the {leg.arm} against its oracle: {leg.verdict.value}, "
            f"{_error(worst)} at {worst.name}"
        )
    if found.ends is not None:
        _print_ends(found.ends)
    _print_decoding(found)


def _print_layers(found: Comparison) -> None:
    sweep, propagation = found.sweep, found.propagation
    assert sweep is not None
    boundaries = {} if propagation is None else {c.site: c for c in propagation.boundaries}

    def rows() -> Iterator[tuple[object, ...]]:
        for layer in sweep.layers:
            at = [c for site, c in boundaries.items() if site.partition(".")[0] == layer.layer]
            left = max(at, key=lambda c: (c.verdict.rank, c.error or 0.0)) if at else None
            worst = layer.worst
            yield (
                layer.layer,
                layer.verdict.value,
                _error(worst),
                worst.name,
                None if left is None else left.verdict.value,
                None if left is None else _error(left),
            )

    columns = ["layer", "on identical input", "error", "at", "propagated", "error "]
    render.line()
    render.table(columns, rows(), right=["error", "error "])
    render.line()
    if sweep.causal is not None:
        render.line(f"earliest causal operation: {_where(sweep.causal)}")
    if propagation is not None and propagation.first is not None:
        render.line(f"first differing boundary: {_where(propagation.first)}")


def _where(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.name}, error {_error(checkpoint)}, position {checkpoint.position}"


def _error(checkpoint: Checkpoint) -> str:
    return "none" if checkpoint.error is None else f"{checkpoint.error:.2g}"


def _print_ends(ends: Ends) -> None:
    for checkpoint in (ends.before, ends.after, ends.logits):
        render.line(f"{checkpoint.name}: {checkpoint.verdict.value}, error {_error(checkpoint)}")
    sides = (("baseline", ends.baseline), ("examined", ends.examined))
    for name, side in sides:
        margin = "none" if side.margin is None else f"{side.margin:.6g}"
        top = ", ".join(f"{token} ({logit:.6g})" for token, logit in side.top)
        render.line(f"{name}: argmax {side.argmax}, margin {margin}; top {top}")


def _print_decoding(found: Comparison) -> None:
    forced, free = found.teacher_forced, found.free_run
    if forced is not None:
        render.line()
        render.table(
            ["position", "token", "teacher-forced", "error", "argmax", "first difference"],
            [
                (
                    step.position,
                    step.token,
                    step.verdict.value,
                    _error(step.logits),
                    f"{step.argmax[0]} / {step.argmax[1]}",
                    None if step.first is None else step.first.name,
                )
                for step in forced.steps
            ],
            right=["position", "token", "error"],
        )
    if free is not None:
        where = "" if free.differs_at is None else f", from token {free.differs_at} on"
        render.line(f"free-running: {free.verdict.value}{where}")
        render.line(f"    baseline {', '.join(map(str, free.baseline))}")
        render.line(f"    examined {', '.join(map(str, free.examined))}")
    elif forced is not None and forced.verdict.value == "tie_equivalent":
        render.line("free-running: not begun, because a tie has led the arms apart")
    elif forced is not None:
        render.line("free-running: not begun, because teacher-forcing has not passed")
