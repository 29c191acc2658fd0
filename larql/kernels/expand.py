"""Decoding of scales and of whole rows into memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.encodings import BLOCKS
from larql.kernels.integer_rows import EIGHT
from larql.kernels.integers import GROUP, INTEGERS, integer_emitter
from larql.kernels.jit import cgutils, instruction, types
from larql.kernels.levels import emitter
from larql.kernels.memory import edges, offset, read, stack_room, write
from larql.kernels.scales import SCALES
from larql.kernels.unpack import UNPACK
from larql.kernels.vector import LANES

__all__ = [
    "PREPARED",
    "expand",
    "expand_rest",
    "prepare",
    "prepare_eight",
    "prepared_room",
    "unpack_integers",
]

_WORD = ir.IntType(64)
PREPARED = 32768  # float32 numbers that `prepared_room` holds


@instruction
def prepared_room(typingctx: Any, variant: Any) -> Any:
    """Return the address of stack memory for `PREPARED` scales, valid in this function."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return stack_room(builder, 4 * (PREPARED + LANES))

    return types.int64(variant), emit


@instruction
def prepare(typingctx: Any, variant: Any, weight: Any, blocks: Any, target: Any) -> Any:
    """Decode the scales of `blocks` consecutive blocks to `target`; nothing for plain floats."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, blocks, target = args
        scales = SCALES[variant.encoding]
        if scales is not None:
            scales.prepare(
                emitter(variant.level, builder), variant.encoding, weight, blocks, target
            )
        return context.get_dummy_value()

    word = types.int64
    return types.void(variant, word, word, word), emit


@instruction
def prepare_eight(
    typingctx: Any, variant: Any, weight: Any, stride: Any, last_row: Any, blocks: Any, target: Any
) -> Any:
    """Decode the scales of eight rows to `target`, rows as lanes; rows past the last repeat it."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, stride, last_row, blocks, target = args
        scales = SCALES[variant.encoding]
        assert scales is not None
        rows = edges(builder, weight, stride, last_row, EIGHT)
        level = emitter(variant.level, builder)
        scales.prepare_eight(level, variant.encoding, rows, blocks, target)
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 5), emit


@instruction
def unpack_integers(
    typingctx: Any, variant: Any, weight: Any, blocks: Any, prepared: Any, target: Any,
    scales: Any, shifts: Any,
) -> Any:  # fmt: skip
    """Write the bytes of `blocks` blocks to `target`, and their units' numbers one by one.

    Bytes are in the form that the level's dot product takes.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, blocks, prepared, target, scales, shifts = args
        b = builder
        geometry, meaning = BLOCKS[variant.encoding], INTEGERS[variant.encoding]
        prepared_scales = SCALES[variant.encoding]
        assert prepared_scales is not None
        level = integer_emitter(variant.level, b)
        per_block = geometry.elements // GROUP
        with cgutils.for_range(b, blocks, intp=_WORD) as loop:
            source = b.add(weight, b.mul(loop.index, _WORD(geometry.nbytes)))
            numbers = b.add(prepared, b.mul(loop.index, _WORD(4 * prepared_scales.count)))
            place = b.add(target, b.mul(loop.index, _WORD(geometry.elements)))
            units = b.mul(loop.index, _WORD(4 * per_block * meaning.units))
            for index, group in enumerate(meaning.groups(level, [source])):
                for half, values in enumerate(group.halves):
                    stored = level.stored(values, meaning.bias is None)
                    write(b, stored, offset(b, place, GROUP * index + GROUP // 2 * half))
                for which, base in ((group.scales, scales), (group.shifts, shifts)):
                    for unit, number in enumerate(which):
                        value = read(b, offset(b, numbers, 4 * number), ir.FloatType())
                        at = 4 * (meaning.units * index + unit)
                        write(b, value, offset(b, b.add(base, units), at))
        return context.get_dummy_value()

    return types.void(variant, *[types.int64] * 6), emit


@instruction
def expand(
    typingctx: Any, variant: Any, weight: Any, blocks: Any, prepared: Any, target: Any
) -> Any:
    """Decode `blocks` steps, their scales prepared, to float32 at `target`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, blocks, prepared, target = args
        geometry, scales = BLOCKS[variant.encoding], SCALES[variant.encoding]
        size = geometry.step // geometry.elements * geometry.nbytes
        count = 0 if scales is None else scales.count
        level = emitter(variant.level, builder)
        with cgutils.for_range(builder, blocks, intp=_WORD) as loop:
            source = builder.add(weight, builder.mul(loop.index, _WORD(size)))
            number = builder.add(prepared, builder.mul(loop.index, _WORD(4 * count)))
            place = builder.add(target, builder.mul(loop.index, _WORD(geometry.step * 4)))
            for group, value in enumerate(UNPACK[variant.encoding](level, source, number)):
                write(builder, value, offset(builder, place, group * 4 * LANES))
        return context.get_dummy_value()

    word = types.int64
    return types.void(variant, word, word, word, word), emit


@instruction
def expand_rest(typingctx: Any, variant: Any, weight: Any, target: Any, count: Any) -> Any:
    """Decode the last `count` < 16 elements of a float row, followed by zeros up to 16."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _, weight, target, count = args
        geometry = BLOCKS[variant.encoding]
        if geometry.elements > 1:
            return context.get_dummy_value()
        group = ir.ArrayType(ir.IntType(8), geometry.nbytes * LANES)
        buffer = cgutils.alloca_once(builder, group)
        builder.store(ir.Constant(group, bytearray(geometry.nbytes * LANES)), buffer)
        place = builder.ptrtoint(buffer, _WORD)
        size = builder.mul(count, _WORD(geometry.nbytes))
        with cgutils.for_range(builder, size, intp=_WORD) as loop:
            byte = read(builder, builder.add(weight, loop.index), ir.IntType(8))
            write(builder, byte, builder.add(place, loop.index))
        for value in UNPACK[variant.encoding](emitter(variant.level, builder), place, None):
            write(builder, value, target)
        return context.get_dummy_value()

    word = types.int64
    return types.void(variant, word, word, word), emit
