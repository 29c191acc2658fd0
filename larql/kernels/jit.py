"""Numba decorators with types, and the one type that carries compile-time choices.

A kernel is a top-level function ``kernel(variant, parameters, task, worker)`` compiled once per
variant. The variant is a *type*: what it says is part of numba's signature, hence of its cache key,
and reaches code generation without a global or a closure.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from larql.kernels import setup

_SETUP = setup.current()

from numba import njit  # noqa: E402  (the line above settles numba's environment)
from numba.core import cgutils as _cgutils  # noqa: E402
from numba.core import imputils as _imputils  # noqa: E402
from numba.core import types  # noqa: E402
from numba.core.typing import templates as _templates  # noqa: E402
from numba.extending import intrinsic, models, overload  # noqa: E402
from numba.extending import register_model as _register_model  # noqa: E402

from larql.kernels import compiler  # noqa: E402
from larql.kernels.cache import KernelCache  # noqa: E402

__all__ = [
    "BYTES",
    "CUBE",
    "MATRIX",
    "READ_VECTOR",
    "REAL",
    "VECTOR",
    "WORD",
    "Variant",
    "cgutils",
    "chosen",
    "compile_cached",
    "compiled_address",
    "compiled_entry",
    "device",
    "imputils",
    "instruction",
    "kernel",
    "models",
    "native",
    "register_model",
    "templates",
    "types",
]

# Operands of entries. A weight may be mapped read-only; what is written may not.
WORD, REAL = types.int64, types.float64
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
VECTOR, MATRIX, CUBE = (types.Array(types.float32, axes, "C") for axes in (1, 2, 3))
READ_VECTOR = types.Array(types.float32, 1, "C", readonly=True)

# Parts of numba without types of their own. Kernel modules take numba from here, never directly:
# whichever is imported first, numba must find its environment settled.
cgutils: Any = _cgutils
imputils: Any = _imputils
templates: Any = _templates
register_model: Any = _register_model

# Several Python threads may need the same code at once; only one makes it.
_COMPILING = threading.RLock()

P = ParamSpec("P")
R = TypeVar("R")


class Variant(types.Type):
    """Compile-time choices of one kernel: instruction-set level, encoding, tile shape.

    It has no value at run time; a null pointer is passed for it.
    """

    def __init__(self, level: str, encoding: str = "", rows: int = 0, columns: int = 0) -> None:
        self.level = level
        self.encoding = encoding
        self.rows = rows
        self.columns = columns
        super().__init__(name=f"Variant({level},{encoding},{rows},{columns})")


register_model(Variant)(models.OpaqueModel)


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of a variant and three int64 for ahead compilation per variant."""
    dispatcher: Any = njit(nogil=True, error_model="numpy")(function)
    if _SETUP.cache_directory is not None:
        dispatcher._cache = KernelCache(function, _SETUP.cache_directory)
    return cast("Callable[P, R]", dispatcher)


def device(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a helper that is compiled into the kernels that call it."""
    decorate = njit(nogil=True, error_model="numpy", forceinline=True)
    return cast("Callable[P, R]", decorate(function))


def chosen(table: Mapping[str, Callable[..., Any]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of (variant, x) stand for the table's entry that the variant names."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def resolve(variant: Any, x: Any) -> Any:
            entry = table[variant.encoding]

            def call(variant: Any, x: Any) -> Any:
                return entry(x)

            return call

        overload(function)(resolve)
        return function

    return decorate


def instruction(function: Callable[Concatenate[Any, P], Any]) -> Callable[P, Any]:
    """Mark a function that types a call and emits its LLVM code."""
    return cast("Callable[P, Any]", intrinsic(function))


def compiled_address(function: Callable[..., Any], variant: Variant) -> int:
    """Return the address of the machine code of a kernel for one variant.

    Its C signature is ``void *(void *variant, int64_t, int64_t, int64_t)``.
    """
    signature = (variant, types.int64, types.int64, types.int64)
    compiled = compile_cached(function, signature)
    name = compiled.fndesc.llvm_cfunc_wrapper_name
    return int(compiled.library.get_pointer_to_function(name))


def native(address: int) -> Callable[[None, int, int, int], int | None]:
    """Return compiled kernel code as a Python function that runs without the interpreter lock."""
    return ctypes.CFUNCTYPE(
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
    )(address)


def compiled_entry(function: Callable[..., Any], *arguments: Any) -> Callable[..., None]:
    """Compile a function that Python calls with arrays, for these argument types alone.

    Its first four arguments, int64 each, are put before `arguments`.
    """
    signature = (types.int64,) * 4 + arguments
    dispatcher: Any = function
    with _COMPILING:
        compile_cached(function, signature)
        dispatcher.disable_compile()
    return function


def compile_cached(function: Callable[..., Any], signature: tuple[Any, ...]) -> Any:
    """Compile one signature, or load it.

    Returns
    -------
    numba.core.compiler.CompileResult
    """
    dispatcher: Any = function
    with _COMPILING:
        if signature not in dispatcher.overloads:
            compiler.used()
            with compiler.uninterrupted():
                dispatcher.compile(signature)
        return dispatcher.overloads[signature]
