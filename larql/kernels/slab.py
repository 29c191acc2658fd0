"""Sixteen interleaved rows times float32 vectors: the sums of `tile`, rows as lanes.

A float32 sum has sixteen lanes, and here each of them is a register of sixteen rows: what one
instruction does for lane i of sixteen rows, `larql.kernels.tile` does for sixteen lanes of a row.
The lanes are added in the order of `larql.kernels.vector.halve`, so that the bits are the same.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import GROUP
from larql.kernels.interleaved import INTERLEAVED, Rows
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import align_stack, keep_apart, offset, prefetch_lines, read, write
from larql.kernels.vector import LANES, constant, fused, spread, transposed

__all__ = ["expand_slab", "float_slab"]

_WORD, _FLOAT = ir.IntType(64), ir.FloatType()
# Rows whose sums registers hold at a time, and their lanes; a slab stays in the first-level cache.
_AT_ONCE = {"avx512": (16, 16), "avx2": (8, 4), "portable": (16, 4)}


@instruction
def float_slab(typingctx: Any, variant: Any, slab: Any, blocks: Any, x: Any, out: Any) -> Any:
    """Multiply a slab of signed bytes, `blocks` block columns, by the float32 vector `x`.

    Sixteen results are written.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, x, out = args
        b, level = builder, emitter(variant.level, builder)
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        size, (count, width) = geometry.nbytes * LANES, _AT_ONCE[variant.level]
        align_stack(b)
        turns = list(product(range(0, LANES, count), range(0, LANES, width)))
        share = size // len(turns)
        coming = b.add(slab, b.mul(blocks, _WORD(size)))
        sums: list[Any] = []
        for turn, (row, first) in enumerate(turns):
            rows = Rows(level, row, count)
            zero = constant(ir.VectorType(_FLOAT, count), 0.0)
            places = [cgutils.alloca_once_value(b, zero) for _ in range(width)]
            with cgutils.for_range(b, blocks, intp=_WORD) as loop:
                p = b.add(slab, b.mul(loop.index, _WORD(size)))
                at = b.add(x, b.mul(loop.index, _WORD(4 * geometry.elements)))
                done = b.add(loop.index, b.mul(blocks, _WORD(turn)))
                prefetch_lines(b, b.add(coming, b.mul(done, _WORD(share))), share)
                factors = form.factors(rows, p, 0)
                for number in range(geometry.elements // 4):
                    lane = 4 * number % LANES - first
                    if lane not in range(width):
                        continue
                    keep_apart(b)
                    weights = form.floats(rows, p, number, *factors)
                    for j, (weight, place) in enumerate(zip(weights, places[lane:], strict=False)):
                        value = read(b, offset(b, at, 4 * (4 * number + j)), _FLOAT)
                        value = fused(b, weight, spread(b, value, count), b.load(place))
                        b.store(value, place)
            sums += [b.load(place) for place in places]
            if len(sums) == LANES:
                while len(sums) > 1:
                    half = len(sums) // 2
                    sums = [b.fadd(sums[i], sums[i + half]) for i in range(half)]
                write(b, sums.pop(), offset(b, out, 4 * row))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 4), emit


@instruction
def expand_slab(typingctx: Any, variant: Any, slab: Any, blocks: Any, out: Any, stride: Any) -> Any:
    """Decode a slab to float32, its rows `stride` bytes apart."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, out, stride = args
        b, rows = builder, Rows(emitter(variant.level, builder))
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        per_group = GROUP // LANES
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(geometry.nbytes * LANES)))
            place = b.add(out, b.mul(loop.index, _WORD(4 * geometry.elements)))
            for half in range(geometry.elements // LANES):
                numbers = form.factors(rows, p, half * form.units // per_group)
                weights: list[Any] = []
                for q in range(LANES // 4):
                    weights += form.floats(rows, p, LANES // 4 * half + q, *numbers)
                for row, values in enumerate(transposed(b, weights)):
                    at = b.add(place, b.mul(stride, _WORD(row)))
                    write(b, values, offset(b, at, 4 * LANES * half))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 4), emit
