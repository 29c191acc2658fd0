"""Routed experts by kernels.

Positions that chose the same expert are multiplied together; a product's rows do not depend on how
many there are, and what experts give is added position by position in the order of the selection.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect
from larql.format.graph import ExpertBank, RoutedFfn, Router
from larql.kernels.activation import activate, gate
from larql.kernels.elementwise import add_row, add_scaled, scale
from larql.kernels.routing import Choice, Selection, add_chosen, choose, clamped_gate, scale_rows
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32, Vectors
from larql.runtime.backends.production.dense_ffn import dense_ffn, kernel_kind
from larql.runtime.operands import StoredOperand
from larql.runtime.taps import BlockTaps, Routing

__all__ = ["routed_ffn"]


def routed_ffn(
    mixer: RoutedFfn, x: Float32, taps: BlockTaps | None, arithmetic: Arithmetic
) -> Float32:
    """Return the operation's output for each position.

    Raises
    ------
    BindingDefect
        If a router's scores are not finite.
    """
    choice = _choose(mixer.router, x, arithmetic)
    out = arithmetic.memory.take(x.shape)
    inputs = arithmetic.norm(mixer.norm, x)
    if len(x) == 1 and _is_plain(mixer.bank):
        made, places = _for_one(mixer.bank, choice.chosen[0], inputs, arithmetic)
    else:
        made, places = _for_several(mixer.bank, choice.chosen, inputs, arithmetic)
    add_chosen(made, places, choice.weights, out)
    out = arithmetic.norm(mixer.post_norm, out)
    if mixer.shared is not None:
        inputs = arithmetic.norm(mixer.shared.norm, x)
        shared = dense_ffn(mixer.shared.ffn, inputs, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            factors = arithmetic.linear(mixer.shared.gate, x)
            activate(factors, "sigmoid", factors)
            scale_rows(shared, factors.reshape(-1))
        shared = arithmetic.norm(mixer.shared.post_norm, shared)
        add_scaled(out, shared, 1.0)
    for ffn, weights in zip(mixer.weighted or (), choice.shared, strict=True):
        beside = dense_ffn(ffn, x, (), 0, None, arithmetic)
        scale_rows(beside, weights)
        add_scaled(out, beside, 1.0)
    if taps is not None:
        taps.routing = Routing(choice.ranks, choice.chosen, choice.weights)
    return out


def _for_several(
    bank: ExpertBank, chosen: npt.NDArray[np.int64], x: Float32, arithmetic: Arithmetic
) -> tuple[Float32, npt.NDArray[np.int64]]:
    """Return what the chosen experts give, expert by expert, and where each choice's row is."""
    order, counts = _by_expert(chosen, bank.experts)
    top = chosen.shape[1]
    rows = np.ascontiguousarray(x[order // top])
    made = arithmetic.memory.take((len(order), bank.hidden))
    first = 0
    for expert in np.flatnonzero(counts):
        last = first + int(counts[expert])
        made[first:last] = _expert(bank, int(expert), rows[first:last], arithmetic)
        first = last
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return made, places.reshape(-1, top)


def _is_plain(bank: ExpertBank) -> bool:
    """Return whether gate and up are matrices of their own, or halves of one, without biases."""
    return bank.fused_rows != "interleaved" and bank.gate_up_bias is None


def _for_one(
    bank: ExpertBank, chosen: npt.NDArray[np.int64], x: Float32, arithmetic: Arithmetic
) -> tuple[Float32, npt.NDArray[np.int64]]:
    """Return what the chosen experts give one position, in the order of the choice.

    Their gates and ups read the same vector, so that they are one job.
    """
    top = len(chosen)
    gated, up = (arithmetic.memory.take((top, bank.width)) for _ in range(2))
    made = arithmetic.memory.take((top, bank.hidden))
    halves = [half for e in chosen for half in _halves(bank, int(e), arithmetic)]
    rows = iter([part[j : j + 1] for j in range(top) for part in (gated, up)])
    arithmetic.products(halves, arithmetic.inputs(x), lambda *_: next(rows))
    _activate(bank, gated, up)
    for j, expert in enumerate(chosen):
        down = arithmetic.banks[bank.down].entry(int(expert))
        row = made[j : j + 1]
        arithmetic.products([down], arithmetic.inputs(up[j : j + 1]), lambda *_: row)  # noqa: B023
        if bank.down_bias is not None:
            add_row(row, arithmetic.bank_vectors[bank.down_bias][expert])
    return made, np.arange(top).reshape(1, top)


def _halves(bank: ExpertBank, expert: int, arithmetic: Arithmetic) -> list[StoredOperand]:
    """Return gate and up of one expert as matrices."""
    if bank.gate_up is None:
        assert bank.gate is not None and bank.up is not None
        return [arithmetic.banks[name].entry(expert) for name in (bank.gate, bank.up)]
    fused = arithmetic.banks[bank.gate_up].entry(expert)
    return [fused.rows_at(slice(0, bank.width)), fused.rows_at(slice(bank.width, None))]


def _choose(router: Router, x: Float32, arithmetic: Arithmetic) -> Choice:
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
    logits = arithmetic.linear(router.scores, arithmetic.norm(router.norm, x))
    if router.factor != 1.0:
        scale(logits, router.factor)
    choice = choose(logits, selection, vector(router.correction), vector(router.expert_scale))
    if choice.broken.any():
        raise BindingDefect(
            f"{router.scores.weight}: the router's scores are not finite, so no expert can be "
            f"chosen; the weights before it are damaged, or overflow"
        )
    return choice


def _by_expert(
    chosen: npt.NDArray[np.int64], experts: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of ``chosen``, flat, by expert and then position; and counts by expert."""
    flat = chosen.reshape(-1)
    return np.argsort(flat, kind="stable"), np.bincount(flat, minlength=experts)


def _expert(bank: ExpertBank, expert: int, x: Float32, arithmetic: Arithmetic) -> Float32:
    """Return one expert's output for some rows."""
    inputs = arithmetic.inputs(x)
    if bank.fused_rows == "interleaved":
        gated, up = _in_turn(bank, expert, inputs, arithmetic)
    else:
        gated, up = arithmetic.products(_halves(bank, expert, arithmetic), inputs)
        if bank.gate_up_bias is not None:
            biases = arithmetic.bank_vectors[bank.gate_up_bias][expert]
            add_row(gated, biases[: bank.width])
            add_row(up, biases[bank.width :])
    _activate(bank, gated, up)
    down = arithmetic.banks[bank.down].entry(expert)
    (out,) = arithmetic.products([down], arithmetic.inputs(up))
    if bank.down_bias is not None:
        add_row(out, arithmetic.bank_vectors[bank.down_bias][expert])
    return out


def _in_turn(
    bank: ExpertBank, expert: int, inputs: Vectors, arithmetic: Arithmetic
) -> tuple[Float32, Float32]:
    """Return gate and up of one expert, whose rows come in turn, biases added."""
    assert bank.gate_up is not None
    (fused,) = arithmetic.products([arithmetic.banks[bank.gate_up].entry(expert)], inputs)
    if bank.gate_up_bias is not None:
        add_row(fused, arithmetic.bank_vectors[bank.gate_up_bias][expert])
    return np.ascontiguousarray(fused[:, 0::2]), np.ascontiguousarray(fused[:, 1::2])


def _activate(bank: ExpertBank, gated: Float32, up: Float32) -> None:
    """Replace ``up`` by what goes into the down projection."""
    if bank.limit is None and bank.slope == 1.0 and bank.up_offset == 0.0:
        gate(gated, up, kernel_kind(bank.activation), up)
    else:
        limit = np.inf if bank.limit is None else bank.limit
        clamped_gate(gated, up, limit=limit, slope=bank.slope, offset=bank.up_offset)
