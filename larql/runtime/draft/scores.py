"""How near a draft's logits are to the target's, position by position.

Both are rows of logits after the same tokens. p is the softmax of the target's row, q of the
draft's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.kernels.divergence import weighted_difference
from larql.kernels.likelihood import logarithm
from larql.kernels.survey import Survey, survey

__all__ = ["Scores", "TargetRows", "joined", "read_target", "score_rows"]

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_IDS = ("target_top", "draft_top", "rank")


@dataclass(frozen=True)
class Scores:
    """What is known of T positions; natural logarithms.

    Attributes
    ----------
    divergence : float64 ``[T]``
        KL(p‖q), 0 where the rows are equal.
    target_top, draft_top : int64 ``[T]``
        The token with the largest logit, the smallest id among equals.
    rank : int64 ``[T]``
        Rank of ``target_top`` in the draft's row, 1 for its largest logit.
    target_nll, draft_nll : float64 ``[T]``
        Negative log-probability of the token that follows; NaN where none does.
    """

    divergence: Floats
    target_top: Ids
    draft_top: Ids
    rank: Ids
    target_nll: Floats
    draft_nll: Floats

    def document(self) -> dict[str, list[float | None]]:
        """Return them as JSON has them, NaN as None."""
        return {
            field.name: [None if value != value else value for value in column.tolist()]
            for field in fields(self)
            for column in [getattr(self, field.name)]
        }

    @classmethod
    def of(cls, document: Mapping[str, Sequence[float | None]]) -> Scores:
        """Read them back, bit for bit.

        Raises
        ------
        ValueError
            If it is no such document.
        """
        if document.keys() != {field.name for field in fields(cls)}:
            raise ValueError("the names of the scores are others")
        columns: list[Any] = [
            np.array([np.nan if value is None else value for value in document[field.name]],
                     np.int64 if field.name in _IDS else np.float64)
            for field in fields(cls)
        ]  # fmt: skip
        return cls(*columns)


@dataclass(frozen=True)
class TargetRows:
    """Rows of a target, and what each comparison with them needs.

    Attributes
    ----------
    rows : float32 ``[T, vocab]``
    following : int64 ``[T]``
        The token that follows each position; -1 where none does.
    top : int64 ``[T]``
    largest, total, log_sum : float64 ``[T]``
        The largest logit M, the sum of exp(x - M), and M plus its logarithm.
    nll : float64 ``[T]``
    """

    rows: Rows
    following: Ids
    top: Ids
    largest: Floats
    total: Floats
    log_sum: Floats
    nll: Floats


def read_target(rows: Rows, following: Ids, where: str, first: int) -> TargetRows:
    """Survey rows of a target.

    Parameters
    ----------
    rows : float32 ``[T, vocab]``
    following : int64 ``[T]``
    where : str
        What the rows are from, for messages.
    first : int
        Position of the first row, for messages.

    Raises
    ------
    UsageError
        If a logit is not a finite number.
    """
    found = _surveyed(rows, np.zeros(len(rows), np.int64), where, first)
    log_sum = found.largest + logarithm(found.total)
    nll = _nll(rows, following, log_sum)
    top = found.top()[0][:, 0]
    return TargetRows(rows, following, top, found.largest, found.total, log_sum, nll)


def score_rows(target: TargetRows, rows: Rows, where: str, first: int) -> Scores:
    """Score a draft's rows at the same positions; parameters as for :func:`read_target`.

    Raises
    ------
    UsageError
        If a logit is not a finite number.
    """
    found = _surveyed(rows, target.top, where, first)
    log_sum = found.largest + logarithm(found.total)
    apart = weighted_difference(target.rows, rows, target.largest) / target.total
    return Scores(
        divergence=np.maximum(apart - target.log_sum + log_sum, 0.0),
        target_top=target.top,
        draft_top=found.top()[0][:, 0],
        rank=found.before[:, 0] + 1,
        target_nll=target.nll,
        draft_nll=_nll(rows, target.following, log_sum),
    )


def joined(parts: list[Scores]) -> Scores:
    """Return the scores of consecutive positions as one."""
    return Scores(*[np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Scores)])


def _surveyed(rows: Rows, tokens: Ids, where: str, first: int) -> Survey:
    """Survey whole rows, in each of which one token is marked."""
    found = Survey.begin(tokens[:, None], np.take_along_axis(rows, tokens[:, None], 1), top=1)
    survey(np.ascontiguousarray(rows), 0, found)
    if found.broken.any():
        position = int(np.flatnonzero(found.broken)[0])
        raise UsageError(
            f"{where}: {found.broken[position]} logits of position {first + position} are not "
            f"finite numbers; such a row has no softmax to compare"
        )
    return found


def _nll(rows: Rows, following: Ids, log_sum: Floats) -> Floats:
    known = (following >= 0) & (following < rows.shape[1])  # some rows of embeddings have no logit
    chosen = rows[np.arange(len(rows)), np.where(known, following, 0)].astype(np.float64)
    return np.where(known, log_sum - chosen, np.nan)
