"""Ranking features by their gate's product with a query, and telling which tokens they write.

Products are those of a run, by the same kernels, so a score is the number that the gate would give.
Ranking is by descending score, then ascending feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect
from larql.runtime.feature_tokens import survey_tokens
from larql.runtime.operands import StoredOperand
from larql.runtime.walk.targets import Piece

if TYPE_CHECKING:
    from larql.runtime.backends.production.arithmetic import Arithmetic

__all__ = ["Hit", "best_features", "best_tokens", "columns_of"]

Float32 = npt.NDArray[np.float32]
_TOGETHER = 16  # matrices of one job
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Hit:
    """A feature and its gate's product with the query."""

    feature: int
    score: float


def best_features(
    arithmetic: Arithmetic, name: str, pieces: Sequence[Piece], query: Float32, top: int
) -> tuple[Hit, ...]:
    """Return the features of a bank that fire most, at most ``top``.

    Parameters
    ----------
    arithmetic : Arithmetic
    name : str
        The bank, for messages.
    pieces : sequence of Piece
        In ascending order of features.
    query : float32 ``[n]``
        No longer than the rows; zeros fill it up.
    top : int

    Raises
    ------
    BindingDefect
        If a score is not finite: there is no order then.
    UnsupportedRefusal
        If there is no kernel for an encoding.
    """
    from larql.kernels.survey import Survey, survey

    features_in_all = sum(-(-p.rows.shape[0] // p.step) for p in pieces)
    found = Survey.begin(_NONE, np.empty((1, 0), np.float32), max(1, min(top, features_in_all)))
    arithmetic.memory.restart()
    for begin in range(0, len(pieces), _TOGETHER):
        group = pieces[begin : begin + _TOGETHER]
        for piece in group:
            arithmetic.check(piece.rows)
        columns = group[0].rows.shape[1]
        x = np.zeros((1, columns), np.float32)
        x[0, : len(query)] = query
        made = arithmetic.products([p.rows for p in group], arithmetic.inputs(x), np.empty)
        for piece, scores in zip(group, made, strict=True):
            survey(np.ascontiguousarray(scores[:, :: piece.step]), piece.first, found)
            if found.broken[0]:
                raise BindingDefect(
                    f"{name}: the product of a feature from {piece.first} on with the query is "
                    f"not finite; the bank or the query is damaged"
                )
    features, scores = found.top()
    return tuple(
        Hit(int(feature), float(score))
        for feature, score in zip(features[0], scores[0], strict=True)
        if feature >= 0
    )


def columns_of(
    arithmetic: Arithmetic, matrix: StoredOperand, columns: Sequence[int], width: int
) -> Float32:
    """Return some columns of a matrix, exactly, float32 ``[n, rows]``.

    Parameters
    ----------
    matrix : StoredOperand
    columns : sequence of int
    width : int
        The matrix' logical columns, which stored ones may exceed.
    """
    arithmetic.check(matrix)
    assert max(columns, default=0) < width
    units = np.zeros((len(columns), matrix.shape[1]), np.float32)
    units[np.arange(len(columns)), list(columns)] = 1
    (made,) = arithmetic.products([matrix], arithmetic.inputs(units), np.empty)
    return made


def best_tokens(
    arithmetic: Arithmetic, head: StoredOperand, vectors: Float32, top: int
) -> list[tuple[tuple[int, float], ...]]:
    """Return for each vector the tokens whose rows in the head it has the largest products with.

    Parameters
    ----------
    head : StoredOperand
        ``[vocab, hidden]``.
    vectors : float32 ``[n, hidden]``
    top : int

    Raises
    ------
    UnsupportedRefusal
        If there is no kernel for its encoding.
    """
    tokens, scores = survey_tokens(arithmetic, head, vectors, top).top()
    return [
        tuple((int(t), float(s)) for t, s in zip(*row, strict=True) if t >= 0)
        for row in zip(tokens, scores, strict=True)
    ]
