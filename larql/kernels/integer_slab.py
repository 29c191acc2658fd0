"""Sixteen interleaved rows times int8 vectors: the sums of `integer_rows`, rows as lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integer_rows import SUMS, TERMS
from larql.kernels.integers import GROUP, INTEGERS, integer_bias, integer_emitter
from larql.kernels.interleaved import INTERLEAVED, QUADS_OF_GROUP, Rows
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.memory import offset, prefetch_lines, read, write
from larql.kernels.vector import F32, I32, LANES, constant, fused, spread
from larql.kernels.widths import chosen_width

__all__ = ["integer_slab", "take_away", "unpack_slab", "unpacked_slab"]

_WORD, _I32, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_NUMBERS = 4 * LANES  # bytes of a float32 of each row
_QUAD = 4 * LANES
_TILES = (16, 8, 4, 2, 1)  # vectors
_AHEAD = 8 << 10  # bytes; weights so far on are fetched into the second-level cache


class _Vectors:
    """Neighbouring int8 vectors: addresses of the first one's values, terms and sums in a group.

    `four` is the bytes of a number of each vector of a block.
    """

    def __init__(self, b: Any, four: Any, values: Any, terms: Any, sums: Any) -> None:
        self.b, self.four = b, four
        self.values, self.terms, self.sums = values, terms, sums

    def group(self, index: Any) -> _Vectors:
        """Emit the addresses of another group."""
        b, skip = self.b, self.b.mul(index, self.four)
        sizes = ((self.values, QUADS_OF_GROUP), (self.terms, TERMS), (self.sums, SUMS))
        found = (b.add(base, b.mul(skip, _WORD(size))) for base, size in sizes)
        return _Vectors(b, self.four, *found)

    def _number(self, base: Any, index: int, vector: int, kind: Any) -> Any:
        at = self.b.add(base, self.b.mul(self.four, _WORD(index)))
        return read(self.b, offset(self.b, at, 4 * vector), kind)

    def quad(self, index: int, vector: int) -> Any:
        """Emit four values, once for each row."""
        return spread(self.b, self._number(self.values, index, vector, _I32))

    def term(self, index: int, vector: int) -> Any:
        """Emit float32 number `index`."""
        return self._number(self.terms, index, vector, _FLOAT)

    def sum(self, unit: int, units: int, vector: int) -> Any:
        """Emit the sum of a unit's values."""
        return self._number(self.sums, unit if units == 2 else 2, vector, _I32)


class _Totals:
    """The results of some vectors, and how a unit's dot products are added to them."""

    def __init__(self, b: Any, encoding: str, vectors: int) -> None:
        self.b, self.meaning = b, INTEGERS[encoding]
        zero = constant(F32.llvm, 0.0)
        self.places = [cgutils.alloca_once_value(b, zero) for _ in range(vectors)]

    def add(self, x: _Vectors, unit: int, dots: Sequence[Any], scale: Any, shift: Any) -> None:
        """Emit the adding of a unit's dot product for each vector."""
        b, units = self.b, self.meaning.units
        for v, (dot, place) in enumerate(zip(dots, self.places, strict=True)):
            d = x.term(0, v)
            factor = b.fmul(scale, spread(b, d))
            result = fused(b, b.sitofp(dot, F32.llvm), factor, b.load(place))
            if self.meaning.shifted:
                term = x.term(1, v)
                if units == 2:
                    term = b.fmul(d, b.sitofp(x.sum(unit, units, v), _FLOAT))
                result = fused(b, spread(b, term), shift, result)
            b.store(result, place)

    def write(self, out: Any, stride: Any) -> None:
        """Emit the writing of each vector's sixteen results, `stride` bytes apart."""
        for v, place in enumerate(self.places):
            write(self.b, self.b.load(place), self.b.add(out, self.b.mul(stride, _WORD(v))))


@instruction
def integer_slab(
    typingctx: Any, variant: Any, slab: Any, blocks: Any, values: Any, terms: Any, sums: Any,
    out: Any, zero: Any,
) -> Any:  # fmt: skip
    """Multiply a slab by one int8 vector, unpacking in registers; write 16 results.

    `zero` is 0, which the compiler must not know.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, values, terms, sums, out, zero = args
        b, level = builder, integer_emitter(variant.level, builder)
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        size, per_block = geometry.nbytes * LANES, geometry.elements // GROUP
        signed = INTEGERS[form.source].bias is None
        bias = integer_bias(variant.level, form.source)
        total, quads = _Totals(b, form.source, 1), QUADS_OF_GROUP // form.units
        vector = _Vectors(b, _WORD(4), values, terms, sums)
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(size)))
            prefetch_lines(b, offset(b, p, _AHEAD), size)
            first = b.mul(loop.index, _WORD(per_block))
            for index in range(per_block):
                x = vector.group(b.add(first, _WORD(index)))
                for unit in range(form.units):
                    numbers = form.numbers(Rows(level.level), p, index * form.units + unit)
                    dots = [constant(I32.llvm, 0)] * 2  # two, so that none waits for the other
                    for q in range(unit * quads, (unit + 1) * quads):
                        w = form.bytes(level, p, QUADS_OF_GROUP * index + q, zero)
                        four = b.bitcast(x.quad(q, 0), w.type)
                        dots[q % 2] = level.dot(dots[q % 2], w, four, signed)
                    dot = b.add(*dots)
                    if not total.meaning.shifted:
                        bytes_ = spread(b, x.sum(unit, form.units, 0))
                        dot = b.sub(dot, b.mul(bytes_, constant(I32.llvm, bias)))
                    total.add(x, unit, [dot], *numbers)
        total.write(out, _WORD(0))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 7), emit


@instruction
def unpack_slab(
    typingctx: Any, variant: Any, slab: Any, blocks: Any, target: Any, scales: Any, shifts: Any,
    zero: Any,
) -> Any:  # fmt: skip
    """Write a slab's bytes to `target`, quad after quad, and its units' numbers, all for 16 rows.

    `zero` is 0, which the compiler must not know.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, slab, blocks, target, scales, shifts, zero = args
        b, level = builder, integer_emitter(variant.level, builder)
        geometry, form = BLOCKS[variant.encoding], INTERLEAVED[variant.encoding]
        quads = geometry.elements // 4
        units = geometry.elements // GROUP * form.units
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            p = b.add(slab, b.mul(loop.index, _WORD(geometry.nbytes * LANES)))
            place = b.add(target, b.mul(loop.index, _WORD(_QUAD * quads)))
            for q in range(quads):
                write(b, form.bytes(level, p, q, zero), offset(b, place, _QUAD * q))
            at = b.mul(loop.index, _WORD(_NUMBERS * units))
            places = (b.add(base, at) for base in (scales, shifts))
            form.write_numbers(Rows(level.level), p, units, *places)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 6), emit


