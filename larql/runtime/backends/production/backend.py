"""The fast executor: Numba kernels over mapped weights.

Under the ``f32`` policy activations stay float32. Under ``q8`` what a block-encoded matrix is
multiplied with is rounded once to int8 per block of 32, and shared by all matrices that read it.
Keys and values are kept as float32, or rounded to binary16 when they are written.

This module imports the kernels, whose environment must be settled before: see
:func:`larql.runtime.backends.registry.make_backend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from larql.format.graph import (
    Block,
    ConvolutionRows,
    DraftInput,
    Embed,
    ExpertBank,
    Head,
    LatentAttention,
    LatentRows,
    PerLayerTable,
    Recurrent,
    SoftmaxAttention,
    StateSpec,
)
from larql.kernels import compiler, setup
from larql.kernels.copy import copy
from larql.kernels.elementwise import add_scaled, scale, softcap
from larql.kernels.embedding import gather
from larql.kernels.likelihood import log_sum_exp, logarithm
from larql.kernels.ring import empty_keys, empty_values
from larql.kernels.rounding import Empty
from larql.kernels.softmax import BLOCK
from larql.kernels.survey import Survey, survey
from larql.kernels.vector import LANES
from larql.runtime.backends.base import KV_NUMERICS, Backend, Carrier
from larql.runtime.backends.pattern import attention_weights
from larql.runtime.backends.production.arithmetic import Arithmetic, Calls, Vectors
from larql.runtime.backends.production.experts import FEW, Experts
from larql.runtime.backends.production.mixers import mix
from larql.runtime.backends.production.recurrence import convolved, whole
from larql.runtime.backends.step_program import StepProgram
from larql.runtime.latent_region import LatentRegion, as_keys_and_values
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.plan import Plan
from larql.runtime.readout import HeadReadout
from larql.runtime.regions import KvRegion, Region, needed_rows
from larql.runtime.routes import ExpertRoute, LeftOutNotes
from larql.runtime.state import State
from larql.runtime.taps import BlockTaps, tell
from larql.runtime.token_inputs import LayerInputs
from larql.runtime.whole_regions import StripRegion, WholeRegion

__all__ = ["ProductionBackend"]

Float32 = npt.NDArray[np.float32]

_CHUNK = 512
_RECORDED = 32  # positions; for more, what Python does is little beside the arithmetic
_VOCABULARY_BLOCK = 8192  # logits of a few dozen rows stay in the second-level cache
_NUMERICS = {
    "f32": "float32 arithmetic, exact dequantised weights, float32 carrier",
    "q8": (
        "activations of block-encoded matrices rounded to int8 per 32, integer products, float32 "
        "sums and carrier"
    ),
}
# Of what the kernels say of themselves, what could have to do with a number.
_FACTS = ("isa", "cpu_name", "cpu_features", "threading_layer", "numba", "llvmlite")


class ProductionBackend(Backend):
    """Executes with Numba kernels; see the module.

    Parameters
    ----------
    threads : int
        What the kernels have been set to.
    activations : str
        ``f32`` or ``q8``.
    kv : str
        ``f32`` or ``f16``.
    """

    name = "production"
    default_chunk = _CHUNK

    def __init__(self, threads: int, activations: str, kv: str) -> None:
        self.threads = threads
        self.activations = activations
        self.kv = kv
        self.numerics = _NUMERICS[activations] + KV_NUMERICS[kv]
        self._arithmetic = Arithmetic(activations)
        self._steps: WeakKeyDictionary[State, dict[int, StepProgram | None]] = WeakKeyDictionary()

    def environment(self) -> dict[str, object]:
        """Return instruction set and compiler versions."""
        facts = setup.features()
        return {name: facts[name] for name in _FACTS}

    def bind(self, operand: StoredOperand) -> None:
        """Keep a matrix as mapped bytes, and a vector decoded."""
        self._arithmetic.bind(operand)

    def bind_experts(self, bank: ExpertBank, operands: Mapping[str, StoredBank]) -> Experts:
        """Keep the mapped bytes of the experts that are here."""
        return Experts(bank, operands, self._arithmetic)

    def take_route(self, bank: ExpertBank, route: ExpertRoute) -> None:
        """Reach a bank's experts by a route from now on."""
        self._arithmetic.routes[bank.down] = route
        self._steps.clear()  # those recorded before reach others

    def region(self, spec: StateSpec, context: int, block: int) -> Region:
        """Make a region in the order in which the kernels read it."""
        if isinstance(spec, ConvolutionRows):
            return WholeRegion.plain(spec, np.float32)
        if isinstance(spec, Recurrent):
            return StripRegion(spec, LANES)
        rows = as_keys_and_values(spec) if isinstance(spec, LatentRows) else spec
        count = -(-needed_rows(rows, context, block) // BLOCK)
        kept = KvRegion(
            rows,
            BLOCK,
            empty_keys(count, rows.heads, rows.key_dim, self.kv),
            empty_values(count, rows.heads, rows.value_dim, self.kv),
        )
        return LatentRegion(spec, kept) if isinstance(spec, LatentRows) else kept

    def embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        """Decode the rows of the ids and scale them."""
        ids = np.ascontiguousarray(ids)
        if len(ids) == 1 and 0 <= ids[0] < op.vocab:
            return self._again(op, partial(self._embed, op), ids)
        return self._embed(op, ids)

    def _embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        operand = self._arithmetic.operands[op.weight]
        out = np.empty((len(ids), op.width), np.float32)
        gather(operand.data, operand.encoding.name, op.vocab, op.width, ids, op.scale, out)
        return self._arithmetic.norm(op.norm, out, np.empty)

    def draft_input(self, op: DraftInput, embedded: Carrier, hidden: Float32) -> Carrier:
        """Normalise both halves, put them side by side, and project."""
        self._arithmetic.memory.restart()
        halves = {
            "embedding": self._arithmetic.norm(op.embedding_norm, embedded),
            "hidden": self._arithmetic.norm(op.hidden_norm, hidden),
        }
        first = halves.pop(op.first)
        (second,) = halves.values()
        both = np.concatenate([first, second], axis=1)
        return self._arithmetic.linear(op.projection, both).copy()

    def look_up(self, table: PerLayerTable, ids: npt.NDArray[np.int64]) -> Float32:
        """Decode the rows of the ids and scale them."""
        operand = self._arithmetic.operands[table.weight]
        columns = table.layers * table.width
        out = np.empty((len(ids), columns), np.float32)
        gather(
            operand.data, operand.encoding.name, table.vocab, columns,
            np.ascontiguousarray(ids), table.scale, out,
        )  # fmt: skip
        by_layer = out.reshape(len(ids), table.layers, table.width).transpose(1, 0, 2)
        return np.ascontiguousarray(by_layer)

    def repeats(self, count: int) -> bool:
        """Return whether so many positions are recorded.

        Which experts a position reads is decided between kernels, and by kernels. That takes
        experts that are bound here, and few positions; others are walked.
        """
        routes = self._arithmetic.routes.values()
        if not routes:
            return count <= _RECORDED
        return count <= FEW and all(isinstance(r, Experts) and r.resident.any() for r in routes)

    def advance(
        self, walk: Callable[[Carrier], Carrier], plan: Plan, state: State, carrier: Carrier
    ) -> Carrier:
        """Walk the layers; for few positions, by a recorded program where there is one.

        Interpreting the walk costs more time than a small model's arithmetic. The calls of so
        many positions differ by the first one alone, so they are recorded once for a state.
        """
        compiler.release()  # before weights take its place; again when more has been compiled
        count = len(carrier)
        if not self.repeats(count):
            return walk(carrier)
        steps = self._steps.setdefault(state, {1: None})
        if count not in steps:
            steps[count] = None  # a prompt, which is seldom followed by another of its length
            return walk(carrier)
        step = steps[count]
        if step is None or not step.fits():
            step = steps[count] = self._recorded(walk, carrier, state.length)
        made = step.run(carrier, state.length)
        return walk(carrier) if made is None else made

    def _recorded(
        self, walk: Callable[[npt.NDArray[Any]], Float32], given: npt.NDArray[Any], position: int
    ) -> StepProgram:
        # The program goes on using what its calls share, whichever thread runs it.
        recorded = Calls(recorded=True)
        assert recorded.doubts is not None
        calls = self._arithmetic.exchange(recorded)
        try:
            return StepProgram(walk, given, position, recorded.doubts)
        finally:
            self._arithmetic.exchange(calls)

    def _again(
        self, op: Embed | Head, walk: Callable[[npt.NDArray[Any]], Float32], given: npt.NDArray[Any]
    ) -> Float32:
        """Make an operation's calls for one position; from the second time on, recorded ones."""
        calls = self._arithmetic.calls
        program = None if calls.doubts is not None else calls.programs.get(op)
        if program is None or not program.fits():
            if calls.doubts is not None or op not in calls.programs:
                calls.programs.setdefault(op, None)
                return walk(given)
            program = calls.programs[op] = self._recorded(walk, given, 0)
        made = program.run(given, 0)
        return walk(given) if made is None else made

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
        """Run one block and add its output."""
        self._arithmetic.memory.restart()
        inputs = self._arithmetic.norm(block.norm, carrier)
        tell(taps, "norm", inputs)
        inner = regions if block.conv is None else regions[:-1]
        delta = mix(block.mixer, inputs, inner, start, taps, self._arithmetic, tokens, notes)
        if block.conv is not None:
            (rows,) = whole(regions[-1:])
            (delta,) = convolved([(block.conv, rows, delta)], self._arithmetic)
        delta = self._arithmetic.norm(block.post_norm, delta)
        tell(taps, "output", delta)
        carrier = np.ascontiguousarray(carrier)
        add_scaled(carrier, delta, block.residual_scale)
        if block.carrier_scale is not None:
            scale(carrier, float(self._arithmetic.vectors[block.carrier_scale][0]))
        return carrier

    def final_norm(self, op: Head, carrier: Carrier) -> Float32:
        """Return the head's norm of each position."""
        return self._arithmetic.norm(op.norm, carrier, np.empty)

    def logits(self, op: Head, carrier: Carrier) -> Float32:
        """Return the logits of each position."""
        if len(carrier) == 1:
            return self._again(op, partial(self._logits, op), carrier)
        return self._logits(op, carrier)

    def _logits(self, op: Head, carrier: Carrier) -> Float32:
        self._arithmetic.memory.restart()
        return self._head(op, self._rows(op), self._head_inputs(op, carrier))

    def read_out(
        self, op: Head, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
    ) -> HeadReadout:
        """Go over the vocabulary in blocks, for all positions at once."""
        self._arithmetic.memory.restart()
        rows, inputs = self._rows(op), self._head_inputs(op, carrier)
        marks = self._head(op, rows.rows_at(tokens), inputs)
        found = Survey.begin(tokens, marks, top)
        again = _one_place(len(marks) * _VOCABULARY_BLOCK)
        for first in range(0, op.vocab, _VOCABULARY_BLOCK):
            block = rows.rows_at(slice(first, first + _VOCABULARY_BLOCK))
            survey(self._head(op, block, inputs, again), first, found)
        columns, logits = found.top()
        return HeadReadout.of(
            marks,
            found.before + 1,
            columns,
            logits,
            found.largest + logarithm(found.total),
            found.broken,
        )

    def copy(self, source: Float32, target: Float32) -> None:
        """Copy an array by a kernel call, which a recorded step makes again."""
        copy(source, target)

    def attention_pattern(
        self,
        mixer: SoftmaxAttention | LatentAttention,
        queries: Float32,
        region: KvRegion,
        start: int,
        mixes: npt.NDArray[np.float32] | None = None,
    ) -> list[npt.NDArray[np.float64]]:
        """Compute the weights in float64, apart from the kernel that uses them."""
        sinks = None if mixer.sinks is None else self._arithmetic.vectors[mixer.sinks]
        near = None
        if mixes is not None:
            assert isinstance(mixer, SoftmaxAttention) and mixer.distance is not None
            near = mixes, self._arithmetic.matrix(mixer.distance.profiles)
        return attention_weights(mixer, queries, region, start, sinks, near)

    def log_sum_exp(self, rows: Float32) -> npt.NDArray[np.float64]:
        """Return ``log(sum(exp(row)))`` of each row."""
        return log_sum_exp(np.ascontiguousarray(rows))

    def _rows(self, op: Head) -> StoredOperand:
        """Return the rows of the vocabulary, which may be the first ones of a larger matrix."""
        stored = self._arithmetic.operands[op.weight]
        return stored if stored.shape[0] == op.vocab else stored.rows_at(slice(0, op.vocab))

    def _head_inputs(self, op: Head, carrier: Carrier) -> Vectors:
        return self._arithmetic.inputs(
            self._arithmetic.norm(op.norm, np.ascontiguousarray(carrier))
        )

    def _head(self, op: Head, rows: StoredOperand, x: Vectors, empty: Empty = np.empty) -> Float32:
        """Return the logits of some rows of the vocabulary, by default in memory of their own."""
        (logits,) = self._arithmetic.products([rows], x, empty)
        if op.multiplier != 1.0:
            scale(logits, op.multiplier)
        if op.softcap is not None:
            softcap(logits, op.softcap)
        return logits


def _one_place(size: int) -> Empty:
    """Return a maker of arrays of at most `size` float32, each in the place of the one before."""
    memory = np.empty(size, np.float32)

    def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Float32:
        return memory[: math.prod(shape)].reshape(shape)

    return empty
