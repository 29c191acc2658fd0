"""Which tokens directions of the carrier write, by the production kernels.

A direction's score for a token is its product with the token's row of the output matrix, by the
same row products that give logits: no thread count or instruction set changes a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.errors import EncodingError
from larql.format.encoding import Encoding
from larql.runtime.backends.registry import production_arithmetic
from larql.runtime.operands import StoredOperand

if TYPE_CHECKING:
    from larql.kernels.survey import Survey
    from larql.runtime.backends.production.arithmetic import Arithmetic

__all__ = ["KernelTokens", "survey_tokens"]

_ROWS = 8192  # scores of a block of features stay small beside the matrix


def survey_tokens(
    arithmetic: Arithmetic,
    head: StoredOperand,
    directions: npt.NDArray[np.float32],
    top: int,
) -> Survey:
    """Return the tokens whose rows in the head have the largest products with directions.

    Parameters
    ----------
    arithmetic : Arithmetic
    head : StoredOperand
        ``[vocab, hidden]``.
    directions : float32 ``[n, hidden]``
    top : int

    Raises
    ------
    UnsupportedRefusal
        If there is no kernel for its encoding.
    """
    from larql.kernels.survey import Survey, survey

    arithmetic.check(head)
    nothing = np.empty(0, np.int64), np.empty((len(directions), 0), np.float32)
    found = Survey.begin(*nothing, min(top, head.shape[0]))
    arithmetic.memory.restart()
    x = arithmetic.inputs(np.ascontiguousarray(directions))
    for first in range(0, head.shape[0], _ROWS):
        block = head.rows_at(slice(first, first + _ROWS))
        (scores,) = arithmetic.products([block], x, np.empty)
        survey(scores, first, found)
    return found


class KernelTokens:
    """Computes :class:`~larql.format.vindex2.down_meta.FeatureTokens`.

    Parameters
    ----------
    threads : int or None
        None: one for each core.

    Raises
    ------
    PlatformError
        If the kernels cannot run on this machine.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._arithmetic = production_arithmetic(threads)
        self._rows: StoredOperand | None = None

    def begin(
        self, encoding: Encoding, shape: tuple[int, int], data: npt.NDArray[np.uint8]
    ) -> None:
        """Take the matrix ``[vocab, hidden]`` as stored."""
        self._rows = StoredOperand("output matrix", encoding, shape, data)
        self._arithmetic.check(self._rows)

    def of(
        self, directions: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Return the tokens of the largest products, and the products.

        Parameters
        ----------
        directions : float32 ``[n, hidden]``
        top : int

        Returns
        -------
        uint32 ``[n, top]``, float32 ``[n, top]``
            Largest first, of equals the smaller token.

        Raises
        ------
        EncodingError
            If a product is not finite.
        """
        assert self._rows is not None  # begin was called
        found = survey_tokens(self._arithmetic, self._rows, directions, top)
        wrong = np.flatnonzero(found.broken)
        if wrong.size:
            raise EncodingError(
                f"number {int(wrong[0])} of them gives {int(found.broken[wrong[0]])} scores that "
                f"are not finite, so no tokens can be told; the checkpoint is damaged"
            )
        columns, scores = found.top()
        return columns.astype(np.uint32), scores
