"""Read memory as fast as the threads can: what a kernel that only reads would take."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load, load_i64, store
from larql.kernels.threads import launch
from larql.kernels.vector import bits, splat

__all__ = ["UNIT", "read_through"]

UNIT = 256  # bytes of one pass of the loop: four independent vectors, so that none waits
_SHARE = 1 << 18
_ZERO = np.float32(0)


@kernel
def _read(variant: Any, p: int, task: int, worker: int) -> None:
    data, size, sums = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    at = data + task * _SHARE
    end = min(at + _SHARE, data + size)
    a = b = c = d = bits(splat(_ZERO))
    while at < end:
        a = a + bits(load(at))
        b = b + bits(load(at + 64))
        c = c + bits(load(at + 128))
        d = d + bits(load(at + 192))
        at += 256
    store(sums + task * 64, bits((a + b) + (c + d)))


@cache
def _compiled() -> int:
    return compiled_address(_read, Variant(setup.current().level))


def read_through(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Read every byte once, on all threads, and return what keeps that from being left out.

    Parameters
    ----------
    data : uint8 [n], contiguous
        At least one byte; n is a multiple of `UNIT`.

    Returns
    -------
    int32 [16]
        Sums, modulo 2^32, of the words at each place in blocks of 16 little-endian words.

    Raises
    ------
    ValueError
        When `data` is no such array.
    """
    if (
        data.dtype != np.uint8
        or data.ndim != 1
        or not data.flags.c_contiguous
        or data.size == 0
        or data.size % UNIT
    ):
        raise ValueError(
            f"data must be contiguous uint8 [n], n a positive multiple of {UNIT}, found "
            f"{data.dtype} {data.shape}"
        )
    tasks = -(-data.size // _SHARE)
    sums = np.empty((tasks, 16), np.int32)
    parameters = np.array([address(data), data.size, address(sums)], np.int64)
    launch(_compiled(), parameters, tasks)
    total: npt.NDArray[np.int32] = sums.sum(axis=0, dtype=np.int32)
    return total
