"""The slow twin of scores: whole softmaxes, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Score:
    divergence: float
    target_top: int
    draft_top: int
    rank: int
    target_nll: float | None
    draft_nll: float | None


def log_softmax(row: Row) -> list[float]:
    values = [float(v) for v in row]
    largest = max(values)
    total = math.log(math.fsum(math.exp(v - largest) for v in values))
    return [v - largest - total for v in values]


def weighted_difference(x: Row, y: Row) -> float:
    largest = float(max(x))
    return math.fsum(
        math.exp(float(a) - largest) * (float(a) - float(b)) for a, b in zip(x, y, strict=True)
    )


def score(target: Row, draft: Row, following: int) -> Score:
    p, q = log_softmax(target), log_softmax(draft)
    order = sorted(range(len(q)), key=lambda i: (-float(draft[i]), i))
    top = min(range(len(p)), key=lambda i: (-float(target[i]), i))
    known = following >= 0
    return Score(
        math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True)),
        top,
        order[0],
        order.index(top) + 1,
        -p[following] if known else None,
        -q[following] if known else None,
    )
