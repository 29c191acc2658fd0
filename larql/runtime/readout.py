"""What a head says of hidden states, without the logits themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["HeadReadout"]


@dataclass(frozen=True)
class HeadReadout:
    """A softmax over the whole vocabulary, read at some tokens, for T hidden states.

    Where ``broken`` is not 0 the other values of that row mean nothing.

    Attributes
    ----------
    logits : float32 ``[T, m]``
        Logits of the declared tokens, with the bits that they have in the whole row.
    log_probabilities : float64 ``[T, m]``
        Their log-softmax, natural logarithm.
    ranks : int64 ``[T, m]``
        1 for the largest logit; among equals the smaller token comes first.
    top_tokens : int64 ``[T, k]``
        The largest logits' tokens, in the order of their ranks.
    top_logits : float32 ``[T, k]``
    top_log_probabilities : float64 ``[T, k]``
    log_sum_exp : float64 ``[T]``
    broken : int64 ``[T]``
        How many logits are not finite.
    """

    logits: npt.NDArray[np.float32]
    log_probabilities: npt.NDArray[np.float64]
    ranks: npt.NDArray[np.int64]
    top_tokens: npt.NDArray[np.int64]
    top_logits: npt.NDArray[np.float32]
    top_log_probabilities: npt.NDArray[np.float64]
    log_sum_exp: npt.NDArray[np.float64]
    broken: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        logits: npt.NDArray[np.float32],
        ranks: npt.NDArray[np.int64],
        top_tokens: npt.NDArray[np.int64],
        top_logits: npt.NDArray[np.float32],
        log_sum_exp: npt.NDArray[np.float64],
        broken: npt.NDArray[np.int64],
    ) -> HeadReadout:
        """Derive log-probabilities: logit - log_sum_exp in float64."""
        sums = log_sum_exp[:, None]
        with np.errstate(invalid="ignore"):
            return cls(
                logits, logits - sums, ranks, top_tokens, top_logits, top_logits - sums,
                log_sum_exp, broken,
            )  # fmt: skip
