"""Rows of encoded weights times float32 vectors.

Rows of units are multiplied by `larql.kernels.unit_product`. Weights of others are used as the
exact float32 values that their encoding stands for; the sum is defined in `larql.kernels.tile`. One
vector is multiplied while rows are decoded in registers; for several, a panel of rows is decoded
once into scratch memory. Both add the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address, float_matrix
from larql.kernels.encodings import block
from larql.kernels.expand import PREPARED, expand, expand_rest, prepare, prepared_room
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import call_kernel, fetch_lines, load_i64
from larql.kernels.parts import (
    Job,
    Part,
    check_parts,
    fitting,
    panel_rows,
    rounded_up,
    run_together,
    share_rows,
)
from larql.kernels.shape import (
    narrow,
    scale_count,
    step_bytes,
    step_elements,
    tile_columns,
    tile_rows,
)
from larql.kernels.slab_product import float_job, interleaved_expander
from larql.kernels.threads import scratch
from larql.kernels.tile import coded_tile, plain_tile
from larql.kernels.unit_product import fits_stack, unit_job_of_one, unit_jobs, unit_scratch
from larql.kernels.unit_slab import has_units

__all__ = ["expander", "job_of_one", "products"]

# (rows, columns) of a register tile: sums, weights and one vector must fit the register file.
_CODED = {"avx512": (4, 1), "avx2": (4, 1), "portable": (2, 1)}
_PLAIN = {"avx512": (4, 6), "avx2": (2, 3), "portable": (1, 2)}
_PANEL_BYTES = 192 << 10  # decoded rows of a task stay in the second-level cache
_BATCH_BYTES = 10 << 10
_ROWS = 4  # rows of a task and of a batch are a multiple


@kernel
def _expand_row(variant: Any, source: int, target: int, columns: int) -> None:
    step, size, numbers = step_elements(variant), step_bytes(variant), scale_count(variant)
    blocks = columns // step
    room = prepared_room(variant)
    most = PREPARED // numbers if numbers > 0 else blocks
    done = 0
    while done < blocks:
        count = min(most, blocks - done)
        prepare(variant, source + done * size, count, room)
        expand(variant, source + done * size, count, room, target + done * step * 4)
        done += count
    if blocks * step < columns:
        expand_rest(
            variant, source + blocks * size, target + blocks * step * 4, columns - blocks * step
        )


@kernel
def _coded_rows(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    blocks, x, out = load_i64(p + 24), load_i64(p + 32), load_i64(p + 40)
    share, batch = load_i64(p + 48), load_i64(p + 56)
    room = prepared_room(variant)
    row = task * share
    end = min(row + share, rows)
    fetch_lines(weight + row * stride, batch * stride)
    while row < end:
        height = min(batch, end - row)
        first = weight + row * stride
        prepare(variant, first, height * blocks, room)
        for r in range(0, height, tile_rows(variant)):
            coded_tile(
                variant, first + r * stride, stride, height - 1 - r,
                room + r * blocks * scale_count(variant) * 4, height * stride, blocks, x, 0, 0,
                out + (row + r) * 4, 0,
            )  # fmt: skip
        row += height


@kernel
def _panel(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    x, x_stride, count = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    out, out_stride, share = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    expander, decoded = load_i64(p + 80), load_i64(p + 88) + worker * load_i64(p + 96)
    decoded_stride, together, blocked = load_i64(p + 104), load_i64(p + 112), load_i64(p + 120)
    first = task * share
    height = min(share, rows - first)
    row = 0
    while row < height:  # a range would call a library where its step is 0
        call_kernel(
            expander, weight + (first + row) * stride, decoded + row * decoded_stride, blocked
        )
        row += together
    wide = tile_columns(variant)
    column = 0
    while column < count:
        left = count - column
        width = wide if 2 * left > wide else (2 if left > 1 else 1)
        row = 0
        while row < height:
            w = decoded + row * decoded_stride
            v = x + column * x_stride
            o = out + column * out_stride + (first + row) * 4
            last = height - 1 - row
            if column == 0:  # what the next task decodes comes while this one multiplies
                fetch_lines(weight + (first + share + row) * stride, tile_rows(variant) * stride)
            if width == wide:
                plain_tile(
                    variant, w, decoded_stride, last, v, x_stride, left - 1, columns, o, out_stride
                )
            elif width == 2:
                plain_tile(
                    narrow(variant, 2), w, decoded_stride, last, v, x_stride, 1, columns, o,
                    out_stride,
                )  # fmt: skip
            else:
                plain_tile(
                    narrow(variant, 1), w, decoded_stride, last, v, x_stride, 0, columns, o,
                    out_stride,
                )  # fmt: skip
            row += tile_rows(variant)
        column += width


@cache
def expander(encoding: str) -> int:
    """Return the address of code that decodes `Block.together` rows of `encoding` to float32."""
    if block(encoding).together > 1:
        return interleaved_expander(encoding)
    return compiled_address(_expand_row, Variant(setup.current().level, encoding))


@cache
def _coded(encoding: str) -> int:
    level = setup.current().level
    return compiled_address(_coded_rows, Variant(level, encoding, *_CODED[level]))


@cache
def _plain() -> int:
    level = setup.current().level
    return compiled_address(_panel, Variant(level, "", *_PLAIN[level]))


def _direct(part: Part) -> bool:
    """Return whether rows can be decoded in registers: unpadded, whole steps, scales that fit."""
    geometry = block(part.encoding)
    if part.stored_columns is not None:
        return False
    numbers = 4 * geometry.scales * part.columns
    return part.columns % geometry.step == 0 and numbers <= PREPARED * geometry.step


def _in_registers(part: Part, x: npt.NDArray[np.float32]) -> Job:
    if block(part.encoding).together > 1:
        return float_job(part, x)
    geometry, stride = block(part.encoding), part.row_bytes
    blocks = part.columns // geometry.step
    share = share_rows(part.rows, stride, _ROWS)
    rows = min(_BATCH_BYTES // max(stride, 1), PREPARED // max(blocks * geometry.scales, 1))
    batch = max(_ROWS, rows // _ROWS * _ROWS)
    words = (
        part.address, stride, part.rows, blocks, address(x), address(part.out), share, batch
    )  # fmt: skip
    return Job(_coded(part.encoding), -(-part.rows // share), words)


def _stride(part: Part) -> int:
    return (rounded_up(part.blocked_columns, 16) + 16) * 4


def _share(part: Part) -> int:
    rows = panel_rows(part.rows, _stride(part), _PANEL_BYTES)
    return rounded_up(rows, block(part.encoding).together)


def _by_panels(part: Part, x: npt.NDArray[np.float32], place: int, slot: int) -> Job:
    share = fitting(_share(part), slot, _stride(part), max(_ROWS, block(part.encoding).together))
    words = (
        part.address, part.row_bytes, part.rows, part.columns, address(x), x.shape[1] * 4,
        x.shape[0], address(part.out), part.rows * 4, share, expander(part.encoding), place, slot,
        _stride(part), block(part.encoding).together, part.blocked_columns,
    )  # fmt: skip
    return Job(_plain(), -(-part.rows // share), words)


def job_of_one(part: Part, x: npt.NDArray[np.float32]) -> Job:
    """Return the job that multiplies one matrix with one vector, float32 [1, columns].

    Its words begin with the address of the stored bytes; that of `x` is the fifth, that of `out`
    the sixth where there are eight words, and else the eighth.
    """
    if has_units(part.encoding):
        return unit_job_of_one(part, x)
    if _direct(part):
        return _in_registers(part, x)
    place, slot = scratch(_share(part) * _stride(part))
    return _by_panels(part, x, place, slot)


def products(parts: Sequence[Part], x: npt.NDArray[np.float32]) -> None:
    """Multiply each row of some matrices with each vector of `x`.

    The bits of ``out[c, r]`` depend on row r and vector c alone: not on how many of either there
    are, on what else is multiplied, on the thread count or on the instruction set.

    Parameters
    ----------
    parts : sequence of Part
        Matrices of as many columns as `x`, and where their products go.
    x : float32 [C, columns]
        C-contiguous.

    Raises
    ------
    ValueError
        When an operand's shape, type or layout is not as above, or an encoding is unknown.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be [C, columns], found shape {x.shape}")
    check_parts(parts, x.shape[1], x.shape[0])
    float_matrix(x, x.shape, "x")
    parts = [part for part in parts if part.out.size]
    if not parts:
        return
    united = [part for part in parts if has_units(part.encoding)]
    jobs: list[Job] = []
    if len(x) == 1 and all(map(fits_stack, united)):
        jobs = [unit_job_of_one(part, x) for part in united]
        united = []
    plain = [part for part in parts if not has_units(part.encoding)]
    direct = [part for part in plain if len(x) == 1 and _direct(part)]
    others = [part for part in plain if part not in direct]
    jobs += [_in_registers(part, x) for part in direct]
    if others or united:
        sizes = [_share(part) * _stride(part) for part in others]
        place, slot = scratch(max(sizes + [unit_scratch(part) for part in united]))
        jobs += [_by_panels(part, x, place, slot) for part in others]
        jobs += unit_jobs(united, x, place, slot)
    run_together(jobs, *parts, x)
