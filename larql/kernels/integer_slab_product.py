"""Products of rows that lie interleaved by sixteen with int8 vectors; those of plain rows."""

from __future__ import annotations

from functools import cache
from typing import Any

from larql.kernels import setup
from larql.kernels.check import address
from larql.kernels.encodings import block
from larql.kernels.integer_slab import integer_slab, take_away, unpack_slab, unpacked_slab
from larql.kernels.integers import INTEGERS, alike, integer_bias
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import call_kernel, fetch_lines, load_i64
from larql.kernels.parts import Job, Part
from larql.kernels.rounding import QuantizedRows
from larql.kernels.shape import step_elements, unit_count
from larql.kernels.slab_product import slabs_of

__all__ = ["integer_job", "unpacked_bytes"]

_SLAB = 16  # rows
_WIDEST = {"avx512": 16, "avx2": 4, "portable": 4}  # vectors of a register tile
_TASK_BYTES = 64 << 10  # of stored weights that are multiplied by many vectors


@kernel
def _integers(variant: Any, p: int, task: int, worker: int) -> None:
    weight, size, slabs, blocks = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    values, terms, sums = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    out, share = load_i64(p + 56), load_i64(p + 64)
    for index in range(task * share, min((task + 1) * share, slabs)):
        integer_slab(
            variant, weight + index * size, blocks, values, terms, sums, out + index * 64,
            size % 16,
        )  # fmt: skip


@kernel
def _unpack(variant: Any, source: int, target: int, columns: int) -> None:
    """Unpack a slab: its bytes, then room for 16 scales and shifts for each 16 elements."""
    scales = target + columns * 16
    unpack_slab(
        variant, source, columns // step_elements(variant), target, scales, scales + columns * 4,
        columns % 16,
    )  # fmt: skip


@kernel
def _many(variant: Any, p: int, task: int, worker: int) -> None:
    weight, size, slabs, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    values, terms, sums = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    count, width, out, share = (
        load_i64(p + 56), load_i64(p + 64), load_i64(p + 72), load_i64(p + 80)
    )  # fmt: skip
    unpacker, bias = load_i64(p + 88), load_i64(p + 96)
    room = load_i64(p + 104) + worker * load_i64(p + 112)
    groups, scales = columns // 32, room + columns * 16
    shifts = scales + columns * 4
    starts = shifts + columns * 4
    take_away(variant, sums, -(-count // width) * groups, bias, width, starts)
    for index in range(task * share, min((task + 1) * share, slabs)):
        call_kernel(unpacker, weight + index * size, room, columns)
        fetch_lines(weight + (index + 1) * size, size)  # it comes while this one is multiplied
        c = 0
        while c < count:
            first = c // width * groups
            v = values + first * 32 * width + c % width * 4
            t = terms + first * 8 * width + c % width * 4
            s = sums + first * 12 * width + c % width * 4
            b = starts + first * unit_count(variant) * 4 * width + c % width * 4
            o = out + (c * slabs + index) * 64
            c += unpacked_slab(
                variant, min(count - c, width - c % width), room, scales, shifts, groups, b, width,
                v, t, s, o, slabs * 64,
            )  # fmt: skip


@cache
def _integer_kernel(encoding: str) -> int:
    return compiled_address(_integers, Variant(setup.current().level, encoding))


@cache
def _unpacker(encoding: str) -> int:
    return compiled_address(_unpack, Variant(setup.current().level, encoding))


@cache
def _many_kernel(source: str) -> int:
    level = setup.current().level
    return compiled_address(_many, Variant(level, alike(level, source), 0, _WIDEST[level]))


def unpacked_bytes(part: Part, x: QuantizedRows) -> int:
    """Return the scratch memory of a worker for products with several int8 vectors."""
    return part.columns * (_SLAB + 8) + -(-x.count // x.width) * x.width * part.columns // 4


def integer_job(part: Part, x: QuantizedRows, place: int, slot: int) -> Job:
    """Return the product with int8 vectors; of scratch memory there is `unpacked_bytes`."""
    size, count, share = slabs_of(part)
    vectors = (address(x.values), address(x.terms), address(x.sums))
    if x.count == 1:
        blocks = part.columns // block(part.encoding).elements
        one = (part.address, size, count, blocks, *vectors, address(part.out), share)
        return Job(_integer_kernel(part.encoding), -(-count // share), one)
    source = INTERLEAVED[part.encoding].source
    bias = 0 if INTEGERS[source].shifted else integer_bias(setup.current().level, source)
    share = max(1, min(share, _TASK_BYTES // size))
    words = (
        part.address, size, count, part.columns, *vectors, x.count, x.width, address(part.out),
        share, _unpacker(part.encoding), bias, place, slot,
    )  # fmt: skip
    return Job(_many_kernel(source), -(-count // share), words)
