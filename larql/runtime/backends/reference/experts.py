"""The experts of one bank in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from larql.format.graph import ExpertBank
from larql.runtime.backends.bound_bank import BoundBank
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS
from larql.runtime.operands import StoredBank
from larql.runtime.routes import Dispatch, Done, NotApplicable, Refused, Wanted

__all__ = ["Experts"]


class Experts:
    """Runs the experts of one bank in this process, one after the other."""

    def __init__(
        self, bank: ExpertBank, operands: Mapping[str, StoredBank], arithmetic: Arithmetic
    ) -> None:
        self._bank = bank
        self._bound = BoundBank(bank, operands)
        self._arithmetic = arithmetic

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
        rows = np.empty((len(wanted.experts), self._bank.hidden))
        for expert in np.unique(wanted.experts):
            places = np.flatnonzero(wanted.experts == expert)
            inputs = [wanted.inputs[t].copy() for t in wanted.positions[places]]
            rows[places] = self._expert(int(expert), inputs)
        done = Done(rows, np.arange(len(rows)))
        return self._bound.held(wanted, done) if wanted.held else done

    def _expert(self, expert: int, inputs: list[Float64]) -> list[Float64]:
        """Return one expert's output for some positions."""
        bank, bound = self._bank, self._bound

        def product(operand: StoredBank, vectors: list[Float64]) -> list[Float64]:
            return self._arithmetic.product_of(operand.entry(expert), vectors)

        def vector(operand: StoredBank | None) -> Float64 | float:
            return 0.0 if operand is None else self._arithmetic.vector_of(operand.entry(expert))

        if bound.fused is None:
            assert bound.gate is not None and bound.up is not None
            pairs = list(zip(product(bound.gate, inputs), product(bound.up, inputs), strict=True))
        else:
            bias = vector(bound.gate_up_bias)
            fused = [row + bias for row in product(bound.fused, inputs)]
            if bank.fused_rows == "interleaved":
                pairs = [(row[0::2], row[1::2]) for row in fused]
            else:
                pairs = [(row[: bank.width], row[bank.width :]) for row in fused]
        inner = []
        for gate, up in pairs:
            if bank.limit is not None:
                gate = np.minimum(gate, bank.limit)
                up = np.clip(up, -bank.limit, bank.limit)
            if bank.slope == 1.0:
                gate = ACTIVATIONS[bank.activation](gate)
            else:
                gate = gate * ACTIVATIONS["sigmoid"](bank.slope * gate)
            inner.append(gate * (up + bank.up_offset))
        bias = vector(bound.down_bias)
        return [row + bias for row in product(bound.down, inner)]
