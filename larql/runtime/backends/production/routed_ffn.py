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
from larql.kernels.elementwise import add_row, add_scaled
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
    order, counts = _by_expert(choice.chosen, mixer.bank.experts)
    top = mixer.router.top
    rows = np.ascontiguousarray(x[order // top])
    made = arithmetic.memory.take((len(order), mixer.bank.hidden))
    first = 0
    for expert in np.flatnonzero(counts):
        last = first + int(counts[expert])
        made[first:last] = _expert(mixer.bank, int(expert), rows[first:last], arithmetic)
        first = last
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    add_chosen(made, places.reshape(-1, top), choice.weights, out)
    if mixer.shared is not None:
        shared = dense_ffn(mixer.shared.ffn, x, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            factors = arithmetic.linear(mixer.shared.gate, x)
            activate(factors, "sigmoid", factors)
            scale_rows(shared, factors.reshape(-1))
        add_scaled(out, shared, 1.0)
    if taps is not None:
        taps.routing = Routing(choice.ranks, choice.chosen, choice.weights)
    return out


def _choose(router: Router, x: Float32, arithmetic: Arithmetic) -> Choice:
    def vector(name: str | None) -> Float32 | None:
        return None if name is None else arithmetic.vectors[name]

    groups = router.groups
    selection = Selection(
        router.top,
        router.score,
        router.ranks_by_logits,
        router.renormalise,
        router.renormalise_eps,
        router.scale,
        *(() if groups is None else (groups.count, groups.kept, groups.score)),
    )
    logits = arithmetic.linear(router.scores, x)
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
    if bank.gate_up is None:
        assert bank.gate is not None and bank.up is not None
        halves = [arithmetic.banks[name].entry(expert) for name in (bank.gate, bank.up)]
        gated, up = arithmetic.products(halves, inputs)
    else:
        fused = arithmetic.banks[bank.gate_up].entry(expert)
        gated, up = _fused(bank, expert, fused, inputs, arithmetic)
    if bank.limit is None and bank.slope == 1.0 and bank.up_offset == 0.0:
        gate(gated, up, kernel_kind(bank.activation), up)
    else:
        limit = np.inf if bank.limit is None else bank.limit
        clamped_gate(gated, up, limit=limit, slope=bank.slope, offset=bank.up_offset)
    down = arithmetic.banks[bank.down].entry(expert)
    (out,) = arithmetic.products([down], arithmetic.inputs(up))
    if bank.down_bias is not None:
        add_row(out, arithmetic.bank_vectors[bank.down_bias][expert])
    return out


def _fused(
    bank: ExpertBank, expert: int, rows: StoredOperand, inputs: Vectors, arithmetic: Arithmetic
) -> tuple[Float32, Float32]:
    """Return gate and up of one expert, whose rows stand in one matrix, biases added."""
    biases = None
    if bank.gate_up_bias is not None:
        biases = arithmetic.bank_vectors[bank.gate_up_bias][expert]
    if bank.fused_rows == "contiguous_halves":
        halves = [rows.rows_at(slice(0, bank.width)), rows.rows_at(slice(bank.width, None))]
        gated, up = arithmetic.products(halves, inputs)
        if biases is not None:
            add_row(gated, biases[: bank.width])
            add_row(up, biases[bank.width :])
        return gated, up
    (fused,) = arithmetic.products([rows], inputs)
    if biases is not None:
        add_row(fused, biases)
    return np.ascontiguousarray(fused[:, 0::2]), np.ascontiguousarray(fused[:, 1::2])