@instruction
def take_away(
    typingctx: Any, variant: Any, sums: Any, groups: Any, bias: Any, width: Any, starts: Any
) -> Any:
    """Write -bias times the sums of each unit's values, of `groups` groups of a block of vectors.

    It is where a dot product with biased bytes begins; where there are shifts, nothing is written.
    `width` is 1 or 16.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, sums, groups, bias, width, starts = args
        b, units = builder, INTEGERS[variant.encoding].units
        if INTEGERS[variant.encoding].shifted:
            return context.get_dummy_value()
        less, four = b.trunc(b.neg(bias), _I32), b.mul(width, _WORD(4))
        with cgutils.for_range(b, groups, intp=_WORD) as loop:
            for unit in range(units):
                which = b.add(b.mul(loop.index, _WORD(SUMS)), _WORD(unit if units == 2 else 2))
                place = b.add(b.mul(loop.index, _WORD(units)), _WORD(unit))
                source, target = b.add(sums, b.mul(which, four)), b.add(starts, b.mul(place, four))
                with b.if_else(b.icmp_signed("==", width, _WORD(1))) as (one, many):
                    for kind, branch in ((_I32, one), (I32.llvm, many)):
                        with branch:
                            factor = less if kind == _I32 else spread(b, less)
                            write(b, b.mul(read(b, source, kind), factor), target)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 5), emit


@instruction
def unpacked_slab(
    typingctx: Any, variant: Any, left: Any, weights: Any, scales: Any, shifts: Any, groups: Any,
    starts: Any, width: Any, values: Any, terms: Any, sums: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """Multiply an unpacked slab by the next vectors of a block of `width`; return how many.

    They are as many as the widest tile takes of the `left` ones, at most `variant.columns`. The
    variant's encoding stands for all that have the same units, shifts and sign; `starts` is what
    :func:`take_away` wrote, and not read where there are shifts.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (_, left, weights, scales, shifts, groups, starts, width, values, terms, sums, out,
         out_stride) = args  # fmt: skip
        b, level = builder, integer_emitter(variant.level, builder)
        meaning = INTEGERS[variant.encoding]
        signed, units = meaning.bias is None, meaning.units
        quads = QUADS_OF_GROUP // units
        vectors = _Vectors(b, b.mul(width, _WORD(4)), values, terms, sums)
        kind = ir.VectorType(ir.IntType(8), _QUAD)

        def tile(count: int) -> None:
            total = _Totals(b, variant.encoding, count)
            # Of few vectors two sums each, so that none waits for the one before.
            chains = 2 if count <= 2 else 1
            with cgutils.for_range(b, groups, intp=_WORD) as loop:
                x = vectors.group(loop.index)
                place = b.add(weights, b.mul(loop.index, _WORD(_QUAD * QUADS_OF_GROUP)))
                at = b.mul(loop.index, _WORD(_NUMBERS * units))
                for unit in range(units):
                    dots = [constant(I32.llvm, 0)] * (count * chains)
                    if not meaning.shifted:
                        number = b.add(b.mul(loop.index, _WORD(units)), _WORD(unit))
                        first = b.add(starts, b.mul(number, vectors.four))
                        dots[:count] = [
                            spread(b, read(b, offset(b, first, 4 * v), _I32)) for v in range(count)
                        ]
                    for q in range(unit * quads, (unit + 1) * quads):
                        w = read(b, offset(b, place, _QUAD * q), kind)
                        for v in range(count):
                            four, chain = b.bitcast(x.quad(q, v), kind), v + q % chains * count
                            dots[chain] = level.dot(dots[chain], w, four, signed)
                    if chains == 2:
                        pairs = zip(dots[:count], dots[count:], strict=True)
                        dots = [b.add(*pair) for pair in pairs]
                    scale, shift = (
                        read(b, offset(b, b.add(base, at), _NUMBERS * unit), F32.llvm)
                        for base in (scales, shifts)
                    )
                    total.add(x, unit, dots, scale, shift)
            total.write(out, out_stride)

        return chosen_width(b, left, [n for n in _TILES if n <= variant.columns], tile)

    return types.int64(variant, *[types.int64] * 12), emit
