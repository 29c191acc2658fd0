"""The definition of a row of decoded weights times a vector, for any number of both at once.

It is that of floats and of Q8_0, Q2_K, Q3_K, IQ4_NL, IQ4_XS and MXFP4; that of the other blocks,
which scale sums of units and not weights, is in `larql.kernels.unit_slab`.

Sixteen lanes; element i of a row belongs to lane i mod 16; elements are taken in ascending order
with one fused multiply-add each, starting from zero; lanes past the end of a row add 0 * 0; the
lanes are summed by the tree of `larql.kernels.vector.halve`. A tile only interleaves such sums.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import edges, prefetch_lines, read, read_part, write
from larql.kernels.scales import SCALES
from larql.kernels.unpack import UNPACK
from larql.kernels.vector import F32, LANES, constant, fused, halve, halve_four

__all__ = ["coded_tile", "plain_tile"]

_WORD = ir.IntType(64)


class _Tile:
    """Sums of rows × columns, and the addresses they are made from; see `edges` for the last."""

    def __init__(
        self, builder: Any, rows: int, columns: int, last_row: Any, last_column: Any
    ) -> None:
        self.builder = builder
        self.last_row, self.last_column = last_row, last_column
        zero = constant(F32.llvm, 0.0)
        self.sums = [
            [cgutils.alloca_once_value(builder, zero) for _ in range(columns)] for _ in range(rows)
        ]

    def rows(self, base: Any, stride: Any) -> list[Any]:
        """Emit the addresses of the tile's rows."""
        return edges(self.builder, base, stride, self.last_row, len(self.sums))

    def columns(self, base: Any, stride: Any) -> list[Any]:
        """Emit the addresses of the tile's columns."""
        return edges(self.builder, base, stride, self.last_column, len(self.sums[0]))

    def add(self, row: int, column: int, weight: Any, value: Any) -> None:
        """Emit weight * value, added to the sum of a row and a column."""
        place = self.sums[row][column]
        self.builder.store(fused(self.builder, weight, value, self.builder.load(place)), place)

    def finish(self, outputs: list[Any]) -> None:
        """Emit the reductions; outputs[c] is the address of column c's result for row 0."""
        b = self.builder
        if len(self.sums) != 4:
            self._finish_singly(outputs)
            return
        full = b.icmp_signed(">=", self.last_row, _WORD(3))
        with b.if_else(full, likely=True) as (whole, edge):
            with whole:
                for c, output in enumerate(outputs):
                    lanes = [b.load(row[c]) for row in self.sums]
                    write(b, halve_four(b, lanes, b.fadd), output)
            with edge:
                self._finish_singly(outputs)

    def _finish_singly(self, outputs: list[Any]) -> None:
        b = self.builder
        for c, output in enumerate(outputs):
            for row, place in zip(self.sums, self.rows(output, _WORD(4)), strict=True):
                write(b, halve(b, b.load(row[c]), b.fadd), place)


@instruction
def coded_tile(
    typingctx: Any,
    variant: Any,
    weight: Any,
    weight_stride: Any,
    last_row: Any,
    prepared: Any,
    ahead: Any,
    blocks: Any,
    x: Any,
    x_stride: Any,
    last_column: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Multiply `variant.rows` encoded rows by `variant.columns` vectors, decoding in registers.

    Addresses and strides are in bytes; the last valid row and column are counted from this tile's
    first; `blocks` counts steps of `Block.step` elements per row. `prepared` holds the scales of
    the rows, one row after the other. Weights `ahead` bytes further on are fetched into the cache.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, weight, weight_stride, last_row, prepared, ahead, blocks, x, x_stride, last_column, out,
         out_stride) = args  # fmt: skip
        geometry, scales = BLOCKS[variant.encoding], SCALES[variant.encoding]
        size = geometry.step // geometry.elements * geometry.nbytes
        count = 0 if scales is None else scales.count
        tile = _Tile(builder, variant.rows, variant.columns, last_row, last_column)
        rows = tile.rows(weight, weight_stride)
        numbers = tile.rows(prepared, builder.mul(blocks, _WORD(4 * count)))
        vectors, outputs = tile.columns(x, x_stride), tile.columns(out, out_stride)
        level, unpack = emitter(variant.level, builder), UNPACK[variant.encoding]
        with cgutils.for_range(builder, blocks, intp=_WORD) as loop:
            at = builder.mul(loop.index, _WORD(geometry.step * 4))
            skip = builder.mul(loop.index, _WORD(size))
            skip_numbers = builder.mul(loop.index, _WORD(4 * count))
            # Rows lie one after the other: each turn fetches its share of those to come.
            share = size * variant.rows
            coming = builder.add(builder.add(weight, ahead), builder.mul(loop.index, _WORD(share)))
            prefetch_lines(builder, coming, share)
            # Row by row: taking all rows' weights first keeps the units of a core waiting.
            for r, (row, number) in enumerate(zip(rows, numbers, strict=True)):
                block = builder.add(row, skip)
                weights = unpack(level, block, builder.add(number, skip_numbers))
                for group, value in enumerate(weights):
                    for c, vector in enumerate(vectors):
                        place = builder.add(builder.add(vector, at), _WORD(group * 4 * LANES))
                        tile.add(r, c, value, read(builder, place, F32.llvm))
        tile.finish(outputs)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 11), emit


@instruction
def plain_tile(
    typingctx: Any,
    variant: Any,
    weight: Any,
    weight_stride: Any,
    last_row: Any,
    x: Any,
    x_stride: Any,
    last_column: Any,
    columns: Any,
    out: Any,
    out_stride: Any,
) -> Any:
    """Multiply `variant.rows` float32 rows by `variant.columns` vectors of `columns` elements.

    Rows of `weight` are padded with zeros to whole groups of 16; vectors are not.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, weight_stride, last_row, x, x_stride, last_column, columns, out, out_stride = (
            args
        )
        tile = _Tile(builder, variant.rows, variant.columns, last_row, last_column)
        rows = tile.rows(weight, weight_stride)
        vectors, outputs = tile.columns(x, x_stride), tile.columns(out, out_stride)
        groups = builder.lshr(columns, _WORD(4))
        with cgutils.for_range(builder, groups, intp=_WORD) as loop:
            at = builder.mul(loop.index, _WORD(4 * LANES))
            weights = [read(builder, builder.add(row, at), F32.llvm) for row in rows]
            for c, vector in enumerate(vectors):
                value = read(builder, builder.add(vector, at), F32.llvm)
                for r, w in enumerate(weights):
                    tile.add(r, c, w, value)
        rest = builder.and_(columns, _WORD(LANES - 1))
        with builder.if_then(builder.icmp_unsigned("!=", rest, _WORD(0)), likely=False):
            at = builder.mul(groups, _WORD(4 * LANES))
            weights = [read(builder, builder.add(row, at), F32.llvm) for row in rows]
            for c, vector in enumerate(vectors):
                value = read_part(builder, builder.add(vector, at), rest)
                for r, w in enumerate(weights):
                    tile.add(r, c, w, value)
        tile.finish(outputs)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 9), emit
