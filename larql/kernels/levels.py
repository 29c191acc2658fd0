"""What differs between instruction-set levels, as code emitters.

Every method has one meaning and one set of result bits; levels differ in the instructions that
reach it. `Portable` emits nothing that names a vector instruction set. The others use intrinsics
of their own set and must only be compiled in a process whose target has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from larql.kernels.memory import offset, read
from larql.kernels.vector import F32, I32, LANES, constant, fused, spread

__all__ = ["Avx2", "Avx512", "Portable", "emitter"]

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_SMALL = ir.VectorType(_I8, LANES)


def _floats(integers: Any) -> ir.VectorType:
    """Return float32 lanes, as many as there are integers."""
    return ir.VectorType(ir.FloatType(), integers.type.count)


class Portable:
    """Emit unpacking code from plain vector arithmetic."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def call(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """Emit a call of an LLVM intrinsic."""
        kinds = [argument.type for argument in arguments]
        found = self.builder.module.globals.get(name)
        function = found or ir.Function(self.builder.module, ir.FunctionType(result, kinds), name)
        return self.builder.call(function, arguments)

    def word(self, address: Any, at: int, width: int) -> Any:
        """Emit an unsigned integer load of `width` bits."""
        return read(self.builder, offset(self.builder, address, at), ir.IntType(width))

    def number(self, address: Any, index: int) -> Any:
        """Emit the float32 number `index` from `address` on."""
        return read(self.builder, offset(self.builder, address, 4 * index), ir.FloatType())

    def small(self, address: Any, at: int) -> Any:
        """Emit 16 bytes as they are."""
        return read(self.builder, offset(self.builder, address, at), ir.VectorType(_I8, LANES))

    def small_bits(self, small: Any, shift: int, mask: int) -> Any:
        """Emit (small >> shift) & mask of each byte."""
        if shift:
            small = self.builder.lshr(small, constant(small.type, shift))
        return self.builder.and_(small, constant(small.type, mask))

    def small_shifted(self, small: Any, shift: int, mask: int) -> Any:
        """Emit small >> shift, or << -shift where negative, of each byte, masked."""
        if shift >= 0:
            return self.small_bits(small, shift, mask)
        left = self.builder.shl(small, constant(small.type, -shift))
        return self.builder.and_(left, constant(small.type, mask))

    def small_choice(self, word: Any, set_: int, clear: int) -> Any:
        """Emit bytes `set_` or `clear` by the bits of a word."""
        count = word.type.width
        kind = ir.VectorType(_I8, count)
        mask = self.builder.bitcast(word, ir.VectorType(ir.IntType(1), count))
        return self.builder.select(mask, constant(kind, set_), constant(kind, clear))

    def widened(self, small: Any) -> Any:
        """Emit 16 signed bytes as int32 lanes."""
        return self.builder.sext(small, I32.llvm)

    def bytes(self, address: Any, at: int) -> Any:
        """Emit 16 unsigned bytes as int32 lanes."""
        source = offset(self.builder, address, at)
        return self.builder.zext(read(self.builder, source, ir.VectorType(_I8, LANES)), I32.llvm)

    def signed_bytes(self, address: Any, at: int) -> Any:
        """Emit 16 signed bytes as int32 lanes."""
        source = offset(self.builder, address, at)
        return self.builder.sext(read(self.builder, source, ir.VectorType(_I8, LANES)), I32.llvm)

    def float_of(self, integers: Any) -> Any:
        """Emit int32 lanes as float32 lanes (exact: the values here are small)."""
        return self.builder.sitofp(integers, _floats(integers))

    def bits_of(self, integers: Any, shift: int, mask: int) -> Any:
        """Emit (integers >> shift) & mask."""
        if shift:
            integers = self.builder.lshr(integers, constant(integers.type, shift))
        return self.builder.and_(integers, constant(integers.type, mask))

    def half(self, address: Any, at: int) -> Any:
        """Emit the binary16 number at `address` + `at` as a float32 scalar."""
        return self._widen_half(self.word(address, at, 16), _I32, ir.FloatType())

    def halves(self, address: Any) -> Any:
        """Emit 16 binary16 numbers as float32 lanes."""
        return self.halves_of(read(self.builder, address, ir.VectorType(_I16, LANES)))

    def halves_of(self, packed: Any) -> Any:
        """Emit the binary16 numbers of n 16-bit lanes as float32 lanes."""
        count = packed.type.count
        wide = ir.VectorType(_I32, count), ir.VectorType(ir.FloatType(), count)
        return self._widen_half(packed, *wide)

    def _widen_half(self, packed: Any, word: Any, number: Any) -> Any:
        b = self.builder

        def whole(value: int) -> Any:
            return constant(word, value) if isinstance(word, ir.VectorType) else word(value)

        wide = b.zext(packed, word)
        sign = b.shl(b.and_(wide, whole(0x8000)), whole(16))
        magnitude = b.and_(wide, whole(0x7FFF))
        normal = b.add(b.shl(magnitude, whole(13)), whole(112 << 23))
        huge = b.icmp_unsigned(">=", magnitude, whole(0x7C00))
        finite_or_not = b.select(huge, b.add(normal, whole(112 << 23)), normal)
        unit = 2.0**-24
        step = constant(number, unit) if isinstance(number, ir.VectorType) else number(unit)
        small = b.bitcast(b.fmul(b.uitofp(magnitude, number), step), word)
        tiny = b.icmp_unsigned("<", magnitude, whole(0x0400))
        return b.bitcast(b.or_(sign, b.select(tiny, small, finite_or_not)), number)

    def rounded_halves(self, value: Any) -> Any:
        """Emit 16 float32 lanes rounded to binary16, ties to even, as their 16-bit words."""
        b = self.builder

        def whole(number: int) -> Any:
            return constant(I32.llvm, number)

        wide = b.bitcast(value, I32.llvm)
        sign = b.and_(b.lshr(wide, whole(16)), whole(0x8000))
        magnitude = b.and_(wide, whole(0x7FFFFFFF))
        odd = b.and_(b.lshr(magnitude, whole(13)), whole(1))
        rebased = b.sub(magnitude, whole((112 << 23) - 0xFFF))
        normal = b.lshr(b.add(rebased, odd), whole(13))
        # Below 2^-14 the steps of binary16 are those of float32 numbers from 0.5 on.
        half = constant(F32.llvm, 0.5)
        raised = b.bitcast(b.fadd(b.bitcast(magnitude, F32.llvm), half), I32.llvm)
        small = b.sub(raised, b.bitcast(half, I32.llvm))
        payload = b.and_(b.lshr(magnitude, whole(13)), whole(0x3FF))
        nan = b.icmp_unsigned(">", magnitude, whole(0x7F800000))
        huge = b.select(nan, b.or_(payload, whole(0x7E00)), whole(0x7C00))
        tiny = b.icmp_unsigned("<", magnitude, whole(113 << 23))
        big = b.icmp_unsigned(">=", magnitude, whole(143 << 23))
        found = b.select(tiny, small, b.select(big, huge, normal))
        return b.trunc(b.or_(found, sign), ir.VectorType(_I16, LANES))

    def scaled(self, integers: Any, scale: Any, shift: Any | None = None) -> Any:
        """Emit float(integers) * scale + shift, scalars spread; products here are exact."""
        number = self.float_of(integers)
        factor = spread(self.builder, scale)
        if shift is None:
            return self.builder.fmul(number, factor)
        return fused(self.builder, number, factor, spread(self.builder, shift))

    def affine4(self, scale: Any, first: float, shift: Any | None) -> Any:
        """Prepare scale * (q + first) + shift for 4-bit q; return what `lookup4` takes."""
        return scale, first, shift

    def lookup4(self, prepared: Any, packed: Any) -> Any:
        """Emit the prepared function of the low four bits of each lane."""
        scale, first, shift = prepared
        integers = self.bits_of(packed, 0, 15)
        if first:
            integers = self.builder.add(integers, constant(I32.llvm, int(first)))
        return self.scaled(integers, scale, shift)

    def set_bits(self, address: Any, at: int, first: int) -> Any:
        """Emit a mask of 16 lanes from the bits `first` … `first` + 15 of a 32-bit word."""
        word = self.word(address, at + first // 8, LANES)
        return self.builder.bitcast(word, ir.VectorType(ir.IntType(1), LANES))

    def bytes_with(self, small: Any, bit: int) -> Any:
        """Emit a mask of the bytes in which a bit is set."""
        found = self.builder.and_(small, constant(small.type, 1 << bit))
        return self.builder.icmp_unsigned("!=", found, constant(small.type, 0))

    def affine5(self, scale: Any, first: int, shift: Any | None) -> Any:
        """Prepare scale * (q + first) + shift for 5-bit q; return what `lookup5` takes."""
        return scale, first, shift

    def lookup5(self, prepared: Any, small: Any, high: bool, fifth: Any) -> Any:
        """Emit the prepared function of four bits of each byte, the high or the low, and a mask."""
        scale, first, shift = prepared
        low = self.small_bits(small, 4 if high else 0, 15)
        kind = low.type
        top = self.builder.select(fifth, constant(kind, 16 + first), constant(kind, first))
        return self.scaled(self.widened(self.builder.add(low, top)), scale, shift)

    def codebook(self, values: Sequence[int], scale: Any) -> Any:
        """Prepare scale * values[q] for 4-bit q; return what `lookup_code` takes."""
        return tuple(values), scale

    def lookup_code(self, prepared: Any, packed: Any) -> Any:
        """Emit the prepared codebook value of the low four bits of each lane."""
        values, scale = prepared
        index = self.builder.trunc(self.bits_of(packed, 0, 15), _SMALL)
        return self.scaled(self.widened(self.code_bytes(values, index)), scale)

    def code_bytes(self, values: Sequence[int], index: Any) -> Any:
        """Emit the codebook's values of bytes below 16."""
        table = ir.Constant(_SMALL, [value & 255 for value in values])
        found = ir.Constant(index.type, ir.Undefined)
        for lane in range(index.type.count):
            number = self.builder.zext(self.builder.extract_element(index, _I32(lane)), _I32)
            entry = self.builder.extract_element(table, number)
            found = self.builder.insert_element(found, entry, _I32(lane))
        return found


