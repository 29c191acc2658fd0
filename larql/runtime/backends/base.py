"""What an executor asks of a backend: the vocabulary's operations over prepared operands.

A carrier is a float32 array ``[positions, hidden]`` in every backend, so that hidden states pass
between slices, processes and files without changing a bit; what a backend computes inside an
operation is its own affair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.format.graph import (
    Block,
    DraftInput,
    Embed,
    ExpertBank,
    Head,
    LatentAttention,
    PerLayerTable,
    SoftmaxAttention,
    StateSpec,
)
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.readout import HeadReadout
from larql.runtime.regions import KvRegion, Region
from larql.runtime.routes import BoundExperts, ExpertRoute, LeftOutNotes
from larql.runtime.state import State

if TYPE_CHECKING:
    from larql.runtime.plan import Plan
    from larql.runtime.taps import BlockTaps
    from larql.runtime.token_inputs import LayerInputs

__all__ = ["KV_NUMERICS", "Backend", "Carrier"]

Carrier = npt.NDArray[np.float32]

# What a form of keys and values adds to how a backend computes, in words.
KV_NUMERICS = {"f32": "", "f16": ", keys and values rounded to binary16"}


class Backend(ABC):
    """Executes operations whose operands it was given before.

    Attributes
    ----------
    name : str
        ``reference`` or ``production``.
    numerics : str
        How it computes, in words, for provenance.
    threads : int
        Threads that it computes with.
    activations : str
        ``f32``, or ``q8`` where activations are rounded to int8 for products.
    kv : str
        ``f32``, or ``f16`` where keys and values are rounded to binary16 when they are kept.
    default_chunk : int
        Positions that it advances at once unless told otherwise.
    """

    name: str
    numerics: str
    threads: int
    activations: str
    kv: str
    default_chunk: int

    @abstractmethod
    def environment(self) -> dict[str, object]:
        """Return versions and instruction set, for provenance."""

    @abstractmethod
    def bind(self, operand: StoredOperand) -> None:
        """Take an operand; the stored bytes stay mapped.

        Raises
        ------
        UnsupportedRefusal
            If the backend has no code for the operand's encoding.
        """

    @abstractmethod
    def bind_experts(self, bank: ExpertBank, operands: Mapping[str, StoredBank]) -> BoundExperts:
        """Bind a bank of experts; the stored bytes stay mapped.

        Parameters
        ----------
        bank : ExpertBank
        operands : mapping
            The bank's operands by name; experts of which a region is missing are not resident.

        Returns
        -------
        BoundExperts
            The route to them, which is not taken before :meth:`take_route` is told of it.

        Raises
        ------
        UnsupportedRefusal
            If the backend has no code for an operand's encoding.
        """

    @abstractmethod
    def take_route(self, bank: ExpertBank, route: ExpertRoute) -> None:
        """Reach a bank's experts by a route from now on."""

    @abstractmethod
    def region(self, spec: StateSpec, context: int, block: int) -> Region:
        """Make a region of continuation state, as of no positions.

        Parameters
        ----------
        spec : StateSpec
            Kind and geometry from the plan.
        context : int
            Most positions that the session will hold.
        block : int
            Most positions that are advanced at once.
        """

    @abstractmethod
    def embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        """Look rows up: ids ``[T]`` to a carrier ``[T, hidden]``."""

    @abstractmethod
    def draft_input(
        self, op: DraftInput, embedded: Carrier, hidden: npt.NDArray[np.float32]
    ) -> Carrier:
        """Return what enters a component that drafts, float32 ``[T, hidden]``.

        Parameters
        ----------
        op : DraftInput
        embedded : float32 ``[T, hidden]``
            Embeddings of the tokens behind the positions.
        hidden : float32 ``[T, hidden]``
            The producer's tap at the positions.
        """

    @abstractmethod
    def look_up(self, table: PerLayerTable, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the rows of ids ``[T]``, scaled, float32 ``[layers, T, width]``."""

    @abstractmethod
    def write(
        self,
        block: Block,
        carrier: Carrier,
        regions: Sequence[Region],
        start: int,
        taps: BlockTaps | None = None,
        tokens: LayerInputs | None = None,
        notes: LeftOutNotes | None = None,
    ) -> Carrier:
        """Run one block and add its output to the carrier.

        Parameters
        ----------
        block : Block
        carrier : float32 ``[T, hidden]``
            Positions ``start .. start + T``. The array may be changed and returned.
        regions : sequence of Region
            The block's continuation state, as its ``state`` lists it; the positions are
            added to it.
        start : int
            Absolute position of the first row.
        taps : BlockTaps or None
            Where an observer wants what the block computes on its way.
        tokens : LayerInputs or None
            What the tokens give to the layer, where the component has a table for that.
        notes : LeftOutNotes or None
            Where positions that go without their experts are noted; None: they are refused.

        Returns
        -------
        float32 ``[T, hidden]``
        """

    def copy(self, source: npt.NDArray[np.float32], target: npt.NDArray[np.float32]) -> None:
        """Copy an array, as one of the operations of a walk."""
        target[...] = source

    @abstractmethod
    def attention_pattern(
        self,
        mixer: SoftmaxAttention | LatentAttention,
        queries: npt.NDArray[np.float32],
        region: KvRegion,
        start: int,
        mixes: npt.NDArray[np.float32] | None = None,
    ) -> list[npt.NDArray[np.float64]]:
        """Return the softmax weights of positions ``start, start + 1, …``, the last ones written.

        Parameters
        ----------
        mixer : SoftmaxAttention or LatentAttention
        queries : float32 ``[T, heads, key_dim]``
            From the block's taps.
        region : KvRegion
            The block's state, in which the positions' rows are stored.
        start : int
        mixes : float32 ``[T, heads, profiles]`` or None
            From the block's taps, where the mixer has a distance bias.

        Returns
        -------
        list of float64 ``[heads, n]``
            For each position, a weight for each position that it sees, ascending.
        """

    def repeats(self, count: int) -> bool:
        """Return whether a walk over ``count`` positions may be remembered and made again.

        Then what walks over so many positions of one state read beside the carrier, and what they
        copy to, has to stay in its place.
        """
        return False

    def advance(
        self, walk: Callable[[Carrier], Carrier], plan: Plan, state: State, carrier: Carrier
    ) -> Carrier:
        """Carry hidden states through a plan's layers.

        Parameters
        ----------
        walk : callable
            The traversal of the layers, which calls this backend's operations in order.
        plan : Plan
            What the traversal executes.
        state : State
            Where its rows are stored; the first position is ``state.length``.
        carrier : float32 ``[T, hidden]``

        Returns
        -------
        float32 ``[T, hidden]``
            What ``walk(carrier)`` returns. A backend may remember the calls of one traversal and
            make them again instead of walking.
        """
        return walk(carrier)

    @abstractmethod
    def final_norm(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the head's norm of a carrier, float32 ``[T, hidden]``."""

    @abstractmethod
    def logits(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the logits of a carrier: norm, product, multiplier, softcap; ``[T, vocab]``."""

    @abstractmethod
    def read_out(
        self, op: Head, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
    ) -> HeadReadout:
        """Read a softmax over the vocabulary at some tokens and at the likeliest.

        Parameters
        ----------
        op : Head
        carrier : float32 ``[T, hidden]``
        tokens : int64 ``[m]``
        top : int
            How many of the largest logits to tell, at least 1.

        Returns
        -------
        HeadReadout
            Of the logits that :meth:`logits` gives, bit for bit.
        """

    @abstractmethod
    def log_sum_exp(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return ``log(sum(exp(row)))`` of each row of logits, float64 ``[T]``."""
