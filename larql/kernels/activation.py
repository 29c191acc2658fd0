"""Activations of feed-forward layers, elementwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import float_matrix, refuse
from larql.kernels.jit import (
    MATRIX,
    VECTOR,
    Variant,
    chosen,
    compiled_address,
    compiled_entry,
    kernel,
)
from larql.kernels.math import (
    erf,
    exp,
    gelu_erf,
    gelu_tanh,
    relu,
    relu2,
    sigmoid,
    silu,
    softplus,
    tanh,
)
from larql.kernels.memory import address_of, load, load_i64, load_part, store, store_part, words
from larql.kernels.threads import begin, submit

__all__ = ["ACTIVATIONS", "KINDS", "Kind", "activate", "elementary", "gate"]

Kind = Literal["silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "sigmoid"]
KINDS: tuple[Kind, ...] = ("silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "sigmoid")
_SHARE = 4096  # elements of a task: below this a second thread costs more than it saves

ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu2": relu2,
    "sigmoid": sigmoid,
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    **ACTIVATIONS,
    "exp": exp,
    "tanh": tanh,
    "erf": erf,
    "softplus": softplus,
}


@chosen(_FUNCTIONS)
def _apply(variant: Any, x: Any) -> Any:
    """Apply the variant's function to sixteen lanes."""


@kernel
def _activate(variant: Any, p: int, task: int, worker: int) -> None:
    x, out, size = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(out + at * 4, _apply(variant, load(x + at * 4)))
        at += 16
    if at < end:
        store_part(out + at * 4, _apply(variant, load_part(x + at * 4, end - at)), end - at)


@kernel
def _gate(variant: Any, p: int, task: int, worker: int) -> None:
    g, up, out, size = load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(out + at * 4, _apply(variant, load(g + at * 4)) * load(up + at * 4))
        at += 16
    if at < end:
        left = end - at
        value = _apply(variant, load_part(g + at * 4, left)) * load_part(up + at * 4, left)
        store_part(out + at * 4, value, left)


@kernel
def _enter(run: int, pool: int, function: int, tasks: int, x: Any, out: Any) -> None:
    begin(run, pool, function, tasks, words((address_of(x), address_of(out), x.size)))


@kernel
def _enter_gate(
    run: int, pool: int, function: int, tasks: int, gate: Any, up: Any, out: Any
) -> None:
    begin(run, pool, function, tasks, words((
        address_of(gate), address_of(up), address_of(out), gate.size,
    )))  # fmt: skip


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, VECTOR, VECTOR)


@cache
def _entry_gate() -> Callable[..., None]:
    return compiled_entry(_enter_gate, MATRIX, MATRIX, MATRIX)


@cache
def _compiled(function: Any, kind: str) -> int:
    return compiled_address(function, Variant(setup.current().level, kind))


def activate(x: npt.NDArray[np.float32], kind: Kind, out: npt.NDArray[np.float32]) -> None:
    """Write act(x) to `out`.

    Parameters
    ----------
    x, out : float32, C-contiguous, of one shape
        May be the same array.
    kind : one of `KINDS`

    Raises
    ------
    ValueError
        When the arrays do not fit or `kind` is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, found {kind!r}")
    elementary(x, kind, out)


def elementary(x: npt.NDArray[np.float32], name: str, out: npt.NDArray[np.float32]) -> None:
    """Write f(x) to `out`, f an activation or one of exp, tanh, erf, softplus."""
    float_matrix(x, x.shape, "x")
    float_matrix(out, x.shape, "out")
    submit(
        _entry(), _compiled(_activate, name), -(-x.size // _SHARE), x.reshape(-1), out.reshape(-1)
    )


def gate(
    gate: npt.NDArray[np.float32],
    up: npt.NDArray[np.float32],
    kind: Kind,
    out: npt.NDArray[np.float32],
) -> None:
    """Write act(gate) * up to `out`.

    Parameters
    ----------
    gate, up, out : float32 [T, F], C-contiguous
        `out` may be `gate` or `up`.
    kind : one of `KINDS`

    Raises
    ------
    ValueError
        When the arrays do not fit or `kind` is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"activation must be one of {', '.join(KINDS)}, found {kind!r}")
    shape = gate.shape
    if up.shape != shape or out.shape != shape:
        refuse(("up", up, shape), ("out", out, shape))
    try:
        submit(_entry_gate(), _compiled(_gate, kind), -(-gate.size // _SHARE), gate, up, out)
    except TypeError:
        refuse(("gate", gate, shape), ("up", up, shape), ("out", out, shape))