class Avx2(Portable):
    """Emit for AVX2, FMA and F16C."""

    def _widen_half(self, packed: Any, word: Any, number: Any) -> Any:
        half: Any = ir.HalfType()
        kind = ir.VectorType(half, number.count) if isinstance(number, ir.VectorType) else half
        return self.builder.fpext(self.builder.bitcast(packed, kind), number)

    def rounded_halves(self, value: Any) -> Any:
        """Emit 16 float32 lanes rounded to binary16, ties to even, as their 16-bit words."""
        halves = self.builder.fptrunc(value, ir.VectorType(ir.HalfType(), LANES))
        return self.builder.bitcast(halves, ir.VectorType(_I16, LANES))

    def code_bytes(self, values: Sequence[int], index: Any) -> Any:
        """Emit the codebook's values of bytes below 16."""
        count = index.type.count
        table = ir.Constant(index.type, [value & 255 for value in values] * (count // LANES))
        name = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b"}[count]
        return self.call(name, index.type, [table, index])


class Avx512(Avx2):
    """Emit for AVX-512 F, BW, DQ and VL: sixteen weights are one table look-up."""

    def affine4(self, scale: Any, first: float, shift: Any | None) -> Any:
        """Prepare the sixteen possible results."""
        steps = ir.Constant(F32.llvm, [first + q for q in range(LANES)])
        factor = spread(self.builder, scale)
        if shift is None:
            return self.builder.fmul(steps, factor)
        return fused(self.builder, steps, factor, spread(self.builder, shift))

    def lookup4(self, prepared: Any, packed: Any) -> Any:
        """Emit the look-up; it heeds only the low four bits of each lane."""
        return self.call("llvm.x86.avx512.permvar.sf.512", F32.llvm, [prepared, packed])

    def affine5(self, scale: Any, first: int, shift: Any | None) -> Any:
        """Prepare the thirty-two possible results."""
        return tuple(self.affine4(scale, float(first + at), shift) for at in (0, 16))

    def set_bits(self, address: Any, at: int, first: int) -> Any:
        """Emit int32 lanes whose fifth bits are some bits of a 32-bit word."""
        turns = ir.Constant(I32.llvm, [(first + lane - 4) % 32 for lane in range(LANES)])
        wide = spread(self.builder, self.word(address, at, 32))
        return self.call("llvm.fshr.v16i32", I32.llvm, [wide, wide, turns])

    def bytes_with(self, small: Any, bit: int) -> Any:
        """Emit int32 lanes whose fifth bits are one bit of each byte."""
        b = self.builder
        wide = b.zext(small, I32.llvm)
        if bit < 4:
            return b.shl(wide, constant(I32.llvm, 4 - bit))
        return b.lshr(wide, constant(I32.llvm, bit - 4)) if bit > 4 else wide

    def lookup5(self, prepared: Any, small: Any, high: bool, fifth: Any) -> Any:
        """Emit the look-up; it heeds only the low five bits of each lane."""
        b = self.builder
        index = b.zext(small, I32.llvm)
        if high:
            index = b.lshr(index, constant(I32.llvm, 4))
        # The lowest four bits of one, the rest of the other.
        operands = [constant(I32.llvm, 15), index, fifth, _I32(0xCA)]
        index = self.call("llvm.x86.avx512.pternlog.d.512", I32.llvm, operands)
        name, (low, up) = "llvm.x86.avx512.vpermi2var.ps.512", prepared
        return self.call(name, F32.llvm, [low, index, up])

    def codebook(self, values: Sequence[int], scale: Any) -> Any:
        """Prepare the sixteen possible results."""
        table = ir.Constant(F32.llvm, [float(value) for value in values])
        return self.builder.fmul(table, spread(self.builder, scale))

    def lookup_code(self, prepared: Any, packed: Any) -> Any:
        """Emit the look-up."""
        return self.lookup4(prepared, packed)


def emitter(level: str, builder: Any) -> Portable:
    """Return the emitter of a level."""
    return {"avx512": Avx512, "avx2": Avx2, "portable": Portable}[level](builder)
