"""Exact decoding of weight blocks, as code emitters.

Each function yields the weights of one block as vectors of 16 consecutive elements, in order, as
the float32 values ggml's reference decoding gives. Scale times integer is exact in float32 for all
of these encodings, so scale * q + shift is rounded once whether fused or not, and the value is the
same whichever way a level computes it. Layouts: GGUF specification, ggml's block structures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from llvmlite import ir

from larql.kernels.levels import Portable
from larql.kernels.memory import read
from larql.kernels.vector import F32, I32, LANES, constant

__all__ = ["CODES_IQ4", "CODES_MXFP4", "UNPACK"]

CODES_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
CODES_MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the value

_I16 = ir.IntType(16)
# (emitter, block address, address of the block's prepared scales) -> vectors
Emit = Callable[[Portable, Any, Any], Iterator[Any]]


def _high(e: Portable, packed: Any) -> Any:
    return e.builder.lshr(packed, constant(I32.llvm, 4))


def _f32(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    yield read(e.builder, p, F32.llvm)


def _f16(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    yield e.halves(p)


def _bf16(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    wide = e.builder.zext(read(e.builder, p, ir.VectorType(_I16, LANES)), I32.llvm)
    yield e.builder.bitcast(e.builder.shl(wide, constant(I32.llvm, 16)), F32.llvm)


def _q8_0(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    for at in (2, 18):
        yield e.scaled(e.signed_bytes(p, at), e.number(s, 0))


def _q4_0(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    table = e.affine4(e.number(s, 0), -8.0, None)
    packed = e.bytes(p, 2)
    yield e.lookup4(table, packed)
    yield e.lookup4(table, _high(e, packed))


def _q4_1(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    table = e.affine4(e.number(s, 0), 0.0, e.number(s, 1))
    packed = e.bytes(p, 4)
    yield e.lookup4(table, packed)
    yield e.lookup4(table, _high(e, packed))


def _fives(e: Portable, p: Any, at: int, table: Any) -> Iterator[Any]:
    """Emit functions of 5-bit integers; their fifth bits are a 32-bit word before the others."""
    packed = e.small(p, at + 4)
    for first, high in ((0, False), (16, True)):
        yield e.lookup5(table, packed, high, e.set_bits(p, at, first))


def _q5_0(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    yield from _fives(e, p, 2, e.affine5(e.number(s, 0), -16, None))


def _q5_1(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    yield from _fives(e, p, 4, e.affine5(e.number(s, 0), 0, e.number(s, 1)))


def _iq4_nl(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    table = e.codebook(CODES_IQ4, e.number(s, 0))
    packed = e.bytes(p, 2)
    yield e.lookup_code(table, packed)
    yield e.lookup_code(table, _high(e, packed))


def _mxfp4(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    table = e.codebook(CODES_MXFP4, e.number(s, 0))
    packed = e.bytes(p, 1)
    yield e.lookup_code(table, packed)
    yield e.lookup_code(table, _high(e, packed))


def _q4_k(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    for pair in range(4):
        packed = [e.bytes(p, 16 + 32 * pair + at) for at in (0, 16)]
        for group in (2 * pair, 2 * pair + 1):
            table = e.affine4(e.number(s, group), 0.0, e.number(s, 8 + group))
            for value in packed:
                yield e.lookup4(table, _high(e, value) if group % 2 else value)


def _q5_k(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    tops = [e.small(p, 16 + at) for at in (0, 16)]
    for group in range(8):
        table = e.affine5(e.number(s, group), 0, e.number(s, 8 + group))
        for index, at in enumerate((0, 16)):
            packed = e.small(p, 48 + 32 * (group // 2) + at)
            fifth = e.bytes_with(tops[index], group)
            yield e.lookup5(table, packed, group % 2 == 1, fifth)


def _q6_k(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    b = e.builder
    for part in range(2):
        for quarter in range(4):
            for half in range(2):
                low = e.small(p, 64 * part + 32 * (quarter % 2) + 16 * half)
                tops = e.small(p, 128 + 32 * part + 16 * half)
                value = b.or_(
                    e.small_bits(low, 4 * (quarter // 2), 15),
                    e.small_shifted(tops, 2 * quarter - 4, 0x30),
                )
                value = e.widened(b.sub(value, constant(value.type, 32)))
                yield e.scaled(value, e.number(s, 8 * part + 2 * quarter + half))


def _q2_k(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    for group in range(16):
        at = 16 + 32 * (group // 8) + 16 * (group % 2)
        value = e.widened(e.small_bits(e.small(p, at), 2 * (group % 8 // 2), 3))
        yield e.scaled(value, e.number(s, group), e.number(s, 16 + group))


def _q3_k(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    b = e.builder
    for group in range(16):
        at = 32 + 32 * (group // 8) + 16 * (group % 2)
        value = e.small_bits(e.small(p, at), 2 * (group % 8 // 2), 3)
        top = e.small_shifted(e.small(p, 16 * (group % 2)), group // 2 - 2, 4)
        value = b.sub(b.or_(value, top), constant(value.type, 4))
        yield e.scaled(e.widened(value), e.number(s, group))


def _iq4_xs(e: Portable, p: Any, s: Any) -> Iterator[Any]:
    for group in range(8):
        table = e.codebook(CODES_IQ4, e.number(s, group))
        packed = e.bytes(p, 8 + 16 * group)
        yield e.lookup_code(table, packed)
        yield e.lookup_code(table, _high(e, packed))


UNPACK: Mapping[str, Emit] = {
    "f32": _f32,
    "f16": _f16,
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
}
