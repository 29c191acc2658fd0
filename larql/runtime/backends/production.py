"""The fast executor: Numba kernels over mapped weights.

Under the ``f32`` policy activations stay float32. Under ``q8`` what a block-encoded matrix is
multiplied with is rounded once to int8 per block of 32, and shared by all matrices that read it.
Keys and values are kept as float32, or rounded to binary16 when they are written.

This module imports the kernels, whose environment must be settled before: see
:func:`larql.runtime.backends.registry.make_backend`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from larql.errors import UnsupportedRefusal
from larql.format.graph import (
    Block,
    DenseFfn,
    Embed,
    Head,
    KvRows,
    Linear,
    Norm,
    Rope,
    SoftmaxAttention,
)
from larql.kernels import compiler, setup
from larql.kernels.activation import activate, gate
from larql.kernels.attention import attend
from larql.kernels.copy import copy
from larql.kernels.elementwise import add_row, add_scaled, scale, softcap
from larql.kernels.embedding import gather
from larql.kernels.encodings import BLOCKS
from larql.kernels.likelihood import log_sum_exp, logarithm
from larql.kernels.norm import layer_norm, rms_norm
from larql.kernels.parts import Part
from larql.kernels.product import products
from larql.kernels.product_q8 import products_q8, takes_integers
from larql.kernels.ring import empty_keys, empty_values, write_rows
from larql.kernels.rope import inverse_frequencies, rotate, rotation_table
from larql.kernels.rounding import Empty, QuantizedRows, quantize_rows
from larql.kernels.softmax import BLOCK
from larql.kernels.survey import Survey, survey
from larql.runtime.backends.base import KV_NUMERICS, Backend, Carrier
from larql.runtime.backends.pattern import attention_weights
from larql.runtime.backends.step_program import StepProgram
from larql.runtime.backends.workspace import Workspace
from larql.runtime.operands import StoredOperand
from larql.runtime.plan import Plan
from larql.runtime.readout import HeadReadout
from larql.runtime.state import KvRegion, State, needed_rows
from larql.runtime.taps import BlockTaps

__all__ = ["ProductionBackend"]

Float32 = npt.NDArray[np.float32]

_CHUNK = 512
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


@dataclass(frozen=True)
class _Rotation:
    """cos and sin of a run of positions, float32 ``[T, dims / 2]``."""

    start: int
    cos: Float32
    sin: Float32


@dataclass(frozen=True)
class _Vectors:
    """Activations ``[T, K]``, and rounded to int8 once, when a product first asks for that."""

    exact: Float32
    memory: Workspace

    @cached_property
    def rounded(self) -> QuantizedRows:
        return quantize_rows(self.exact, self.memory.take)


class _Calls:
    """What some calls share: their memory, and the rotations of the run of positions at hand."""

    def __init__(self) -> None:
        self.memory = Workspace()
        self.rotations: dict[Rope, _Rotation] = {}


class _OfThread(threading.local):
    """What the calls of one Python thread share; a program's calls have something of their own."""

    def __init__(self) -> None:
        self.calls = _Calls()


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
        self._operands: dict[str, StoredOperand] = {}
        self._vectors: dict[str, Float32] = {}
        self._frequencies: dict[Rope, npt.NDArray[np.float64]] = {}
        self._steps: WeakKeyDictionary[State, StepProgram] = WeakKeyDictionary()
        self._of_thread = _OfThread()

    def environment(self) -> dict[str, object]:
        """Return instruction set and compiler versions."""
        facts = setup.features()
        return {name: facts[name] for name in _FACTS}

    def bind(self, operand: StoredOperand) -> None:
        """Keep a matrix as mapped bytes, and a vector decoded."""
        if operand.encoding.name not in BLOCKS:
            raise UnsupportedRefusal(
                f"operand {operand.name}: no production kernel for {operand.encoding.name}; run "
                f"with --backend reference"
            )
        self._operands[operand.name] = operand
        if len(operand.shape) == 1:
            self._vectors[operand.name] = _decoded(operand)

    def region(self, spec: KvRows, context: int, block: int) -> KvRegion:
        """Make a region of blocks, in the order in which attention reads them."""
        count = -(-needed_rows(spec, context, block) // BLOCK)
        return KvRegion(
            spec,
            BLOCK,
            empty_keys(count, spec.heads, spec.key_dim, self.kv),
            empty_values(count, spec.heads, spec.value_dim, self.kv),
        )

    def embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        """Decode the rows of the ids and scale them."""
        operand = self._operands[op.weight]
        out = np.empty((len(ids), op.width), np.float32)
        gather(
            operand.data, operand.encoding.name, op.vocab, op.width,
            np.ascontiguousarray(ids), op.scale, out,
        )  # fmt: skip
        return out

    def advance(
        self, walk: Callable[[Carrier], Carrier], plan: Plan, state: State, carrier: Carrier
    ) -> Carrier:
        """Walk the layers; for a single position, by a recorded program where there is one.

        Interpreting the walk costs more time than a small model's arithmetic. The calls of single
        positions differ by the position alone, so they are recorded once for a state.
        """
        compiler.release()  # before weights take its place; again when more has been compiled
        if len(carrier) != 1:
            return walk(carrier)
        step = self._steps.get(state)
        if step is None or not step.fits():
            # The program goes on using what its calls share, whichever thread runs it.
            calls, self._of_thread.calls = self._of_thread.calls, _Calls()
            try:
                step = StepProgram(walk, carrier, state.length)
            finally:
                self._of_thread.calls = calls
            self._steps[state] = step
        return step.run(carrier, state.length)

    def write(
        self,
        block: Block,
        carrier: Carrier,
        region: KvRegion | None,
        start: int,
        taps: BlockTaps | None = None,
    ) -> Carrier:
        """Run one block and add its output."""
        self._memory.restart()
        inputs = self._norm(block.norm, carrier)
        mixer = block.mixer
        if isinstance(mixer, DenseFfn):
            delta = self._ffn(mixer, inputs)
        elif region is not None:
            delta = self._attention(mixer, inputs, region, start, taps)
        else:
            raise AssertionError("attention runs with a region")
        delta = self._norm(block.post_norm, delta)
        carrier = np.ascontiguousarray(carrier)
        add_scaled(carrier, delta, block.residual_scale)
        return carrier

    @property
    def _memory(self) -> Workspace:
        return self._of_thread.calls.memory

    def final_norm(self, op: Head, carrier: Carrier) -> Float32:
        """Return the head's norm of each position."""
        return self._norm(op.norm, carrier, np.empty)

    def logits(self, op: Head, carrier: Carrier) -> Float32:
        """Return the logits of each position."""
        self._memory.restart()
        return self._head(op, self._operands[op.weight], self._head_inputs(op, carrier))

    def read_out(
        self, op: Head, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
    ) -> HeadReadout:
        """Go over the vocabulary in blocks, for all positions at once."""
        self._memory.restart()
        whole, inputs = self._operands[op.weight], self._head_inputs(op, carrier)
        marks = self._head(op, whole.rows_at(tokens), inputs)
        found = Survey.begin(tokens, marks, top)
        again = _one_place(len(marks) * _VOCABULARY_BLOCK)
        for first in range(0, op.vocab, _VOCABULARY_BLOCK):
            block = whole.rows_at(slice(first, first + _VOCABULARY_BLOCK))
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
        self, mixer: SoftmaxAttention, queries: Float32, region: KvRegion, start: int
    ) -> list[npt.NDArray[np.float64]]:
        """Compute the weights in float64, apart from the kernel that uses them."""
        return attention_weights(mixer, queries, region, start)

    def log_sum_exp(self, rows: Float32) -> npt.NDArray[np.float64]:
        """Return ``log(sum(exp(row)))`` of each row."""
        return log_sum_exp(np.ascontiguousarray(rows))

    def _head_inputs(self, op: Head, carrier: Carrier) -> _Vectors:
        return self._inputs(self._norm(op.norm, np.ascontiguousarray(carrier)))

    def _head(self, op: Head, rows: StoredOperand, x: _Vectors, empty: Empty = np.empty) -> Float32:
        """Return the logits of some rows of the vocabulary, by default in memory of their own."""
        (logits,) = self._products([rows], x, empty)
        if op.multiplier != 1.0:
            scale(logits, op.multiplier)
        if op.softcap is not None:
            softcap(logits, op.softcap)
        return logits

    def _inputs(self, x: Float32) -> _Vectors:
        return _Vectors(x, self._memory)

    def _products(
        self, operands: Sequence[StoredOperand], x: _Vectors, empty: Empty | None = None
    ) -> list[Float32]:
        """Multiply matrices with the same vectors, in one job for each policy that applies."""
        exact: list[Part] = []
        rounded: list[Part] = []
        made = []
        for operand in operands:
            rows, columns = operand.shape
            out = (empty or self._memory.take)((len(x.exact), rows), np.float32)
            encoding = operand.encoding.name
            integers = self.activations == "q8" and takes_integers(encoding, columns)
            parts = rounded if integers else exact
            parts.append(Part(operand.data, encoding, rows, columns, out))
            made.append(out)
        if exact:
            products(exact, x.exact)
        if rounded:
            products_q8(rounded, x.rounded)
        return made

    def _linears(self, linears: Sequence[Linear], x: _Vectors) -> list[Float32]:
        made = self._products([self._operands[linear.weight] for linear in linears], x)
        for linear, out in zip(linears, made, strict=True):
            if linear.bias is not None:
                add_row(out, self._vectors[linear.bias])
        return made

    def _linear(self, linear: Linear, x: Float32) -> Float32:
        return self._linears([linear], self._inputs(x))[0]

    def _norm(self, norm: Norm | None, x: Float32, empty: Empty | None = None) -> Float32:
        """Normalise rows of ``x``, ``[n, width]``."""
        if norm is None:
            return x
        x = np.ascontiguousarray(x)
        out = (empty or self._memory.take)(x.shape, np.float32)
        weight = None if norm.weight is None else self._vectors[norm.weight]
        if norm.kind == "rms":
            rms_norm(x, weight, norm.offset, norm.eps, out)
        else:
            bias = None if norm.bias is None else self._vectors[norm.bias]
            layer_norm(x, weight, bias, norm.offset, norm.eps, out)
        return out

    def _ffn(self, mixer: DenseFfn, x: Float32) -> Float32:
        kind = "gelu_erf" if mixer.activation == "gelu" else mixer.activation
        if mixer.gate is None:
            up = self._linear(mixer.up, x)
            activate(up, kind, up)
        else:
            gated, up = self._linears([mixer.gate, mixer.up], self._inputs(x))
            gate(gated, up, kind, up)
        return self._linear(mixer.down, up)

    def _attention(
        self,
        mixer: SoftmaxAttention,
        x: Float32,
        region: KvRegion,
        start: int,
        taps: BlockTaps | None,
    ) -> Float32:
        count = len(x)
        q, k, v = self._linears([mixer.q, mixer.k, mixer.v], self._inputs(x))
        q = self._heads(q, mixer.heads, mixer.key_dim, mixer.q_norm)
        k = self._heads(k, mixer.kv_heads, mixer.key_dim, mixer.k_norm)
        v = v.reshape(count, mixer.kv_heads, mixer.value_dim)
        if mixer.rope is not None:
            rotation = self._rotation(mixer.rope, start, count)
            rotate(q, rotation.cos, rotation.sin, mixer.rope.layout)
            rotate(k, rotation.cos, rotation.sin, mixer.rope.layout)
        write_rows(k, v, region.keys, region.values, start)
        out = self._memory.take((count, mixer.heads, mixer.value_dim))
        attend(
            q, region.keys, region.values, start, mixer.window or 0, mixer.scale,
            mixer.softcap or 0.0, None, out,
        )  # fmt: skip
        if taps is not None and taps.heads is not None:
            copy(out, taps.heads)
        if taps is not None and taps.queries is not None:
            copy(q, taps.queries)
        return self._linear(mixer.o, out.reshape(count, -1))

    def _heads(self, x: Float32, heads: int, dim: int, norm: Norm | None) -> Float32:
        rows = self._norm(norm, x.reshape(-1, dim))
        return rows.reshape(len(x), heads, dim)

    def _rotation(self, rope: Rope, start: int, count: int) -> _Rotation:
        """Return cos and sin of positions ``start .. start + count``, shared by all layers."""
        rotations = self._of_thread.calls.rotations
        found = rotations.get(rope)
        if found is None or found.start != start or len(found.cos) != count:
            shape = (count, rope.dims // 2)
            found = _Rotation(start, np.empty(shape, np.float32), np.empty(shape, np.float32))
            rotation_table(self._radians(rope), start, count, found.cos, found.sin)
            rotations[rope] = found
        return found

    def _radians(self, rope: Rope) -> npt.NDArray[np.float64]:
        """Return radians per position of each rotated pair; + - * / of exact frequencies only."""
        if rope not in self._frequencies:
            frequencies = inverse_frequencies(rope.theta, rope.dims)
            scaling = rope.scaling
            if scaling is not None and scaling.kind == "linear":
                frequencies = frequencies / scaling.factor
            elif scaling is not None:
                frequencies = np.array(_llama3(frequencies, rope))
            if rope.factors is not None:
                frequencies = frequencies / self._vectors[rope.factors].astype(np.float64)
            self._frequencies[rope] = np.ascontiguousarray(frequencies)
        return self._frequencies[rope]


def _one_place(size: int) -> Empty:
    """Return a maker of arrays of at most `size` float32, each in the place of the one before."""
    memory = np.empty(size, np.float32)

    def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Float32:
        return memory[: math.prod(shape)].reshape(shape)

    return empty


def _decoded(operand: StoredOperand) -> Float32:
    """Return a vector as float32, exactly."""
    from larql.format.codec import decode

    return np.ascontiguousarray(decode(operand.encoding, operand.data, operand.shape[0]))


def _llama3(frequencies: Sequence[float] | npt.NDArray[np.float64], rope: Rope) -> list[float]:
    """Return frequencies with long wavelengths stretched, short ones kept, a blend between."""
    scaling = rope.scaling
    assert scaling is not None and scaling.low_freq_factor and scaling.high_freq_factor
    assert scaling.original_context
    found = []
    for frequency in map(float, frequencies):
        turns = scaling.original_context * frequency / (2.0 * math.pi)
        blend = (turns - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        blend = min(1.0, max(0.0, blend))
        found.append((1.0 - blend) * frequency / scaling.factor + blend * frequency)
    return found
