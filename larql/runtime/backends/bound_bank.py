"""A bank's operands by their part in it, which of its experts are here, and what they give."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect, Refusal
from larql.format.graph import ExpertBank
from larql.runtime.backends.unsound import holds_finite, sound_rows
from larql.runtime.operands import StoredBank
from larql.runtime.routes import Array, Dispatch, Done, Refused, Wanted

__all__ = ["BoundBank"]


class BoundBank:
    """The operands of one bank.

    Parameters
    ----------
    bank : ExpertBank
    operands : mapping
        By name; those of other banks are let be.

    Attributes
    ----------
    gate, up, fused, gate_up_bias, down_bias : StoredBank or None
    down : StoredBank
    resident : bool ``[experts]``
        The experts of which every region is here.
    """

    def __init__(self, bank: ExpertBank, operands: Mapping[str, StoredBank]) -> None:
        def named(name: str | None) -> StoredBank | None:
            return None if name is None else operands[name]

        self.gate, self.up = named(bank.gate), named(bank.up)
        self.fused, self.gate_up_bias = named(bank.gate_up), named(bank.gate_up_bias)
        self.down, self.down_bias = operands[bank.down], named(bank.down_bias)
        optional = (self.gate, self.up, self.fused, self.gate_up_bias, self.down, self.down_bias)
        self._operands = tuple(operand for operand in optional if operand is not None)
        self.resident: npt.NDArray[np.bool_] = np.array(
            [
                all(operand.entries[expert] is not None for operand in self._operands)
                for expert in range(bank.experts)
            ]
        )
        self._here = frozenset(np.flatnonzero(self.resident).tolist())

    def refusals(self, experts: npt.NDArray[np.int64]) -> tuple[tuple[int, Refusal], ...]:
        """Return place and reason of each expert that cannot run here."""
        chosen = experts.tolist()
        if self._here.issuperset(chosen):
            return ()
        return tuple(
            (place, self._problem(expert))
            for place, expert in enumerate(chosen)
            if expert not in self._here
        )

    def held(self, wanted: Wanted, done: Done) -> Dispatch:
        """Refuse the experts whose outputs are not finite, or no float32 can hold."""
        sound = sound_rows(done.rows)[done.places]
        if sound.all():
            return done
        return Refused(
            tuple(
                (place, self._unsound(int(wanted.experts[place]), self._input(wanted, place)))
                for place in np.flatnonzero(~sound).tolist()
            )
        )

    def _input(self, wanted: Wanted, place: int) -> Array:
        row: Array = wanted.inputs[wanted.positions[place]]
        return row

    def _unsound(self, expert: int, read: Array) -> BindingDefect:
        """Return the refusal of an output, naming the first thing that can be blamed."""
        blamed, cause = self.down, "its weights are finite, so a product overflows"
        if not np.isfinite(read).all():
            cause = "its input (expert_input) is not finite"
        else:
            for operand in self._operands:
                if not holds_finite(operand.entry(expert)):
                    blamed, cause = operand, f"{operand.name} holds numbers that are not finite"
                    break
        at = blamed.place.at(expert)
        segment = "" if at.segment is None else f", segment {at.segment}"
        return BindingDefect(
            f"layer {at.layer}: entry {expert} of bank {at.bank} ({at.role}{segment}) gives an "
            f"output (expert_outputs) that is not finite: {cause}",
            at,
        )

    def _problem(self, expert: int) -> Refusal:
        problems = (operand.problem(expert) for operand in self._operands)
        return next(problem for problem in problems if problem is not None)
