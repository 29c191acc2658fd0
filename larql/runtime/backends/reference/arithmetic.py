"""What the reference operations are made of: decoded operands, products and norms in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from larql.format.codec import decode, take_rows
from larql.format.encoding import SLAB_ROWS
from larql.format.graph import Linear, Norm
from larql.runtime.operands import StoredOperand
from larql.runtime.routes import ExpertRoute

__all__ = ["Arithmetic", "Float64"]

Float64 = npt.NDArray[np.float64]

_BLOCK_ELEMENTS = 1 << 20


class Arithmetic:
    """Products and norms with operands that are decoded when they are used.

    Attributes
    ----------
    operands : mapping
        Bound operands by name.
    routes : mapping
        The way to the experts of each bank, by the name of its down operand.
    """

    def __init__(self) -> None:
        self.operands: dict[str, StoredOperand] = {}
        self.routes: dict[str, ExpertRoute] = {}

    def bind(self, operand: StoredOperand) -> None:
        """Keep the operand's mapped bytes."""
        self.operands[operand.name] = operand

    def rows(self, name: str, ids: npt.NDArray[np.int64]) -> Float64:
        """Return some rows of a matrix, ``[n, columns]``."""
        operand = self.operands[name]
        count, columns = operand.shape
        stored = operand.data.reshape(count, operand.encoding.row_bytes(columns))
        encoding, rows = take_rows(operand.encoding, stored, columns, ids)
        return decode(encoding, rows, columns).astype(np.float64)

    def vector(self, name: str) -> Float64:
        """Return a vector, ``[n]``."""
        return self.vector_of(self.operands[name])

    def vector_of(self, operand: StoredOperand) -> Float64:
        """Return an operand that is a vector, ``[n]``."""
        return self._logical(operand, operand.data)

    def _logical(self, operand: StoredOperand, stored: npt.NDArray[np.uint8]) -> Float64:
        """Return the elements of stored rows; padding is behind the view and is never seen."""
        columns = operand.shape[-1]
        values = decode(operand.encoding, stored, operand.stored_columns or columns)
        return values[..., :columns].astype(np.float64)

    def _row_blocks(self, operand: StoredOperand) -> Iterator[tuple[int, Float64]]:
        """Yield first row and decoded rows of a matrix, a block at a time."""
        rows, columns = operand.shape
        stored = operand.data.reshape(rows, operand.row_bytes)
        # The same rows at a time whether packed or not: a product's order may hang on it.
        step = SLAB_ROWS * max(1, _BLOCK_ELEMENTS // (SLAB_ROWS * columns))
        for first in range(0, rows, step):
            yield first, self._logical(operand, stored[first : first + step])

    def product(self, name: str, vectors: list[Float64]) -> list[Float64]:
        """Return a matrix times each vector."""
        return self.product_of(self.operands[name], vectors)

    def product_of(self, operand: StoredOperand, vectors: list[Float64]) -> list[Float64]:
        """Return an operand that is a matrix times each vector."""
        outputs = [np.empty(operand.shape[0]) for _ in vectors]
        for first, block in self._row_blocks(operand):
            for vector, output in zip(vectors, outputs, strict=True):
                output[first : first + len(block)] = block @ vector
        return outputs

    def linear(self, linear: Linear, vectors: list[Float64]) -> list[Float64]:
        """Return a projection of each vector, its bias added."""
        outputs = self.product(linear.weight, vectors)
        if linear.bias is not None:
            bias = self.vector(linear.bias)
            outputs = [output + bias for output in outputs]
        return outputs

    def norm(self, norm: Norm | None, x: Float64) -> Float64:
        """Normalise the last axis of ``x``, which may be one vector or one for each head."""
        if norm is None:
            return x
        if norm.kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.eps)
        if norm.weight is not None:
            x = x * (self.vector(norm.weight) + norm.offset)
        if norm.bias is not None:
            x = x + self.vector(norm.bias)
        return x
