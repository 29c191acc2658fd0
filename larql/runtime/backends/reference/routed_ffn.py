"""Routed experts in float64: the router, the sum of what experts give, what comes beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal
from larql.format.graph import RoutedFfn, Router
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS, dense_ffn
from larql.runtime.backends.unsound import (
    routed_defect,
    router_defect,
    shared_defect,
    sound_rows,
)
from larql.runtime.routes import LeftOutNotes, Reached, Why, reach
from larql.runtime.taps import BlockTaps, Routing

__all__ = ["Chosen", "choose", "routed_ffn"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was chosen for one position.

    Attributes
    ----------
    scores, ranks : float64 ``[experts]``
        Softmax or sigmoid of all logits, and what experts are chosen by.
    experts : int64 ``[top]``
        In the order of their selection.
    weights : float64 ``[top]``
    shared : float64 ``[sinks]``
        Weights of the sinks.
    """

    scores: Float64
    ranks: Float64
    experts: npt.NDArray[np.int64]
    weights: Float64
    shared: Float64


def routed_ffn(
    mixer: RoutedFfn,
    inputs: list[Float64],
    start: int,
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
    notes: LeftOutNotes | None,
) -> list[Float64]:
    """Return the operation's output for each position.

    Raises
    ------
    BindingDefect
        If shared experts give what is not finite.
    Refusal
        If a router's scores or the routed part are not finite, or a chosen expert cannot be
        reached, and ``notes`` is None.
    """
    trace = None if taps is None else taps.experts
    router = mixer.router
    read = [arithmetic.norm(router.norm, x) for x in inputs]
    logits = [row * router.factor for row in arithmetic.linear(router.scores, read)]
    rows = [arithmetic.norm(mixer.norm, x) for x in inputs]
    if mixer.latent is not None:
        rows = arithmetic.linear(mixer.latent.into, rows)
    correction = None if router.correction is None else arithmetic.vector(router.correction)
    factors = None if router.expert_scale is None else arithmetic.vector(router.expert_scale)
    overall = 1.0 if router.global_scale is None else arithmetic.vector(router.global_scale)[0]
    choices, broken = [], []
    for t, row in enumerate(logits):
        choice = choose(router, row, correction, factors, overall)
        if choice is None:
            broken.append((t, router_defect(router, read[t], arithmetic.operands)))
        choices.append(choice or _none(router))
    chosen = np.stack([choice.experts for choice in choices])
    weights = np.stack([choice.weights for choice in choices])
    if taps is not None:
        ranks = np.stack([choice.ranks for choice in choices])
        taps.routing = Routing(ranks.astype(np.float32), chosen, weights.astype(np.float32))
    if trace is not None:
        trace.router_input, trace.expert_input = np.stack(read), np.stack(rows)
        trace.scores, trace.ranks = np.stack([choice.scores for choice in choices]), ranks
        trace.shared = None
        trace.chosen, trace.weights = chosen, weights
    route = arithmetic.routes[mixer.bank.down]
    outputs = [np.zeros_like(x) for x in inputs]

    def add(reached: Reached) -> tuple[npt.NDArray[np.bool_], Why]:
        summed = []
        outputs[:] = [np.zeros_like(x) for x in inputs]
        for t, places in zip(reached.kept, reached.places, strict=True):
            output = np.zeros(mixer.bank.hidden)
            for place, weight in zip(places, weights[t], strict=True):
                output = output + weight * reached.rows[place]
            summed.append(output)
            if mixer.latent is not None:
                (output,) = arithmetic.linear(mixer.latent.back, [output])
            outputs[t] = arithmetic.norm(mixer.post_norm, output)

        def why(place: int) -> Refusal:
            given = weights[reached.kept[place]]
            return routed_defect(mixer, summed[place], given, arithmetic.operands)

        return ~sound_rows(np.stack(outputs))[reached.kept], why

    reached = reach(route, np.stack(rows), chosen, broken, add, start, notes)
    if trace is not None:
        trace.gave(reached, len(inputs), np.copy)
    if trace is not None:
        trace.routed = np.stack(outputs)
    if mixer.shared is not None:
        beside = [arithmetic.norm(mixer.shared.norm, x) for x in inputs]
        shared = dense_ffn(mixer.shared.ffn, beside, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            gates = arithmetic.linear(mixer.shared.gate, inputs)
            pairs = zip(gates, shared, strict=True)
            shared = [ACTIVATIONS["sigmoid"](gate) * output for gate, output in pairs]
        shared = [arithmetic.norm(mixer.shared.post_norm, row) for row in shared]
        if trace is not None:
            trace.shared = np.stack(shared)
        outputs = [output + more for output, more in zip(outputs, shared, strict=True)]
    for number, ffn in enumerate(mixer.weighted or ()):
        found = dense_ffn(ffn, inputs, (), 0, None, arithmetic)
        beside = [c.shared[number] * more for c, more in zip(choices, found, strict=True)]
        if trace is not None:
            more = np.stack(beside)
            trace.shared = more if trace.shared is None else trace.shared + more
        outputs = [output + more for output, more in zip(outputs, beside, strict=True)]
    if not sound_rows(np.stack(outputs)).all():
        raise shared_defect(mixer, arithmetic.operands)
    if trace is not None:
        trace.output = np.stack(outputs)
    return outputs


def _none(router: Router) -> Chosen:
    """Return a choice of nothing, for a position that is left out."""
    none, sinks = np.zeros(router.experts), np.zeros(router.sinks or 0)
    return Chosen(none, none, np.zeros(router.top, np.int64), np.zeros(router.top), sinks)


def choose(
    router: Router,
    logits: Float64,
    correction: Float64 | None,
    factors: Float64 | None,
    overall: float = 1.0,
) -> Chosen | None:
    """Choose experts for one position.

    Parameters
    ----------
    router : Router
    logits : float64 ``[experts + sinks]``
    correction, factors : float64 ``[experts]`` or None
        Added for choosing; multiplied with the weights.
    overall : float
        Factor of all weights.

    Returns
    -------
    Chosen or None
        None if a rank is not finite.
    """
    every, logits = logits, logits[: router.experts]
    if router.score == "softmax":
        powers = np.exp(logits - logits.max())
        scores = powers / powers.sum()
    else:
        scores = ACTIVATIONS["sigmoid"](logits)
    # A softmax keeps the order, and its smallest values may no longer tell it.
    ordered = logits if router.ranks_by_logits else scores
    ranks = ordered if correction is None else ordered + correction
    if not (np.isfinite(ranks).all() and np.isfinite(every).all()):
        return None
    open_to = ranks.copy()
    groups = router.groups
    if groups is not None:
        by_group = ranks.reshape(groups.count, -1)
        best = np.sort(by_group, axis=1)[:, ::-1]
        group_scores = best[:, 0] if groups.score == "max" else best[:, 0] + best[:, 1]
        kept = np.lexsort((np.arange(groups.count), -group_scores))[: groups.kept]
        closed = np.setdiff1d(np.arange(groups.count), kept)
        open_to.reshape(groups.count, -1)[closed] = -np.inf
    chosen = np.lexsort((np.arange(len(ranks)), -open_to))[: router.top].astype(np.int64)
    weights, beside = scores[chosen], np.empty(0)
    if router.sinks is not None:
        joined = -np.logaddexp(0.0, -np.append(logits[chosen], every[router.experts :]))
        powers = np.exp(joined - joined.max())
        weights, beside = np.split(powers / powers.sum(), [router.top])
    elif router.renormalise:
        weights = weights / (weights.sum() + router.renormalise_eps)
    weights, beside = (part * (router.scale * overall) for part in (weights, beside))
    if factors is not None:
        weights = weights * factors[chosen]
    return Chosen(scores, ranks, chosen, weights, beside)
