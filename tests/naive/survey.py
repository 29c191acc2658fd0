"""The slow twin of a survey: whole rows, sorted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Row:
    """What a survey finds of one row."""

    log_sum_exp: float
    top: list[tuple[int, float]]
    before: list[int]


def survey_row(row: npt.NDArray[np.float32], columns: list[int], top: int) -> Row:
    values = [float(v) for v in row]
    largest = max(values)
    total = math.fsum(math.exp(v - largest) for v in values)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    return Row(
        largest + math.log(total),
        [(i, values[i]) for i in order[:top]],
        [order.index(c) for c in columns],
    )
