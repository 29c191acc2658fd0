"""The experts of one bank, bound: mapped matrices, and the kernels that run them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from larql.format.graph import ExpertBank
from larql.kernels.activation import gate
from larql.kernels.chosen import Alike
from larql.kernels.elementwise import add_row
from larql.kernels.expert_rows import add_rows_of, in_turn
from larql.kernels.routing import clamped_gate
from larql.runtime.backends.bound_bank import BoundBank
from larql.runtime.backends.production.arithmetic import (
    Arithmetic,
    Float32,
    Vectors,
    decoded,
)
from larql.runtime.backends.production.dense_ffn import kernel_kind
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.routes import Dispatch, Done, NotApplicable, Refused, Wanted

__all__ = ["FEW", "Experts"]

FEW = 8
"""Positions whose experts are multiplied one by one: few of them choose the same."""


class Experts:
    """Runs the experts of one bank in this process.

    Positions that chose the same expert are multiplied together; a product's rows do not depend on
    how many there are.

    Parameters
    ----------
    bank : ExpertBank
    operands : mapping
        Its operands by name.
    arithmetic : Arithmetic

    Raises
    ------
    UnsupportedRefusal
        If there is no kernel for the encoding of an operand, or for how its rows are padded.
    """

    def __init__(
        self, bank: ExpertBank, operands: Mapping[str, StoredBank], arithmetic: Arithmetic
    ) -> None:
        for operand in operands.values():
            arithmetic.check(operand)
        self._bank = bank
        self._bound = bound = BoundBank(bank, operands)
        self._arithmetic = arithmetic
        self._gate_up_bias = _vectors(bound.gate_up_bias)
        self._down_bias = _vectors(bound.down_bias)
        self._down = _alike(bound.down)
        if bound.fused is None:
            assert bound.gate is not None and bound.up is not None
            self._sides = [_alike(bound.gate), _alike(bound.up)]
        elif bank.fused_rows == "interleaved":
            self._sides = [_alike(bound.fused)]
        else:
            width = bank.width
            halves = slice(0, width), slice(width, None)
            self._sides = [_alike(bound.fused, half) for half in halves]

    @property
    def resident(self) -> npt.NDArray[np.bool_]:
        """Which experts of the population are here, bool ``[experts]``."""
        return self._bound.resident

    def dispatch(self, wanted: Wanted) -> Dispatch:
        """Run the experts that are asked for."""
        if not len(wanted.experts):
            return NotApplicable()
        refusals = self._bound.refusals(wanted.experts)
        if refusals:
            return Refused(refusals)
        if len(wanted.inputs) <= FEW:
            rows = self.run_few(wanted.inputs, wanted.experts, wanted.positions)
            done = Done(rows, np.arange(len(rows)))
        else:
            done = self._for_several(wanted)
        return self._bound.held(wanted, done) if wanted.held else done

    def run_few(
        self,
        inputs: Float32,
        experts: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
    ) -> Float32:
        """Run experts for few positions, in the order in which they are asked for.

        Their gates and ups are one job, and so are their downs. All that depends on the numbers of
        the experts is done by kernels, so this may be recorded before they are known; which of them
        are here is then among the doubts.

        Parameters
        ----------
        inputs : float32 ``[T, hidden]``
        experts, positions : int64 ``[N]``
            As of :class:`~larql.runtime.routes.Wanted`.

        Returns
        -------
        float32 ``[N, hidden]``
        """
        bank, arithmetic, count = self._bank, self._arithmetic, len(experts)
        outs = arithmetic.chosen(self._sides, experts, positions, arithmetic.inputs(inputs))
        biases = self._gate_up_bias
        if len(outs) == 1:
            (fused,) = outs
            if biases is not None:
                add_rows_of(fused, biases, experts)
            gated, up = (arithmetic.memory.take((count, bank.width)) for _ in range(2))
            in_turn(fused, gated, up)
        else:
            gated, up = outs
            if biases is not None:
                add_rows_of(gated, biases, experts)
                add_rows_of(up, biases, experts, bank.width)
        self._activate(gated, up)
        each = np.arange(count)
        (made,) = arithmetic.chosen([self._down], experts, each, arithmetic.inputs(up))
        if self._down_bias is not None:
            add_rows_of(made, self._down_bias, experts)
        return made

    def _for_several(self, wanted: Wanted) -> Done:
        """Run expert after expert, each for all positions that ask for it."""
        order = np.argsort(wanted.experts, kind="stable")
        experts, positions = wanted.experts[order], wanted.positions[order]
        inputs = self._arithmetic.inputs(np.ascontiguousarray(wanted.inputs))
        made = self._arithmetic.memory.take((len(order), self._bank.hidden))
        bounds = [0, *(np.flatnonzero(np.diff(experts)) + 1).tolist(), len(order)]
        for first, last in itertools.pairwise(bounds):
            some = inputs.some(positions[first:last])
            made[first:last] = self._expert(int(experts[first]), some)
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return Done(made, places)

    def _halves(self, expert: int) -> list[StoredOperand]:
        """Return gate and up of one expert as matrices."""
        if self._bound.fused is None:
            assert self._bound.gate is not None and self._bound.up is not None
            return [self._bound.gate.entry(expert), self._bound.up.entry(expert)]
        fused, width = self._bound.fused.entry(expert), self._bank.width
        return [fused.rows_at(slice(0, width)), fused.rows_at(slice(width, None))]

    def _expert(self, expert: int, inputs: Vectors) -> Float32:
        """Return one expert's output for some rows."""
        bank = self._bank
        if bank.fused_rows == "interleaved":
            gated, up = self._in_turn(expert, inputs)
        else:
            gated, up = self._arithmetic.products(self._halves(expert), inputs)
            if self._gate_up_bias is not None:
                biases = self._gate_up_bias[expert]
                add_row(gated, biases[: bank.width])
                add_row(up, biases[bank.width :])
        self._activate(gated, up)
        down = self._bound.down.entry(expert)
        (out,) = self._arithmetic.products([down], self._arithmetic.inputs(up))
        if self._down_bias is not None:
            add_row(out, self._down_bias[expert])
        return out

    def _in_turn(self, expert: int, inputs: Vectors) -> tuple[Float32, Float32]:
        """Return gate and up of one expert, whose rows come in turn, biases added."""
        assert self._bound.fused is not None
        (fused,) = self._arithmetic.products([self._bound.fused.entry(expert)], inputs)
        if self._gate_up_bias is not None:
            add_row(fused, self._gate_up_bias[expert])
        gated, up = (np.empty((len(fused), self._bank.width), np.float32) for _ in range(2))
        in_turn(fused, gated, up)
        return gated, up

    def _activate(self, gated: Float32, up: Float32) -> None:
        """Replace ``up`` by what goes into the down projection."""
        bank = self._bank
        if bank.limit is None and bank.slope == 1.0 and bank.up_offset == 0.0:
            gate(gated, up, kernel_kind(bank.activation), up)
        else:
            limit = np.inf if bank.limit is None else bank.limit
            clamped_gate(gated, up, limit=limit, slope=bank.slope, offset=bank.up_offset)


def _alike(bank: StoredBank, rows: slice | None = None) -> Alike:
    """Return the matrices of a bank, or some rows of each, for kernels."""
    taken = rows or slice(None)
    entries = [
        None if data is None else bank.entry(expert).rows_at(taken).data
        for expert, data in enumerate(bank.entries)
    ]
    _, count, columns = bank.shape
    height = len(range(*taken.indices(count)))
    return Alike(entries, bank.encoding.name, height, columns, bank.stored_columns)


def _vectors(bank: StoredBank | None) -> Float32 | None:
    """Return the vectors of a bank, decoded for all experts that are here; zeros for others."""
    if bank is None:
        return None
    made = np.zeros(bank.shape, np.float32)
    for expert, data in enumerate(bank.entries):
        if data is not None:
            made[expert] = decoded(bank.entry(expert))
    return made
