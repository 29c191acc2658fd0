"""A bank's operands by their part in it, and which of its experts are here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from larql.errors import Refusal
from larql.format.graph import ExpertBank
from larql.runtime.operands import StoredBank

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

    def _problem(self, expert: int) -> Refusal:
        problems = (operand.problem(expert) for operand in self._operands)
        return next(problem for problem in problems if problem is not None)
