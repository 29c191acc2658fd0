"""Products of rows that lie interleaved by sixteen with a float32 vector; those of plain rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address
from larql.kernels.encodings import block
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load_i64
from larql.kernels.parts import Job, Part, share_rows
from larql.kernels.shape import step_elements
from larql.kernels.slab import expand_slab, float_slab

__all__ = ["SLAB", "float_job", "interleaved_expander", "slabs_of"]

SLAB = 16  # rows


@kernel
def _expand(variant: Any, source: int, target: int, columns: int) -> None:
    """Decode a slab to rows that are 16 float32 apart."""
    expand_slab(variant, source, columns // step_elements(variant), target, columns * 4 + 64)


@kernel
def _floats(variant: Any, p: int, task: int, worker: int) -> None:
    weight, size, slabs, blocks = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    x, out, share = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    for index in range(task * share, min((task + 1) * share, slabs)):
        float_slab(variant, weight + index * size, blocks, x, out + index * 64)


@cache
def interleaved_expander(encoding: str) -> int:
    """Return the address of code that decodes sixteen interleaved rows to float32.

    Rows are written one after the other, 16 float32 more than their columns apart.
    """
    return compiled_address(_expand, Variant(setup.current().level, encoding))


@cache
def _float_kernel(encoding: str) -> int:
    return compiled_address(_floats, Variant(setup.current().level, encoding))


def slabs_of(part: Part) -> tuple[int, int, int]:
    """Return the bytes of a slab of a matrix, how many there are, and how many a task takes."""
    size, count = SLAB * part.row_bytes, -(-part.rows // SLAB)
    return size, count, share_rows(count, size, 1)


def float_job(part: Part, x: npt.NDArray[np.float32]) -> Job:
    """Return the product with one float32 vector."""
    size, count, share = slabs_of(part)
    blocks = part.columns // block(part.encoding).elements
    words = (part.address, size, count, blocks, address(x), address(part.out), share)
    return Job(_float_kernel(part.encoding), -(-count // share), words)
