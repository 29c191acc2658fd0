"""Checks of kernel operands: a kernel works on addresses, so a wrong shape must stop before it.

Entries are compiled for contiguous float32 alone, so a wrong type or layout is a TypeError there;
wrappers compare shapes, and come here to say what is wrong.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

__all__ = ["EMPTY", "Turn", "address", "flat_bytes", "float_matrix", "refuse", "turn_address"]

_FLOAT = np.dtype(np.float32)
_BYTE = np.dtype(np.uint8)
Turn = npt.NDArray[np.int64]
EMPTY: npt.NDArray[np.float32] = np.empty(0, np.float32)  # stands for an operand that is not there


def address(array: npt.NDArray[Any]) -> int:
    """Return where the array's first element is."""
    return int(array.ctypes.data)


def flat_bytes(array: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return stored bytes as one vector, without copying.

    Raises
    ------
    ValueError
        When the array has another type, size or layout.
    """
    if array.ndim == 1 and array.size == size and array.dtype == _BYTE and array.strides == (1,):
        return array
    if array.dtype != _BYTE or array.size != size or not array.flags.c_contiguous:
        raise ValueError(
            f"weight must be {size} contiguous bytes, found {array.dtype} {array.shape}"
        )
    return array.reshape(-1)


def float_matrix(array: npt.NDArray[np.float32], shape: tuple[int, ...], name: str) -> int:
    """Return the address of a C-contiguous float32 array of just this shape.

    Raises
    ------
    ValueError
        When the array has another type, shape or layout.
    """
    flags = array.flags
    if array.dtype != _FLOAT or array.shape != shape or not flags.c_contiguous:
        layout = "contiguous" if flags.c_contiguous else "strided"
        raise ValueError(
            f"{name} must be contiguous float32 {shape}, found {layout} {array.dtype} {array.shape}"
        )
    return address(array)


def turn_address(turn: Turn) -> int:
    """Return the address of the word that says which half of a state is the current one.

    Raises
    ------
    ValueError
        When it is no such word, 0 or 1.
    """
    if turn.dtype != np.int64 or turn.shape != (1,) or turn[0] not in (0, 1):
        raise ValueError(f"turn must be one int64, 0 or 1, found {turn!r:.60}")
    return address(turn)


def refuse(*operands: tuple[str, npt.NDArray[np.float32], tuple[int, ...]]) -> NoReturn:
    """Raise a ValueError about the first (name, array, expected shape) that does not fit."""
    for name, array, shape in operands:
        float_matrix(array, shape, name)
        if not array.flags.writeable:
            raise ValueError(f"{name} must be writable")
    raise ValueError("weight bytes must be contiguous uint8 and scalars plain numbers")
