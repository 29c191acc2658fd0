"""The one path from hidden states to logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.runtime.backends.base import Backend, Carrier
from larql.runtime.plan import Plan
from larql.runtime.readout import HeadReadout

__all__ = ["logit_rows", "logits", "read_out"]

_ROWS_AT_ONCE = 16


def logits(plan: Plan, backend: Backend, carrier: Carrier) -> npt.NDArray[np.float32]:
    """Return the logits of hidden states.

    Parameters
    ----------
    carrier : float32 ``[T, hidden]``
        The carrier after the last executed layer.

    Returns
    -------
    float32 ``[T, vocab]``

    Raises
    ------
    UsageError
        If the plan's slice has no head.
    """
    _require_head(plan)
    return backend.logits(plan.component.head, carrier)


def logit_rows(plan: Plan, backend: Backend, carrier: Carrier) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the logits of hidden states a few rows at a time, to bound memory."""
    for first in range(0, len(carrier), _ROWS_AT_ONCE):
        yield logits(plan, backend, carrier[first : first + _ROWS_AT_ONCE])


def read_out(
    plan: Plan, backend: Backend, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
) -> HeadReadout:
    """Read the softmax of hidden states at some tokens, keeping no row of logits.

    Parameters
    ----------
    carrier : float32 ``[T, hidden]``
        The carrier after any write.
    tokens : int64 ``[m]``
        Tokens to tell of.
    top : int
        How many of the likeliest tokens to tell of, at least 1.

    Returns
    -------
    HeadReadout

    Raises
    ------
    UsageError
        If the plan's slice has no head.
    """
    _require_head(plan)
    return backend.read_out(plan.component.head, carrier, tokens, top)


def _require_head(plan: Plan) -> None:
    if not plan.has_head:
        raise UsageError("a layer range ends with hidden states; it has no logits")
