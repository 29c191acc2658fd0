"""Routed experts by kernels: the router, the sum of what experts give, what comes beside it.

What experts give is added position by position in the order of the selection.
"""

from __future__ import annotations

import numpy as np

from larql.errors import BindingDefect
from larql.format.graph import RoutedFfn, Router
from larql.kernels.activation import activate
from larql.kernels.elementwise import add_scaled, scale
from larql.kernels.routing import Choice, Selection, add_chosen, choose, scale_rows
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.dense_ffn import dense_ffn
from larql.runtime.routes import LeftOutNotes, Reached, reach
from larql.runtime.taps import BlockTaps, Routing

__all__ = ["choose_experts", "routed_ffn"]


def routed_ffn(
    mixer: RoutedFfn,
    x: Float32,
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
    notes: LeftOutNotes | None,
) -> Float32:
    """Return the operation's output for each position.

    Raises
    ------
    BindingDefect
        If a router's scores are not finite.
    Refusal
        If a chosen expert cannot be reached, and ``notes`` is None.
    """
    trace = None if taps is None else taps.experts
    read = arithmetic.norm(mixer.router.norm, x)
    choice = choose_experts(mixer.router, read, arithmetic)
    if taps is not None:
        taps.routing = Routing(choice.ranks.copy(), choice.chosen, choice.weights)
    inputs = arithmetic.norm(mixer.norm, x)
    if mixer.latent is not None:
        inputs = arithmetic.linear(mixer.latent.into, inputs)
    if trace is not None:
        trace.router_input, trace.expert_input = read.copy(), inputs.copy()
        trace.scores, trace.ranks = choice.scores.copy(), choice.ranks.copy()
        trace.shared = None
        trace.chosen, trace.weights = choice.chosen, choice.weights
    route = arithmetic.routes[mixer.bank.down]
    defect = _defect(mixer.router)
    broken = [(int(t), defect) for t in np.flatnonzero(choice.broken)]
    reached = reach(route, inputs, choice.chosen, broken, start, notes)
    if trace is not None:
        trace.gave(reached, len(x))
    out = _routed_part(mixer, reached, choice.weights, arithmetic)
    if trace is not None:
        trace.routed = out.copy()
    if mixer.shared is not None:
        inputs = arithmetic.norm(mixer.shared.norm, x)
        shared = dense_ffn(mixer.shared.ffn, inputs, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            factors = arithmetic.linear(mixer.shared.gate, x)
            activate(factors, "sigmoid", factors)
            scale_rows(shared, factors.reshape(-1))
        shared = arithmetic.norm(mixer.shared.post_norm, shared)
        if trace is not None:
            trace.shared = shared.copy()
        add_scaled(out, shared, 1.0)
    for ffn, weights in zip(mixer.weighted or (), choice.shared, strict=True):
        beside = dense_ffn(ffn, x, (), 0, None, arithmetic)
        scale_rows(beside, weights)
        if trace is not None:
            trace.add_shared(beside)
        add_scaled(out, beside, 1.0)
    if trace is not None:
        trace.output = out.copy()
    return out


def _routed_part(
    mixer: RoutedFfn, reached: Reached, weights: Float32, arithmetic: Arithmetic
) -> Float32:
    """Return the weighted sums, normalised, of positions that have their experts; else zeros."""
    count = len(weights)
    whole = len(reached.kept) == count
    if not len(reached.kept):
        width = mixer.bank.hidden if mixer.latent is None else mixer.latent.back.outputs
        none = arithmetic.memory.take((count, width))
        none[:] = 0
        return none
    weights = weights if whole else weights[reached.kept]
    out = arithmetic.memory.take((len(weights), reached.rows.shape[1]))
    add_chosen(reached.rows, reached.places, weights, out)
    if mixer.latent is not None:
        out = arithmetic.linear(mixer.latent.back, out)
    out = arithmetic.norm(mixer.post_norm, out)
    if whole:
        return out
    spread = arithmetic.memory.take((count, out.shape[1]))
    spread[:] = 0
    spread[reached.kept] = out
    return spread


def choose_experts(router: Router, read: Float32, arithmetic: Arithmetic) -> Choice:
    """Choose experts for rows ``[T, hidden]`` as they are after the router's norm."""

    def vector(name: str | None) -> Float32 | None:
        return None if name is None else arithmetic.vectors[name]

    groups = router.groups
    overall = vector(router.global_scale)
    selection = Selection(
        router.top,
        router.score,
        router.ranks_by_logits,
        router.renormalise,
        router.renormalise_eps,
        router.scale if overall is None else router.scale * float(overall[0]),
        *((0, 0, "max") if groups is None else (groups.count, groups.kept, groups.score)),
        router.sinks or 0,
    )
    logits = arithmetic.linear(router.scores, read)
    if router.factor != 1.0:
        scale(logits, router.factor)
    return choose(
        logits,
        selection,
        vector(router.correction),
        vector(router.expert_scale),
        arithmetic.memory.take,
    )


def _defect(router: Router) -> BindingDefect:
    return BindingDefect(
        f"{router.scores.weight}: the router's scores are not finite, so no expert can be "
        f"chosen; the weights before it are damaged, or overflow"
    )
