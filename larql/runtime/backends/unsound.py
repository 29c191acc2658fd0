"""Refusals of numbers that are not finite, which say what they come from.

Whether numbers are finite is seen by the backends as they compute. What is here runs once, when
something is refused, and may decode whole matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect
from larql.format.codec import decode
from larql.format.encoding import SLAB_ROWS
from larql.format.graph import DenseFfn, Linear, Norm, RoutedFfn, Router
from larql.runtime.operands import StoredOperand

__all__ = ["holds_finite", "routed_defect", "router_defect", "shared_defect"]

Array = npt.NDArray[Any]
Operands = Mapping[str, StoredOperand]

_BLOCK_ELEMENTS = 1 << 20


def sound_rows(rows: Array) -> npt.NDArray[np.bool_]:
    """Return which rows ``[n, width]`` are finite, as float32 too, bool ``[n]``."""
    return np.asarray((np.abs(rows) <= np.finfo(np.float32).max).all(axis=1))


def holds_finite(operand: StoredOperand) -> bool:
    """Return whether all numbers of a matrix or vector are finite; padding does not count."""
    columns = operand.shape[-1]
    stored = operand.stored_columns or columns
    if len(operand.shape) == 1:
        return bool(np.isfinite(decode(operand.encoding, operand.data, stored)[:columns]).all())
    rows = operand.shape[0]
    step = SLAB_ROWS * max(1, _BLOCK_ELEMENTS // (SLAB_ROWS * columns))
    for first in range(0, rows, step):
        part = operand.rows_at(slice(first, first + step))
        data = part.data.reshape(part.shape[0], -1)
        if not np.isfinite(decode(part.encoding, data, stored)[:, :columns]).all():
            return False
    return True


def router_defect(router: Router, read: Array, operands: Operands) -> BindingDefect:
    """Return the refusal of scores that are not finite.

    Parameters
    ----------
    router : Router
    read : float ``[hidden]``
        What the scores are a projection of.
    operands : mapping
        By name.
    """
    return BindingDefect(
        f"{router.scores.weight}: the router's scores are not finite, so no expert can be "
        f"chosen: {_router_cause(router, read, operands)}"
    )


def _router_cause(router: Router, read: Array, operands: Operands) -> str:
    if not np.isfinite(read).all():
        return (
            "its input (router_input) is not finite; what was computed before it overflows, or "
            "was made of such numbers"
        )
    for name, part in ((router.scores.weight, "weight"), (router.scores.bias, "bias"),
                       (router.correction, "correction")):  # fmt: skip
        if name is not None and not holds_finite(operands[name]):
            return f"its {part} {name} holds numbers that are not finite"
    return "its weight, its bias and its input are finite, so the product overflows"


def routed_defect(
    mixer: RoutedFfn, summed: Array, weights: Array, operands: Operands
) -> BindingDefect:
    """Return the refusal of a routed part that is not finite, though every expert's output is.

    Parameters
    ----------
    mixer : RoutedFfn
    summed : float ``[width]``
        The weighted sum.
    weights : float ``[top]``
        What experts' outputs were multiplied by.
    operands : mapping
        By name.
    """
    if not np.isfinite(weights).all():
        cause = "the weights of the chosen experts (weights) are not finite"
    elif not sound_rows(summed[None]).all():
        cause = "the sum of the experts' weighted outputs overflows"
    else:
        behind = [] if mixer.latent is None else _named(mixer.latent.back)
        cause = _cause([*behind, *_named(mixer.post_norm)], operands, "what follows their sum")
    return BindingDefect(f"{mixer.bank.down}: the routed part (routed) is not finite: {cause}")


def shared_defect(mixer: RoutedFfn, operands: Operands) -> BindingDefect:
    """Return the refusal of an output that is not finite, though the routed part is."""
    names: list[str] = []
    if mixer.shared is not None:
        names += [*_named(mixer.shared.norm), *_of_ffn(mixer.shared.ffn)]
        names += [*_named(mixer.shared.gate), *_named(mixer.shared.post_norm)]
    for ffn in mixer.weighted or ():
        names += _of_ffn(ffn)
    cause = _cause(names, operands, "a product")
    return BindingDefect(
        f"{mixer.bank.down}: what shared experts add (shared) is not finite: {cause}"
    )


def _cause(names: list[str], operands: Operands, what: str) -> str:
    for name in names:
        if not holds_finite(operands[name]):
            return f"{name} holds numbers that are not finite"
    return f"all weights are finite, so {what} overflows"


def _of_ffn(ffn: DenseFfn) -> Iterator[str]:
    for linear in (ffn.gate, ffn.up, ffn.down):
        yield from _named(linear)


def _named(part: Linear | Norm | None) -> Iterator[str]:
    if part is not None:
        yield from (name for name in (part.weight, part.bias) if name is not None)
