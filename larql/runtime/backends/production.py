"""The fast executor: Numba kernels over mapped weights.

Under the ``f32`` policy activations stay float32. Under ``q8`` what a block-encoded matrix is
multiplied with is rounded once to int8 per block of 32, and shared by all matrices that read it.

This module imports the kernels, whose environment must be settled before: see
:func:`larql.runtime.backends.registry.make_backend`.
"""

from __future__ import annotations

import math
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
from larql.kernels import setup
from larql.kernels.activation import activate, gate
from larql.kernels.attention import attend
from larql.kernels.copy import copy
from larql.kernels.elementwise import add_row, add_scaled, scale, softcap
from larql.kernels.embedding import gather
from larql.kernels.encodings import BLOCKS
from larql.kernels.likelihood import log_sum_exp, logarithm
from larql.kernels.norm import layer_norm, rms_norm
from larql.kernels.product import product
from larql.kernels.product_q8 import QuantizedRows, product_q8, quantize_rows, takes_integers
from larql.kernels.ring import write_rows
from larql.kernels.rope import inverse_frequencies, rotate, rotation_table
from larql.kernels.survey import Survey, survey
from larql.runtime.backends.base import Backend, Carrier
from larql.runtime.backends.pattern import attention_weights
from larql.runtime.backends.step_program import StepProgram, step_key
from larql.runtime.operands import StoredOperand
from larql.runtime.plan import Plan
from larql.runtime.readout import HeadReadout
from larql.runtime.state import KvRegion, State
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

    @cached_property
    def rounded(self) -> QuantizedRows:
        return quantize_rows(self.exact)


