"""Atomic words and the two system calls that threads need to wait for each other."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from larql.kernels.jit import instruction, types
from larql.kernels.memory import pointer

__all__ = [
    "atomic_add",
    "atomic_load",
    "atomic_release",
    "atomic_store",
    "futex",
    "relax",
    "swap_if",
    "yield_core",
]

_WORD, _INT = ir.IntType(64), ir.IntType(32)


@instruction
def atomic_load(typingctx: Any, address: Any) -> Any:
    """Return the int64 at `address`, ordered before everything that follows."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], _WORD), "seq_cst", 8)

    return types.int64(types.int64), emit


def _writing(order: str) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[1], pointer(builder, args[0], _WORD), order, 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@instruction
def atomic_store(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at `address`, ordered after everything before and before what follows."""
    return _writing("seq_cst")


@instruction
def atomic_release(typingctx: Any, address: Any, value: Any) -> Any:
    """Write the int64 at `address`, ordered after everything before, without waiting for it."""
    return _writing("release")


@instruction
def atomic_add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address` and return what it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = pointer(builder, args[0], _WORD)
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@instruction
def swap_if(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write `value` if the int64 at `address` is `expected`; return whether it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = pointer(builder, args[0], _WORD)
        result = builder.cmpxchg(place, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@instruction
def relax(typingctx: Any, variant: Any) -> Any:
    """Let a spinning core rest for some cycles, where its instruction set can say so."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if variant.level != "portable":
            name, kind = "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])
            found = builder.module.globals.get(name)
            builder.call(found or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(variant), emit


def _function(builder: Any, name: str, kind: Any) -> Any:
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


@instruction
def yield_core(typingctx: Any) -> Any:
    """Offer the core to another thread (sched_yield)."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.call(_function(builder, "sched_yield", ir.FunctionType(_INT, [])), [])
        return context.get_dummy_value()

    return types.void(), emit


@instruction
def futex(typingctx: Any, number: Any, address: Any, operation: Any, value: Any) -> Any:
    """Make the Linux futex call, number `number`, on the int32 at `address`, without timeout."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_WORD, [_WORD], var_arg=True)
        number, address, operation, value = args
        builder.call(
            _function(builder, "syscall", kind), [number, address, operation, value, _WORD(0)]
        )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit
