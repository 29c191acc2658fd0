"""The oracle: plain NumPy in float64, one position at a time, written to be read.

It shares no arithmetic with the production kernels. Weights are decoded a block of rows at a time
and each position is a product of its own, so a position's result does not depend on how many are
advanced together.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from larql.format.graph import (
    Block,
    DraftInput,
    Embed,
    ExpertBank,
    Head,
    KvRows,
    LatentAttention,
    LatentRows,
    PerLayerTable,
    SoftmaxAttention,
    StateSpec,
)
from larql.runtime.backends.base import KV_NUMERICS, Backend, Carrier
from larql.runtime.backends.reference.arithmetic import Arithmetic
from larql.runtime.backends.reference.experts import Experts
from larql.runtime.backends.reference.mixers import mix
from larql.runtime.backends.reference.recurrence import convolved, whole
from larql.runtime.backends.reference.softmax_attention import biases, head_weights, seen
from larql.runtime.latent_region import LatentRegion, as_keys_and_values
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.readout import HeadReadout
from larql.runtime.regions import KvRegion, Region, RowRegion
from larql.runtime.routes import ExpertRoute, LeftOutNotes
from larql.runtime.taps import BlockTaps, tell
from larql.runtime.token_inputs import LayerInputs
from larql.runtime.whole_regions import WholeRegion

__all__ = ["ReferenceBackend"]

Float64 = npt.NDArray[np.float64]

_NUMERICS = "float64 arithmetic, exact dequantised weights, float32 carrier"


class ReferenceBackend(Backend):
    """Plain NumPy in float64; see the module.

    What is not finite is refused or counted where that matters, and is no warning of NumPy's.

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
        self._arithmetic = Arithmetic()

    def environment(self) -> dict[str, object]:
        """Return nothing more: NumPy's version is recorded anyway."""
        return {}

    def bind(self, operand: StoredOperand) -> None:
        """Keep the operand's mapped bytes; they are decoded when they are used."""
        self._arithmetic.bind(operand)

    def bind_experts(self, bank: ExpertBank, operands: Mapping[str, StoredBank]) -> Experts:
        """Keep the mapped bytes of the experts that are here."""
        return Experts(bank, operands, self._arithmetic)

    def take_route(self, bank: ExpertBank, route: ExpertRoute) -> None:
        """Reach a bank's experts by a route from now on."""
        self._arithmetic.routes[bank.down] = route

    def region(self, spec: StateSpec, context: int, block: int) -> Region:
        """Make a region of float64 numbers; keys and values may be rounded to binary16."""
        kind = np.float16 if self.kv == "f16" else np.float64
        if isinstance(spec, KvRows):
            return RowRegion(spec, context, block, kind)
        if isinstance(spec, LatentRows):
            rows = RowRegion(as_keys_and_values(spec), context, block, kind)
            return LatentRegion(spec, rows)
        return WholeRegion.plain(spec, np.float64)

    def embed(self, op: Embed, ids: npt.NDArray[np.int64]) -> Carrier:
        """Decode the rows of the ids and scale them."""
        values = self._arithmetic.rows(op.weight, ids) * op.scale
        return self._arithmetic.norm(op.norm, values).astype(np.float32)

    def draft_input(
        self, op: DraftInput, embedded: Carrier, hidden: npt.NDArray[np.float32]
    ) -> Carrier:
        """Normalise both halves, put them side by side, and project."""
        rows = []
        for embedding, tap in zip(
            embedded.astype(np.float64), hidden.astype(np.float64), strict=True
        ):
            halves = [
                self._arithmetic.norm(op.embedding_norm, embedding),
                self._arithmetic.norm(op.hidden_norm, tap),
            ]
            rows.append(np.concatenate(halves if op.first == "embedding" else halves[::-1]))
        return np.stack(self._arithmetic.linear(op.projection, rows)).astype(np.float32)

    def look_up(self, table: PerLayerTable, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Decode the rows of the ids and scale them."""
        rows = self._arithmetic.rows(table.weight, ids) * table.scale
        by_layer = rows.reshape(len(ids), table.layers, table.width).transpose(1, 0, 2)
        return np.ascontiguousarray(by_layer, dtype=np.float32)

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
        with np.errstate(all="ignore"):
            inputs = [self._arithmetic.norm(block.norm, row) for row in carrier.astype(np.float64)]
            tell(taps, "norm", inputs)
            inner = regions if block.conv is None else regions[:-1]
            outputs = mix(block.mixer, inputs, inner, start, taps, self._arithmetic, tokens, notes)
            if block.conv is not None:
                (rows,) = whole(regions[-1:])
                outputs = convolved(block.conv, outputs, rows, self._arithmetic)
            outputs = [self._arithmetic.norm(block.post_norm, output) for output in outputs]
            tell(taps, "output", outputs)
            written = carrier.astype(np.float64)
            for row, output in zip(written, outputs, strict=True):
                row += block.residual_scale * output
                if block.carrier_scale is not None:
                    row *= self._arithmetic.vector(block.carrier_scale)
            return written.astype(np.float32)

    def final_norm(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the head's norm of each position."""
        with np.errstate(all="ignore"):
            rows = [self._arithmetic.norm(op.norm, row) for row in carrier.astype(np.float64)]
            return np.stack(rows).astype(np.float32)

    def logits(self, op: Head, carrier: Carrier) -> npt.NDArray[np.float32]:
        """Return the logits of each position."""
        with np.errstate(all="ignore"):
            rows = [self._arithmetic.norm(op.norm, row) for row in carrier.astype(np.float64)]
            products = self._arithmetic.product(op.weight, rows)
            logits = np.stack(products)[:, : op.vocab] * op.multiplier
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
        mixer: SoftmaxAttention | LatentAttention,
        queries: npt.NDArray[np.float32],
        region: KvRegion,
        start: int,
        mixes: npt.NDArray[np.float32] | None = None,
    ) -> list[Float64]:
        """Compute the weights again, from queries rounded to float32."""
        sinks = None if mixer.sinks is None else self._arithmetic.vector(mixer.sinks)
        found = []
        for t, query in enumerate(queries.astype(np.float64)):
            keys = region.key_rows(seen(mixer, start + t))
            added = None
            if mixes is not None:
                assert isinstance(mixer, SoftmaxAttention)
                added = biases(mixer, mixes[t].astype(np.float64), len(keys), self._arithmetic)
            rows = [
                head_weights(
                    mixer, query[head], keys, head, sinks, None if added is None else added[head]
                )
                for head in range(mixer.heads)
            ]
            found.append(np.stack(rows))
        return found

    def log_sum_exp(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return ``log(sum(exp(row)))`` of each row."""
        with np.errstate(all="ignore"):
            largest = rows.max(axis=1).astype(np.float64)
            sums = np.exp(rows.astype(np.float64) - largest[:, None]).sum(axis=1)
            return np.asarray(largest + np.log(sums), dtype=np.float64)
