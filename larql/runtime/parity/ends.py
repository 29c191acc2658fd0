"""How a comparison ends: hidden states around the final norm, and what the head makes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.runtime.head import logits
from larql.runtime.parity.arms import Arm, Pair
from larql.runtime.parity.blocks import LayerVerdict
from larql.runtime.parity.verdict import Checkpoint, Tolerance, Verdict, compare_rows, weakest
from larql.runtime.sampling import top_tokens

__all__ = ["Ending", "Ends", "compare_head", "ends_of"]

Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

HEAD = "head"
_POSITIONS = 16  # the last ones, whose logits are compared: a vocabulary is large


@dataclass(frozen=True)
class Ending:
    """What one arm ends with, at the last position.

    Attributes
    ----------
    top : tuple of (int, float)
        The likeliest tokens and their logits.
    argmax : int
    margin : float or None
        The largest logit less the next.
    """

    top: tuple[tuple[int, float], ...]
    argmax: int
    margin: float | None

    @classmethod
    def of(cls, row: Float32, count: int) -> Ending:
        """Read a row of logits, float32 ``[vocab]``."""
        top = top_tokens(row, max(count, 2))
        margin = top[0][1] - top[1][1] if len(top) > 1 else None
        return cls(tuple(top[:count]), top[0][0], margin)


@dataclass(frozen=True)
class Ends:
    """The end of a propagation, at the last position.

    Attributes
    ----------
    before, after : Checkpoint
        The hidden state before and after the final norm.
    logits : Checkpoint
    baseline, examined : Ending
    all_equal : bool
        Whether every logit of the baseline is the same number, so that its order means nothing.
    """

    before: Checkpoint
    after: Checkpoint
    logits: Checkpoint
    baseline: Ending
    examined: Ending
    all_equal: bool

    @property
    def verdict(self) -> Verdict:
        """The weakest."""
        found = weakest(c.verdict for c in (self.before, self.after, self.logits))
        assert found is not None
        return found


def _head_of(arm: Arm, carrier: Float32) -> tuple[Float32, Float32]:
    """Return norm and logits of hidden states ``[T, hidden]``."""
    prepared = arm.run.prepared
    with arm.asked():
        normed = prepared.backend.final_norm(prepared.plan.component.head, carrier)
        return normed, logits(prepared.plan, prepared.backend, carrier)


def compare_head(pair: Pair, carrier: Float32, tolerance: Tolerance) -> LayerVerdict:
    """Compare the heads of both arms on identical hidden states, float32 ``[T, hidden]``."""
    start = max(0, len(carrier) - _POSITIONS)
    rows = np.ascontiguousarray(carrier[start:])
    ours, theirs = _head_of(pair.baseline, rows), _head_of(pair.examined, rows.copy())
    found = tuple(
        compare_rows(HEAD, stage, a, b, tolerance, start=start)
        for stage, a, b in zip(("norm", "logits"), ours, theirs, strict=True)
    )
    verdict = weakest(c.verdict for c in found)
    assert verdict is not None
    return LayerVerdict(HEAD, verdict, found)


def ends_of(
    pair: Pair,
    carriers: tuple[Float32, Float32],
    tolerance: Tolerance,
    tied: bool,
    position: int,
    top: int,
) -> Ends:
    """Compare how both arms end.

    Parameters
    ----------
    pair : Pair
    carriers : two of float32 ``[1, hidden]``
        Baseline's and examined's, of one position.
    tolerance : Tolerance
    tied : bool
        Whether a tie has led the position apart.
    position : int
    top : int
        How many of the likeliest tokens to tell.
    """
    mask = np.array([tied])
    sides = [
        _head_of(arm, np.ascontiguousarray(rows))
        for arm, rows in zip((pair.baseline, pair.examined), carriers, strict=True)
    ]
    before, after, scores = (
        compare_rows(HEAD, stage, a, b, tolerance, mask, position)
        for stage, a, b in zip(
            ("before norm", "after norm", "logits"),
            (carriers[0], *sides[0]),
            (carriers[1], *sides[1]),
            strict=True,
        )
    )
    ours, theirs = (logit_rows[0] for _, logit_rows in sides)
    return Ends(
        before,
        after,
        scores,
        Ending.of(ours, top),
        Ending.of(theirs, top),
        all_equal=bool((ours == ours[0]).all()),
    )
