"""Routed experts by kernels: the router, the sum of what experts give, what comes beside it.

What experts give is added position by position in the order of the selection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal
from larql.format.graph import RoutedFfn, Router
from larql.kernels.activation import activate
from larql.kernels.copy import copy
from larql.kernels.elementwise import add_scaled, scale
from larql.kernels.finite import broken_rows
from larql.kernels.routing import Choice, Selection, add_chosen, choose, scale_rows
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.backends.production.dense_ffn import dense_ffn
from larql.runtime.backends.production.experts import Experts
from larql.runtime.backends.unsound import routed_defect, router_defect, shared_defect
from larql.runtime.routes import LeftOutNotes, Reached, Why, reach
from larql.runtime.taps import BlockTaps, Routing

__all__ = ["choose_experts", "routed_ffn"]


def _kept(values: Float32) -> Float32:
    """Return a copy."""
    return values.copy()


def _kept_again(values: Float32) -> Float32:
    """Return a copy that a recorded step fills again."""
    made = np.empty_like(values)
    copy(np.ascontiguousarray(values), made)
    return made


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
        If shared experts give what is not finite.
    Refusal
        If a router's scores or the routed part are not finite, or a chosen expert cannot be
        reached, and ``notes`` is None.
    """
    trace = None if taps is None else taps.experts
    kept = _kept if arithmetic.calls.doubts is None else _kept_again
    read = arithmetic.norm(mixer.router.norm, x)
    choice = choose_experts(mixer.router, read, arithmetic)
    if taps is not None:
        taps.routing = Routing(kept(choice.ranks), choice.chosen, choice.weights)
    inputs = arithmetic.norm(mixer.norm, x)
    if mixer.latent is not None:
        inputs = arithmetic.linear(mixer.latent.into, inputs)
    if trace is not None:
        trace.router_input, trace.expert_input = kept(read), kept(inputs)
        trace.scores, trace.ranks = kept(choice.scores), kept(choice.ranks)
        trace.shared = None
        trace.chosen, trace.weights = choice.chosen, choice.weights
    routed = _RoutedPart(mixer, choice.weights, arithmetic)
    if arithmetic.calls.doubts is None:
        reached = _reached(mixer, read, choice, inputs, routed, start, arithmetic, notes)
    else:
        reached = _recorded(mixer, choice, inputs, routed, arithmetic)
    if trace is not None:
        trace.gave(reached, len(x), kept)
    out = routed.of_all(reached)
    if trace is not None:
        trace.routed = kept(out)
    if mixer.shared is not None:
        inputs = arithmetic.norm(mixer.shared.norm, x)
        shared = dense_ffn(mixer.shared.ffn, inputs, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            factors = arithmetic.linear(mixer.shared.gate, x)
            activate(factors, "sigmoid", factors)
            scale_rows(shared, factors.reshape(-1))
        shared = arithmetic.norm(mixer.shared.post_norm, shared)
        if trace is not None:
            trace.shared = kept(shared)
        add_scaled(out, shared, 1.0)
    for ffn, weights in zip(mixer.weighted or (), choice.shared, strict=True):
        beside = dense_ffn(ffn, x, (), 0, None, arithmetic)
        scale_rows(beside, weights)
        if trace is not None:
            if trace.shared is None:
                trace.shared = kept(beside)
            else:
                add_scaled(trace.shared, beside, 1.0)
        add_scaled(out, beside, 1.0)
    if mixer.shared is not None or mixer.weighted:
        broken = broken_rows(out)
        if arithmetic.calls.doubts is not None:
            arithmetic.calls.doubts.append(broken)
        elif broken.any():
            raise shared_defect(mixer, arithmetic.operands)
    if trace is not None:
        trace.output = kept(out)
    return out


def _reached(
    mixer: RoutedFfn,
    read: Float32,
    choice: Choice,
    inputs: Float32,
    routed: _RoutedPart,
    start: int,
    arithmetic: Arithmetic,
    notes: LeftOutNotes | None,
) -> Reached:
    """Have the chosen experts compute, whatever leads to them."""
    broken = [
        (int(t), router_defect(mixer.router, read[t], arithmetic.operands))
        for t in np.flatnonzero(choice.broken)
    ]
    route = arithmetic.routes[mixer.bank.down]
    return reach(route, inputs, choice.chosen, broken, routed, start, notes)


def _recorded(
    mixer: RoutedFfn,
    choice: Choice,
    inputs: Float32,
    routed: _RoutedPart,
    arithmetic: Arithmetic,
) -> Reached:
    """Write down that chosen experts compute, and what of it is to be doubted."""
    route, doubts = arithmetic.routes[mixer.bank.down], arithmetic.calls.doubts
    assert isinstance(route, Experts) and doubts is not None
    count, top = choice.chosen.shape
    each = np.arange(count)
    rows = route.run_few(inputs, choice.chosen.reshape(-1), np.repeat(each, top))
    reached = Reached(each, rows, np.arange(count * top).reshape(count, top))
    doubts += [choice.broken, routed.make(reached)]
    return reached


class _RoutedPart:
    """The weighted sums of what experts gave, transformed back and normalised."""

    def __init__(self, mixer: RoutedFfn, weights: Float32, arithmetic: Arithmetic) -> None:
        self._mixer, self._weights, self._arithmetic = mixer, weights, arithmetic
        self._made = self._summed = np.empty((0, mixer.bank.hidden), np.float32)

    def __call__(self, reached: Reached) -> tuple[npt.NDArray[np.bool_], Why]:
        """Make it for the positions that have their experts; tell where it is not finite."""
        broken = self.make(reached)
        summed, weights = self._summed, self._weights[reached.kept]

        def why(place: int) -> Refusal:
            return routed_defect(
                self._mixer, summed[place], weights[place], self._arithmetic.operands
            )

        return broken != 0, why

    def make(self, reached: Reached) -> npt.NDArray[np.int64]:
        """Make it for the positions that have their experts; return 1 where it is not finite."""
        mixer, arithmetic = self._mixer, self._arithmetic
        if not len(reached.kept):
            width = mixer.bank.hidden if mixer.latent is None else mixer.latent.back.outputs
            self._summed, self._made = reached.rows, np.empty((0, width), np.float32)
            return np.empty(0, np.int64)
        whole = len(reached.kept) == len(self._weights)
        weights = self._weights if whole else self._weights[reached.kept]
        summed = arithmetic.memory.take((len(weights), mixer.bank.hidden))
        broken = add_chosen(reached.rows, reached.places, weights, summed)
        out = summed
        if mixer.latent is not None:
            out = arithmetic.linear(mixer.latent.back, out)
        out = arithmetic.norm(mixer.post_norm, out)
        self._summed, self._made = summed, out
        return broken if out is summed else broken_rows(out)

    def of_all(self, reached: Reached) -> Float32:
        """Return what was made last, zeros for positions that are left out."""
        made, count = self._made, len(self._weights)
        if len(made) == count:
            return made
        spread = self._arithmetic.memory.take((count, made.shape[1]))
        spread[:] = 0
        spread[reached.kept] = made
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
