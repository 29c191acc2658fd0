"""The oracle: plain NumPy in float64, one position at a time, written to be read.

It shares no arithmetic with the production kernels. Weights are decoded a block of rows at a time
and each position is a product of its own, so a position's result does not depend on how many are
advanced together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from larql.format.codec import decode
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
from larql.runtime.backends.base import KV_NUMERICS, Backend, Carrier
from larql.runtime.operands import StoredOperand
from larql.runtime.readout import HeadReadout
from larql.runtime.state import KvRegion, RowRegion
from larql.runtime.taps import BlockTaps

__all__ = ["ReferenceBackend"]

Float64 = npt.NDArray[np.float64]

_BLOCK_ELEMENTS = 1 << 20
_NUMERICS = "float64 arithmetic, exact dequantised weights, float32 carrier"


def _sigmoid(x: Float64) -> Float64:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu_tanh(x: Float64) -> Float64:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1.0 + np.tanh(inner))


def _gelu(x: Float64) -> Float64:
    return 0.5 * x * (1.0 + np.array([math.erf(v / math.sqrt(2.0)) for v in x]))


_ACTIVATIONS: Mapping[str, Callable[[Float64], Float64]] = {
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
    "sigmoid": _sigmoid,
}


class ReferenceBackend(Backend):
    """Plain NumPy in float64; see the module.

    Parameters
    ----------
    kv : str
        ``f32``, under which keys and values stay float64 as all else does, or ``f16``.
    """

    name = "reference"
    activations = "f32"
    default_chunk = 512

    def __init__(self, kv: str) -> None:
        self.kv = kv
        self.numerics = _NUMERICS + KV_NUMERICS[kv]
        self.threads = len(os.sched_getaffinity(0))
        self._operands: dict[str, StoredOperand] = {}

    def environment(self) -> dict[str, object]:
        """Return nothing more: NumPy's version is recorded anyway."""
        return {}

    def bind(self, operand: StoredOperand) -> None:
        """Keep the operand's mapped bytes; they are decoded when they are used."""
        self._operands[operand.name] = operand

    def region(self, spec: KvRows, context: int, block: int) -> KvRegion:
        """Make a region of float64 rows, or of rows rounded to binary16."""
        return RowRegion(spec, context, block, np.float16 if self.kv == "f16" else np.float64)

    def embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        """Decode the rows of the ids and scale them."""
        operand = self._operands[op.weight]
        row_bytes = operand.encoding.row_bytes(op.width)
        rows = operand.data.reshape(op.vocab, row_bytes)[ids]
        values = decode(operand.encoding, rows, op.width).astype(np.float64) * op.scale
        return values.astype(np.float32)

    def write(
        self,
        block: Block,
        carrier: Carrier,
        region: KvRegion | None,
        start: int,
        taps: BlockTaps | None = None,
    ) -> Carrier:
        """Run one block and add its output."""
        inputs = [self._norm(block.norm, row) for row in carrier.astype(np.float64)]
        mixer = block.mixer
        if isinstance(mixer, DenseFfn):
            outputs = self._ffn(mixer, inputs)
        elif isinstance(region, RowRegion):
            outputs = self._attention(mixer, inputs, region, start, taps)
        else:
            raise AssertionError("attention runs with a region")
        written = carrier.astype(np.float64)
        for row, output in zip(written, outputs, strict=True):
            row += block.residual_scale * self._norm(block.post_norm, output)
        return written.astype(np.float32)

    def final_norm(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the head's norm of each position."""
        rows = [self._norm(op.norm, row) for row in carrier.astype(np.float64)]
        return np.stack(rows).astype(np.float32)

    def logits(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the logits of each position."""
        rows = [self._norm(op.norm, row) for row in carrier.astype(np.float64)]
        products = self._product(op.weight, rows)
        logits = np.stack(products) * op.multiplier
        if op.softcap is not None:
            logits = op.softcap * np.tanh(logits / op.softcap)
        return logits.astype(np.float32)

    def read_out(
        self, op: Head, carrier: Carrier, tokens: npt.NDArray[np.int64], top: int
    ) -> HeadReadout:
        """Compute whole rows and sort them."""
        rows = self.logits(op, carrier)
        numbers = np.arange(rows.shape[1])
        order = np.stack([np.lexsort((numbers, -row)) for row in rows])
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, numbers[None] + 1, axis=1)
        first = order[:, :top]
        return HeadReadout.of(
            rows[:, tokens],
            ranks[:, tokens],
            first,
            np.take_along_axis(rows, first, axis=1),
            self.log_sum_exp(rows),
            (~np.isfinite(rows)).sum(axis=1),
        )

    def attention_pattern(
        self,
        mixer: SoftmaxAttention,
        queries: npt.NDArray[np.float32],
        region: KvRegion,
        start: int,
    ) -> list[Float64]:
        """Compute the weights again, from queries rounded to float32."""
        return [
            np.stack(
                [
                    _head_weights(mixer, query[head].astype(np.float64), keys, head)
                    for head in range(mixer.heads)
                ]
            )
            for query, keys in (
                (query, region.key_rows(_seen(mixer, start + t))) for t, query in enumerate(queries)
            )
        ]

    def log_sum_exp(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return ``log(sum(exp(row)))`` of each row."""
        largest = rows.max(axis=1).astype(np.float64)
        sums = np.exp(rows.astype(np.float64) - largest[:, None]).sum(axis=1)
        return np.asarray(largest + np.log(sums), dtype=np.float64)

    def _vector(self, name: str) -> Float64:
        operand = self._operands[name]
        return decode(operand.encoding, operand.data, operand.shape[-1]).astype(np.float64)

    def _row_blocks(self, name: str) -> Iterator[tuple[int, Float64]]:
        """Yield first row and decoded rows of a matrix, a block at a time."""
        operand = self._operands[name]
        rows, columns = operand.shape
        stored = operand.data.reshape(rows, operand.encoding.row_bytes(columns))
        step = max(1, _BLOCK_ELEMENTS // columns)
        for first in range(0, rows, step):
            block = decode(operand.encoding, stored[first : first + step], columns)
            yield first, block.astype(np.float64)

    def _product(self, name: str, vectors: list[Float64]) -> list[Float64]:
        rows = self._operands[name].shape[0]
        outputs = [np.empty(rows) for _ in vectors]
        for first, block in self._row_blocks(name):
            for vector, output in zip(vectors, outputs, strict=True):
                output[first : first + len(block)] = block @ vector
        return outputs

    def _linear(self, linear: Linear, vectors: list[Float64]) -> list[Float64]:
        outputs = self._product(linear.weight, vectors)
        if linear.bias is not None:
            bias = self._vector(linear.bias)
            outputs = [output + bias for output in outputs]
        return outputs

    def _norm(self, norm: Norm | None, x: Float64) -> Float64:
        """Normalise the last axis of ``x``, which may be one vector or one for each head."""
        if norm is None:
            return x
        if norm.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.eps)
        if norm.weight is not None:
            x = x * (self._vector(norm.weight) + norm.offset)
        if norm.bias is not None:
            x = x + self._vector(norm.bias)
        return x

    def _ffn(self, mixer: DenseFfn, inputs: list[Float64]) -> list[Float64]:
        act = _ACTIVATIONS[mixer.activation]
        ups = self._linear(mixer.up, inputs)
        if mixer.gate is None:
            inner = [act(up) for up in ups]
        else:
            gates = self._linear(mixer.gate, inputs)
            inner = [act(gate) * up for gate, up in zip(gates, ups, strict=True)]
        return self._linear(mixer.down, inner)

    def _attention(
        self,
        mixer: SoftmaxAttention,
        inputs: list[Float64],
        region: RowRegion,
        start: int,
        taps: BlockTaps | None,
    ) -> list[Float64]:
        queries = self._linear(mixer.q, inputs)
        keys = self._linear(mixer.k, inputs)
        values = self._linear(mixer.v, inputs)
        frequencies = self._frequencies(mixer.rope)
        mixed = []
        for t, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
            position = start + t
            query = self._norm(mixer.q_norm, q.reshape(mixer.heads, mixer.key_dim))
            key = self._norm(mixer.k_norm, k.reshape(mixer.kv_heads, mixer.key_dim))
            if mixer.rope is not None:
                query = _rotate(query, mixer.rope, frequencies, position)
                key = _rotate(key, mixer.rope, frequencies, position)
            region.write(position, key[None], v.reshape(1, mixer.kv_heads, mixer.value_dim))
            mixed.append(_attend(mixer, query, region, position))
            if taps is not None and taps.queries is not None:
                taps.queries[t] = query
            if taps is not None and taps.heads is not None:
                taps.heads[t] = mixed[-1].reshape(mixer.heads, mixer.value_dim)
        return self._linear(mixer.o, mixed)

    def _frequencies(self, rope: Rope | None) -> Float64:
        """Return radians per position of each rotated pair."""
        if rope is None:
            return np.empty(0)
        frequencies = rope.theta ** (-np.arange(0, rope.dims, 2) / rope.dims)
        scaling = rope.scaling
        if scaling is not None and scaling.kind == "linear":
            frequencies = frequencies / scaling.factor
        elif scaling is not None:
            frequencies = np.array([_llama3(f, rope) for f in frequencies])
        if rope.factors is not None:
            frequencies = frequencies / self._vector(rope.factors)
        return frequencies


def _llama3(frequency: float, rope: Rope) -> float:
    scaling = rope.scaling
    assert scaling is not None and scaling.low_freq_factor and scaling.high_freq_factor
    assert scaling.original_context
    wavelength = 2.0 * math.pi / frequency
    low = scaling.original_context / scaling.low_freq_factor
    high = scaling.original_context / scaling.high_freq_factor
    if wavelength > low:
        return frequency / scaling.factor
    if wavelength < high:
        return frequency
    share = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1.0 - share) * frequency / scaling.factor + share * frequency


def _rotate(x: Float64, rope: Rope, frequencies: Float64, position: int) -> Float64:
    """Turn the first ``rope.dims`` elements of each head of ``x`` (``[heads, dim]``)."""
    angle = position * frequencies
    cos, sin = np.cos(angle), np.sin(angle)
    turned = x.copy()
    if rope.layout == "half":
        first, second = slice(0, rope.dims // 2), slice(rope.dims // 2, rope.dims)
    else:
        first, second = slice(0, rope.dims, 2), slice(1, rope.dims, 2)
    turned[:, first] = x[:, first] * cos - x[:, second] * sin
    turned[:, second] = x[:, second] * cos + x[:, first] * sin
    return turned


def _seen(mixer: SoftmaxAttention, position: int) -> npt.NDArray[np.int64]:
    """Return the positions that a position sees."""
    first = 0 if mixer.window is None else max(0, position - mixer.window + 1)
    return np.arange(first, position + 1)


def _head_weights(mixer: SoftmaxAttention, query: Float64, keys: Float64, head: int) -> Float64:
    """Return one head's softmax over keys ``[n, kv_heads, key_dim]``."""
    scores = keys[:, head // (mixer.heads // mixer.kv_heads)] @ query * mixer.scale
    if mixer.softcap is not None:
        scores = mixer.softcap * np.tanh(scores / mixer.softcap)
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def _attend(mixer: SoftmaxAttention, query: Float64, region: RowRegion, position: int) -> Float64:
    """Return the mixed values of one position, all heads side by side."""
    seen = _seen(mixer, position)
    keys = region.key_rows(seen).astype(np.float64)
    values = region.value_rows(seen).astype(np.float64)
    group = mixer.heads // mixer.kv_heads
    mixed = np.empty((mixer.heads, mixer.value_dim))
    for head in range(mixer.heads):
        mixed[head] = _head_weights(mixer, query[head], keys, head) @ values[:, head // group]
    return mixed.reshape(-1)
