"""Straight-line lane arithmetic, written as Python and emitted as it runs.

A traced function is an ordinary Python function of lanes. When a kernel calls it, it is run once
on objects that stand for lanes, and what it does to them becomes the kernel's code. That costs a
fraction of having Numba compile it, which matters because exp alone is inlined all over attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from larql.kernels.jit import instruction
from larql.kernels.vector import F32, I32, constant, fused

__all__ = ["Lanes", "bits", "fma", "number", "select", "traced", "whole"]


class Lanes:
    """Sixteen float32, int32 or mask lanes while code is emitted."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def _floating(self) -> bool:
        return bool(self.value.type == F32.llvm)

    def _with(self, value: Any) -> Lanes:
        return Lanes(self.builder, value)

    def _pick(self, other: Lanes, floating: str, integer: str) -> Lanes:
        emit = getattr(self.builder, floating if self._floating else integer)
        return self._with(emit(self.value, other.value))

    def __add__(self, other: Lanes) -> Lanes:
        return self._pick(other, "fadd", "add")

    def __sub__(self, other: Lanes) -> Lanes:
        return self._pick(other, "fsub", "sub")

    def __mul__(self, other: Lanes) -> Lanes:
        return self._pick(other, "fmul", "mul")

    def __truediv__(self, other: Lanes) -> Lanes:
        return self._with(self.builder.fdiv(self.value, other.value))

    def __and__(self, other: Lanes) -> Lanes:
        return self._with(self.builder.and_(self.value, other.value))

    def __or__(self, other: Lanes) -> Lanes:
        return self._with(self.builder.or_(self.value, other.value))

    def __lshift__(self, count: int) -> Lanes:
        return self._with(self.builder.shl(self.value, constant(I32.llvm, count)))

    def __rshift__(self, count: int) -> Lanes:
        return self._with(self.builder.ashr(self.value, constant(I32.llvm, count)))

    def __lt__(self, other: Lanes) -> Lanes:
        return self._with(self.builder.fcmp_ordered("<", self.value, other.value))

    def __gt__(self, other: Lanes) -> Lanes:
        return self._with(self.builder.fcmp_ordered(">", self.value, other.value))


def number(like: Lanes, value: float) -> Lanes:
    """Return `value`, rounded to float32, in every lane."""
    return Lanes(like.builder, constant(F32.llvm, float(value)))


def whole(like: Lanes, value: int) -> Lanes:
    """Return the int32 `value` in every lane."""
    return Lanes(like.builder, constant(I32.llvm, value))


def fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Return a*b + c rounded once."""
    return Lanes(a.builder, fused(a.builder, a.value, b.value, c.value))


def select(mask: Lanes, yes: Lanes, no: Lanes) -> Lanes:
    """Return `yes` where `mask` is set, else `no`."""
    return Lanes(mask.builder, mask.builder.select(mask.value, yes.value, no.value))


def bits(x: Lanes) -> Lanes:
    """Reinterpret float32 lanes as int32 lanes, or the other way round."""
    other = I32.llvm if x.value.type == F32.llvm else F32.llvm
    return Lanes(x.builder, x.builder.bitcast(x.value, other))


def traced(function: Callable[[Lanes], Lanes]) -> Callable[[Any], Any]:
    """Make a function of float32 lanes callable from kernels."""

    def kind(typingctx: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return function(Lanes(builder, args[0])).value

        return (F32(F32), emit) if x == F32 else None

    kind.__name__ = function.__name__
    return instruction(kind)