class ProductionBackend(Backend):
    """Executes with Numba kernels; see the module.

    Parameters
    ----------
    threads : int
        What the kernels have been set to.
    activations : str
        ``f32`` or ``q8``.
    """

    name = "production"
    default_chunk = _CHUNK

    def __init__(self, threads: int, activations: str) -> None:
        self.threads = threads
        self.activations = activations
        self.numerics = _NUMERICS[activations]
        self._operands: dict[str, StoredOperand] = {}
        self._vectors: dict[str, Float32] = {}
        self._rotations: dict[Rope, _Rotation] = {}
        self._frequencies: dict[Rope, npt.NDArray[np.float64]] = {}
        self._steps: WeakKeyDictionary[State, StepProgram] = WeakKeyDictionary()

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
        """Make a float32 region."""
        return KvRegion(spec, context, block, np.float32)

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

        Interpreting the walk costs more time than a small model's arithmetic. The calls of a
        single position differ only by that position until attention spans another block of keys,
        so they are recorded once for each block.
        """
        if len(carrier) != 1:
            return walk(carrier)
        key = step_key(plan, state.length)
        step = self._steps.get(state)
        if step is None or not step.fits(key):
            rotations, self._rotations = self._rotations, {}
            try:
                step = StepProgram(key, walk, carrier, state.length)
            finally:
                self._rotations = rotations
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

    def final_norm(self, op: Head, carrier: Carrier) -> Float32:
        """Return the head's norm of each position."""
        return self._norm(op.norm, carrier)

    def logits(self, op: Head, carrier: Carrier) -> Float32:
        """Return the logits of each position."""
        return self._head(op, self._operands[op.weight], self._head_inputs(op, carrier))

    def read_out(
        self, op: Head, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
    ) -> HeadReadout:
        """Go over the vocabulary in blocks, for all positions at once."""
        whole, inputs = self._operands[op.weight], self._head_inputs(op, carrier)
        marks = self._head(op, whole.rows_at(tokens), inputs)
        found = Survey.begin(tokens, marks, top)
        for first in range(0, op.vocab, _VOCABULARY_BLOCK):
            block = whole.rows_at(slice(first, first + _VOCABULARY_BLOCK))
            survey(self._head(op, block, inputs), first, found)
        return HeadReadout.of(
            marks,
            found.before + 1,
            found.top_columns,
            found.top_logits,
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
        return _Vectors(self._norm(op.norm, np.ascontiguousarray(carrier)))

    def _head(self, op: Head, rows: StoredOperand, x: _Vectors) -> Float32:
        """Return the logits of some rows of the vocabulary."""
        logits = self._multiplied(rows, x)
        if op.multiplier != 1.0:
            scale(logits, op.multiplier)
        if op.softcap is not None:
            softcap(logits, op.softcap)
        return logits

    def _product(self, name: str, x: _Vectors) -> Float32:
        return self._multiplied(self._operands[name], x)

    def _multiplied(self, operand: StoredOperand, x: _Vectors) -> Float32:
        rows, columns = operand.shape
        out = np.empty((len(x.exact), rows), np.float32)
        if self.activations == "q8" and takes_integers(operand.encoding.name, columns):
            product_q8(operand.data, operand.encoding.name, rows, columns, x.rounded, out)
        else:
            product(operand.data, operand.encoding.name, rows, columns, x.exact, out)
        return out

    def _linear(self, linear: Linear, x: _Vectors) -> Float32:
        out = self._product(linear.weight, x)
        if linear.bias is not None:
            add_row(out, self._vectors[linear.bias])
        return out

    def _norm(self, norm: Norm | None, x: Float32) -> Float32:
        """Normalise rows of ``x``, ``[n, width]``."""
        if norm is None:
            return x
        x = np.ascontiguousarray(x)
        out = np.empty_like(x)
        weight = None if norm.weight is None else self._vectors[norm.weight]
        if norm.kind == "rms":
            rms_norm(x, weight, norm.offset, norm.eps, out)
        else:
            bias = None if norm.bias is None else self._vectors[norm.bias]
            layer_norm(x, weight, bias, norm.offset, norm.eps, out)
        return out

    def _ffn(self, mixer: DenseFfn, x: Float32) -> Float32:
        kind = "gelu_erf" if mixer.activation == "gelu" else mixer.activation
        inputs = _Vectors(x)
        up = self._linear(mixer.up, inputs)
        if mixer.gate is None:
            activate(up, kind, up)
        else:
            gate(self._linear(mixer.gate, inputs), up, kind, up)
        return self._linear(mixer.down, _Vectors(up))

    def _attention(
        self,
        mixer: SoftmaxAttention,
        x: Float32,
        region: KvRegion,
        start: int,
        taps: BlockTaps | None,
    ) -> Float32:
        count, inputs = len(x), _Vectors(x)
        q = self._heads(self._linear(mixer.q, inputs), mixer.heads, mixer.key_dim, mixer.q_norm)
        k = self._heads(self._linear(mixer.k, inputs), mixer.kv_heads, mixer.key_dim, mixer.k_norm)
        v = self._linear(mixer.v, inputs).reshape(count, mixer.kv_heads, mixer.value_dim)
        if mixer.rope is not None:
            rotation = self._rotation(mixer.rope, start, count)
            rotate(q, rotation.cos, rotation.sin, mixer.rope.layout)
            rotate(k, rotation.cos, rotation.sin, mixer.rope.layout)
        write_rows(k.reshape(count, -1), region.rows(region.keys), start)
        write_rows(v.reshape(count, -1), region.rows(region.values), start)
        out = np.empty((count, mixer.heads, mixer.value_dim), np.float32)
        attend(
            q, region.keys, region.values, start, mixer.window or 0, mixer.scale,
            mixer.softcap or 0.0, None, out,
        )  # fmt: skip
        if taps is not None and taps.heads is not None:
            copy(out, taps.heads)
        if taps is not None and taps.queries is not None:
            copy(q, taps.queries)
        return self._linear(mixer.o, _Vectors(out.reshape(count, -1)))

    def _heads(self, x: Float32, heads: int, dim: int, norm: Norm | None) -> Float32:
        rows = self._norm(norm, x.reshape(-1, dim))
        return rows.reshape(len(x), heads, dim)

    def _rotation(self, rope: Rope, start: int, count: int) -> _Rotation:
        """Return cos and sin of positions ``start .. start + count``, shared by all layers."""
        found = self._rotations.get(rope)
        if found is None or found.start != start or len(found.cos) != count:
            shape = (count, rope.dims // 2)
            found = _Rotation(start, np.empty(shape, np.float32), np.empty(shape, np.float32))
            rotation_table(self._radians(rope), start, count, found.cos, found.sin)
            self._rotations[rope] = found
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
