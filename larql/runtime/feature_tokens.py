"""Which tokens directions of the carrier write, by the production kernels.

A direction's score for a token is its product with the token's row of the output matrix, by the
same row products that give logits: no thread count or instruction set changes a bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.errors import EncodingError
from larql.format.encoding import Encoding
from larql.runtime.backends.registry import production_arithmetic
from larql.runtime.operands import StoredOperand

__all__ = ["KernelTokens"]

_ROWS = 8192  # scores of a block of features stay small beside the matrix


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
        from larql.kernels.survey import Survey, survey

        assert self._rows is not None  # begin was called
        inputs = self._arithmetic.inputs(directions)
        nothing = np.empty(0, np.int64), np.empty((len(directions), 0), np.float32)
        found = Survey.begin(*nothing, top)
        for first in range(0, self._rows.shape[0], _ROWS):
            self._arithmetic.memory.restart()
            block = self._rows.rows_at(slice(first, first + _ROWS))
            (scores,) = self._arithmetic.products([block], inputs)
            survey(scores, first, found)
        wrong = np.flatnonzero(found.broken)
        if wrong.size:
            raise EncodingError(
                f"number {int(wrong[0])} of them gives {int(found.broken[wrong[0]])} scores that "
                f"are not finite, so no tokens can be told; the checkpoint is damaged"
            )
        columns, scores = found.top()
        return columns.astype(np.uint32), scores
