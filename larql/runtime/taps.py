"""Taps: what one walk through the layers leaves behind for observers.

A carrier write is one block's sum into the carrier; write 0 is the embedding, and one write for
each executed block follows. The traversal tells its taps of each; they keep a copy of the carrier
after it, and may change the carrier. Inside a block the backend keeps what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.format.graph import Block, LatentAttention, RoutedFfn, SoftmaxAttention
from larql.runtime.expert_trace import ExpertTrace
from larql.runtime.plan import Plan

__all__ = ["BlockTaps", "Changes", "Keep", "Routing", "Taps", "tell"]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
# Copies all elements of the first array to the second; on a recorded walk, when it is run.
Copy = Callable[[Any, Float32], None]
# Changes a carrier in place: number of the write, carrier before it and after it, [T, hidden].
Changes = Callable[[int, Float32, Float32], None]


def _copy(source: npt.NDArray[Any], target: Float32) -> None:
    target[...] = source


@dataclass(frozen=True)
class Keep:
    """What blocks leave behind beside the carrier.

    Attributes
    ----------
    heads : bool
        Each attention head's mixed values, before the output projection.
    queries : bool
        Each attention head's query, after norm and rotation; of latent attention as it is carried
        over to latent rows. Also how each head mixes the profiles of a distance bias.
    experts : bool
        Everything between a routed block's input and its output.
    stages : bool
        What each operation of a block gives, by name.
    """

    heads: bool = False
    queries: bool = False
    experts: bool = False
    stages: bool = False


@dataclass(frozen=True)
class Routing:
    """How a routed feed-forward block chose its experts, for T positions.

    Attributes
    ----------
    scores : float32 ``[T, experts]``
        What the router ranks experts by.
    chosen : int64 ``[T, k]``
        In selection order.
    weights : float32 ``[T, k]``
        Factors of the chosen experts' outputs.
    """

    scores: Float32
    chosen: npt.NDArray[np.int64]
    weights: Float32


class BlockTaps:
    """What one block leaves behind.

    Attributes
    ----------
    heads : float32 ``[T, heads, value_dim]`` or None
        To be filled by the backend where it is there.
    queries : float32 ``[T, heads, key_dim]`` or None
        To be filled by the backend where it is there.
    mixes : float32 ``[T, heads, profiles]`` or None
        To be filled by the backend where it is there: with the queries, of a distance bias.
    routing : Routing or None
        Set by the backend where it routes.
    experts : ExpertTrace or None
        To be filled by the backend where it is there.
    stages : mapping or None
        By name, in the order of execution: float32, positions first. Filled by :func:`tell`.
    """

    def __init__(self, block: Block, count: int, keep: Keep, copy: Copy = _copy) -> None:
        self.heads: Float32 | None = None
        self.queries: Float32 | None = None
        self.mixes: Float32 | None = None
        self.routing: Routing | None = None
        self.stages: dict[str, Float32] | None = {} if keep.stages else None
        self._copy = copy
        mixer = block.mixer
        traced = keep.experts and isinstance(mixer, RoutedFfn)
        self.experts: ExpertTrace | None = ExpertTrace() if traced else None
        if isinstance(mixer, SoftmaxAttention | LatentAttention):
            if keep.heads:
                self.heads = np.empty((count, mixer.heads, mixer.value_dim), np.float32)
            if keep.queries:
                self.queries = np.empty((count, mixer.heads, mixer.key_dim), np.float32)
                if isinstance(mixer, SoftmaxAttention) and mixer.distance is not None:
                    shape = (count, mixer.heads, mixer.distance.count)
                    self.mixes = np.empty(shape, np.float32)

    def take(self, stage: str, rows: npt.NDArray[np.floating]) -> None:
        """Keep what an operation gave, in memory that stays: a recorded step fills it again."""
        assert self.stages is not None
        kept = self.stages.get(stage)
        if kept is None:
            kept = self.stages[stage] = np.empty(rows.shape, np.float32)
        self._copy(rows, kept)


def tell(
    taps: BlockTaps | None, stage: str, rows: npt.NDArray[np.floating] | Sequence[Float64]
) -> None:
    """Have what an operation gave kept, if anyone wants to know.

    Parameters
    ----------
    taps : BlockTaps or None
    stage : str
        Names the operation among those of its block.
    rows : floats ``[T, …]``, or a sequence of T
    """
    if taps is not None and taps.stages is not None:
        taps.take(stage, rows if isinstance(rows, np.ndarray) else np.stack(rows))


class Taps:
    """What a walk over T positions leaves behind.

    Parameters
    ----------
    plan : Plan
    count : int
        T.
    copy : callable
        The backend's copy of arrays.
    keep : Keep

    Attributes
    ----------
    carriers : float32 ``[writes, T, hidden]``
        The carrier after each write; index 0 is what entered the first layer.
    blocks : list of BlockTaps
        One for each executed block; the block of write w is ``blocks[w - 1]``.
    """

    def __init__(self, plan: Plan, count: int, copy: Copy, keep: Keep) -> None:
        executed = [block for layer in plan.layers for block in layer.blocks]
        shape = (len(executed) + 1, count, plan.component.hidden_size)
        self.carriers = np.empty(shape, np.float32)
        self.blocks: Sequence[BlockTaps] = [
            BlockTaps(block, count, keep, copy) for block in executed
        ]
        self._copy = copy
        self._write = 0
        self._changes: Changes | None = None

    @property
    def block(self) -> BlockTaps:
        """The taps of the block that runs next."""
        return self.blocks[self._write - 1]

    def change(self, changes: Changes | None) -> None:
        """Have the carrier of the walks to come changed, if ``changes`` is given."""
        self._changes = changes

    def begin(self, carrier: Float32) -> None:
        """Make ready for a walk, and take the carrier that it begins with as the first write."""
        self._write = 0
        self.wrote(carrier)

    def wrote(self, carrier: Float32) -> None:
        """Take the carrier after the next write, and change it where that was asked for."""
        kept = self.carriers[self._write]
        if self._changes is not None:
            before = self.carriers[self._write - 1] if self._write else np.zeros_like(carrier)
            self._changes(self._write, before, carrier)
        self._copy(carrier, kept)
        self._write += 1
