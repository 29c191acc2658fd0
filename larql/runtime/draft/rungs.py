"""Every depth of a model as a draft of the whole, from one traversal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.format.progress import Progress
from larql.runtime.draft.compare import following_tokens
from larql.runtime.draft.scores import Scores, joined, read_target, score_rows
from larql.runtime.head import logits
from larql.runtime.plan import Plan
from larql.runtime.planes import SiteWatch
from larql.runtime.prepared import PreparedOperands
from larql.runtime.session import Session

__all__ = ["Rungs", "score_rungs"]

_ROWS_AT_ONCE = 16
_RUNGS_AT_ONCE = 4  # more rows share what the head decodes, and take more memory
_CHUNK = 128  # positions whose carriers after every layer are held at once


@dataclass(frozen=True)
class Rungs:
    """The scores of some depths on one prompt, and what they cost.

    Attributes
    ----------
    scores : tuple of Scores
        One for each depth, in the order in which they were asked for.
    traversal_seconds, head_seconds, score_seconds : float
        Of the layers, of the head over all depths, and of scoring.
    """

    scores: tuple[Scores, ...]
    traversal_seconds: float
    head_seconds: float
    score_seconds: float


def score_rungs(
    prepared: PreparedOperands,
    tokens: Sequence[int],
    depths: Sequence[int],
    chunk: int | None,
    progress: Progress,
) -> Rungs:
    """Score the drafts of some depths against the model, over tokens that are given.

    The layers are traversed once, and what each of the depths leaves goes through the head: so the
    logits of depth d are those of a run that executes d layers, bit for bit.

    Parameters
    ----------
    prepared : PreparedOperands
        Of the whole model.
    tokens : sequence of int
        At least one.
    depths : sequence of int
        From 1 to the number of layers.
    chunk : int or None
        Most positions that are advanced at once.
    progress : Progress
        Told of positions times depths.

    Raises
    ------
    UsageError
        If the tokens do not fit the model, or a logit is not a finite number.
    """
    watch = _watch(prepared.plan, depths, min(chunk or _CHUNK, _CHUNK))
    session = Session(prepared, len(tokens), chunk, watch)
    following = following_tokens(tuple(tokens))
    parts: list[list[Scores]] = [[] for _ in depths]
    spent = [0.0, 0.0, 0.0]
    for first in range(0, len(tokens), session.chunk):
        began = time.perf_counter()
        session.advance(tokens[first : first + session.chunk])
        spent[0] += time.perf_counter() - began
        (carriers,) = watch.parts
        watch.parts.clear()
        for at in range(0, carriers.shape[1], _ROWS_AT_ONCE):
            piece = np.ascontiguousarray(carriers[:, at : at + _ROWS_AT_ONCE])
            after = following[first + at : first + at + piece.shape[1]]
            for found, scores in zip(
                parts, _scored(prepared, piece, after, first + at, depths, spent), strict=True
            ):
                found.append(scores)
            progress.advance(piece.shape[1] * len(depths))
    return Rungs(tuple(map(joined, parts)), *spent)


def _watch(plan: Plan, depths: Sequence[int], most: int) -> SiteWatch:
    """Return an observer of the carrier after each of the depths, and after the last layer."""
    ends = np.cumsum([len(layer.blocks) for layer in plan.layers])
    return SiteWatch(most, [int(ends[depth - 1]) for depth in (*depths, len(plan.layers))])


def _scored(
    prepared: PreparedOperands,
    carriers: npt.NDArray[np.float32],
    following: npt.NDArray[np.int64],
    first: int,
    depths: Sequence[int],
    spent: list[float],
) -> list[Scores]:
    """Score carriers ``[depths, T, hidden]``, the last of which are the whole model's."""
    whole, count = len(prepared.plan.layers), carriers.shape[1]
    began = time.perf_counter()
    rows = logits(prepared.plan, prepared.backend, carriers[-1])
    read = time.perf_counter()
    target = read_target(rows, following, f"depth {whole}", first)
    spent[1] += read - began
    spent[2] += time.perf_counter() - read
    found = []
    for group in range(0, len(depths), _RUNGS_AT_ONCE):
        some = depths[group : group + _RUNGS_AT_ONCE]
        began = time.perf_counter()
        stacked = carriers[group : group + len(some)].reshape(-1, carriers.shape[2])
        rows = logits(prepared.plan, prepared.backend, stacked)
        read = time.perf_counter()
        for number, depth in enumerate(some):
            ours = rows[number * count : (number + 1) * count]
            found.append(score_rows(target, ours, f"depth {depth}", first))
        spent[1] += read - began
        spent[2] += time.perf_counter() - read
    return found
