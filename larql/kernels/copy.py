"""Copies of float32 arrays as a kernel call, so that a recorded step makes them again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import refuse
from larql.kernels.jit import VECTOR, Variant, compiled_address, compiled_entry, kernel
from larql.kernels.memory import (
    address_of,
    load,
    load_i64,
    load_part,
    store,
    store_part,
    words,
)
from larql.kernels.threads import begin, submit

__all__ = ["copy"]

_SHARE = 16384


@kernel
def _copy(variant: Any, p: int, task: int, worker: int) -> None:
    source, target, size = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    at = task * _SHARE
    end = min(at + _SHARE, size)
    while at + 16 <= end:
        store(target + at * 4, load(source + at * 4))
        at += 16
    if at < end:
        store_part(target + at * 4, load_part(source + at * 4, end - at), end - at)


@kernel
def _enter(run: int, pool: int, function: int, tasks: int, source: Any, target: Any) -> None:
    begin(run, pool, function, tasks, words((address_of(source), address_of(target), source.size)))


@cache
def _entry() -> Callable[..., None]:
    return compiled_entry(_enter, VECTOR, VECTOR)


@cache
def _compiled() -> int:
    return compiled_address(_copy, Variant(setup.current().level))


def copy(source: npt.NDArray[np.float32], target: npt.NDArray[np.float32]) -> None:
    """Copy all bits of `source` to `target`.

    Parameters
    ----------
    source, target : float32, C-contiguous, of one shape

    Raises
    ------
    ValueError
        When the arrays do not fit.
    """
    shape = source.shape
    if target.shape != shape or not (source.flags.c_contiguous and target.flags.c_contiguous):
        refuse(("source", source, shape), ("target", target, shape))
    try:
        submit(
            _entry(), _compiled(), -(-source.size // _SHARE), source.reshape(-1),
            target.reshape(-1),
        )  # fmt: skip
    except TypeError:
        refuse(("source", source, shape), ("target", target, shape))
