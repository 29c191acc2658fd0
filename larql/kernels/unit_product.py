"""Products of quantised rows with float32 vectors; `larql.kernels.unit_slab` defines them.

Packed rows are multiplied where they lie. Plain ones are interleaved, sixteen at a time and as many
blocks as the first-level cache holds, and then multiplied by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.kernels import setup
from larql.kernels.check import address
from larql.kernels.encodings import BLOCKS
from larql.kernels.interleave import interleave_slab
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import Variant, compiled_address, device, kernel
from larql.kernels.memory import (
    call_kernel,
    fetch_lines,
    load,
    load_f32,
    load_i64,
    store,
    store_f32,
    store_most,
)
from larql.kernels.parts import Job, Part, fitting, panel_rows
from larql.kernels.shape import step_bytes, step_elements, step_units
from larql.kernels.slab_product import SLAB, slabs_of
from larql.kernels.threads import launch, shared_scratch
from larql.kernels.unit_slab import (
    MOST_UNITS,
    alike_units,
    block_room,
    multiply_slab,
    results_room,
    slab_blocks,
    slab_encoding,
    slab_room,
    spread_slab,
    sum_units,
    sums_room,
    unit_size,
    unit_tile,
)
from larql.kernels.vector import splat

__all__ = ["fits_stack", "unit_job_of_one", "unit_jobs", "unit_scratch"]

_WIDEST = {"avx512": 12, "avx2": 4, "portable": 2}  # vectors of a register tile
_PANEL_BYTES = 192 << 10  # a task's slabs, as float32, stay in the second-level cache


@device
def _fill_up(x: int, count: int, target: int, length: int) -> None:
    """Copy `count` float32 and put zeros behind them."""
    for at in range(0, count * 4, 4):
        store_f32(target + at, load_f32(x + at))
    for at in range(count * 4, length * 4, 4):
        store_f32(target + at, np.float32(0))


@device
def _sum_row(variant: Any, x: int, columns: int, sums: int, tail: int) -> int:
    """Sum a vector's units; copy what is behind its whole blocks to `tail`; return their number."""
    elements, units = step_elements(variant), step_units(variant)
    blocks: int = columns // elements
    rest = columns - blocks * elements
    sum_units(variant, x, blocks * units, sums)
    if rest > 0:
        _fill_up(x + (columns - rest) * 4, rest, tail, elements)
        sum_units(variant, tail, units, sums + blocks * units * 4)
    return blocks


@kernel
def _one_of_packed(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    x, out, share = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    sums, tail, size = sums_room(variant), block_room(variant), stride * 16
    blocks = _sum_row(variant, x, columns, sums, tail)
    rest, behind = columns - blocks * step_elements(variant), blocks * step_units(variant) * 4
    for index in range(task * share, min((task + 1) * share, rows // 16)):
        slab, results = weight + index * size, out + index * 64
        store(results, splat(np.float32(0)))
        multiply_slab(variant, slab, blocks, size, x, sums, results)
        if rest > 0:
            multiply_slab(
                variant, slab + blocks * step_bytes(variant) * 16, 1, size, tail, sums + behind,
                results,
            )  # fmt: skip


@kernel
def _one_of_plain(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    x, out, share, most = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    elements, units, size = step_elements(variant), step_units(variant), step_bytes(variant)
    sums, tail, room = sums_room(variant), block_room(variant), slab_room(variant)
    results = results_room(variant)
    blocks = _sum_row(variant, x, columns, sums, tail)
    rest = columns - blocks * elements
    for row in range(task * share * 16, min((task + 1) * share * 16, rows), 16):
        slab, left = weight + row * stride, min(rows - row, 16)
        store(results, splat(np.float32(0)))
        done = 0
        while done < blocks:
            count = min(most, blocks - done)
            interleave_slab(
                variant, slab + done * size, stride, left - 1, count, room,
                slab + 16 * stride + done * size * 16,
            )  # fmt: skip
            multiply_slab(
                variant, room, count, 0, x + done * elements * 4, sums + done * units * 4, results
            )
            done += count
        if rest > 0:
            interleave_slab(variant, slab + blocks * size, stride, left - 1, 1, room, slab)
            multiply_slab(variant, room, 1, 0, tail, sums + blocks * units * 4, results)
        store_most(out + row * 4, load(results), left)


@kernel
def _prepare(variant: Any, p: int, task: int, worker: int) -> None:
    """Fill a vector up to whole blocks, where there is a place for it, and sum its units."""
    x, columns = load_i64(p) + task * load_i64(p + 8), load_i64(p + 16)
    filled, length = load_i64(p + 24), load_i64(p + 32)
    sums, units = load_i64(p + 40), load_i64(p + 48)
    if filled != 0:
        filled += task * length * 4
        _fill_up(x, columns, filled, length)
        x = filled
    sum_units(variant, x, units, sums + task * units * 4)


@kernel
def _spread_packed(variant: Any, p: int, slab: int, target: int) -> None:
    weight, stride, blocks = load_i64(p), load_i64(p + 8), load_i64(p + 24)
    scales = target + blocks * step_elements(variant) * 64
    shifts = scales + blocks * step_units(variant) * 64
    spread_slab(variant, weight + slab * 16 * stride, blocks, target, scales, shifts)


@kernel
def _spread_plain(variant: Any, p: int, slab: int, target: int) -> None:
    weight, stride, rows, blocks = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    elements, units, most = step_elements(variant), step_units(variant), load_i64(p + 144)
    scales = target + blocks * elements * 64
    shifts = scales + blocks * units * 64
    row, room = slab * 16, slab_room(variant)
    done = 0
    while done < blocks:
        count = min(most, blocks - done)
        source = weight + row * stride + done * step_bytes(variant)
        interleave_slab(variant, source, stride, min(15, rows - 1 - row), count, room, source)
        spread_slab(
            variant, room, count, target + done * elements * 64, scales + done * units * 64,
            shifts + done * units * 64,
        )  # fmt: skip
        done += count


@kernel
def _many(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows = load_i64(p), load_i64(p + 8), load_i64(p + 16)
    x, x_stride, sums, sums_stride = (
        load_i64(p + 32), load_i64(p + 40), load_i64(p + 48), load_i64(p + 56)
    )  # fmt: skip
    count, out, out_stride, share = (
        load_i64(p + 64), load_i64(p + 72), load_i64(p + 80), load_i64(p + 88)
    )  # fmt: skip
    spreader, room = load_i64(p + 96), load_i64(p + 104) + worker * load_i64(p + 112)
    columns, units, size = load_i64(p + 120), load_i64(p + 128), load_i64(p + 136)
    results = results_room(variant)
    first = task * share
    height = min(share, -(-rows // 16) - first)
    for index in range(height):
        call_kernel(spreader, p, first + index, room + index * size)
    column = 0
    while column < count:
        taken = 1
        for index in range(height):
            row = (first + index) * 16
            if column == 0:  # what the next task spreads comes while this one multiplies
                fetch_lines(weight + (row + share * 16) * stride, 16 * stride)
            panel = room + index * size
            scales = panel + columns * 64
            place, step = out + column * out_stride + row * 4, out_stride
            if rows - row < 16:
                place, step = results, 64
            taken = unit_tile(
                variant, count - column, panel, scales, scales + units * 64, units,
                columns // units // 4, x + column * x_stride, x_stride,
                sums + column * sums_stride, sums_stride, place, step,
            )  # fmt: skip
            if rows - row < 16:
                for c in range(taken):
                    target = out + (column + c) * out_stride + row * 4
                    store_most(target, load(results + c * 64), rows - row)
        column += taken


@dataclass(frozen=True)
class _Need:
    """What a product needs of its activations beside themselves.

    Attributes
    ----------
    filled : int
        Columns of them filled up with zeros to whole blocks; 0 where they are whole.
    unit : int
        How many activations a unit has.
    units : int
        How many units a vector has, whose sums are used.
    """

    filled: int
    unit: int
    units: int

    @classmethod
    def of(cls, part: Part) -> _Need:
        """Return that of a matrix."""
        length, unit = part.blocked_columns, unit_size(part.encoding)
        return cls(length if length != part.columns else 0, unit, length // unit)

    @property
    def numbers(self) -> int:
        """How many float32 a vector takes."""
        return self.filled + self.units


@dataclass(frozen=True)
class _Activations:
    """Where vectors and the sums of their units are, and how many bytes one is after the other."""

    x: int
    stride: int
    sums: int
    sums_stride: int


def _prepared(
    need: _Need, encoding: str, x: npt.NDArray[np.float32], at: int, room: npt.NDArray[np.uint8]
) -> _Activations:
    """Write at `at` what is needed."""
    count, columns = x.shape
    filled, sums = at if need.filled else 0, at + 4 * count * need.filled
    words = (address(x), columns * 4, columns, filled, need.filled, sums, need.units)
    function = _compiled(_prepare, alike_units(encoding))
    launch(function, np.array(words, np.int64), count, x, room)
    return _Activations(filled or address(x), 4 * (need.filled or columns), sums, 4 * need.units)


@cache
def _compiled(function: Any, encoding: str, columns: int = 0) -> int:
    return compiled_address(function, Variant(setup.current().level, encoding, 0, columns))


def unit_job_of_one(part: Part, x: npt.NDArray[np.float32]) -> Job:
    """Return the product with one float32 vector [1, columns].

    Its words begin with the address of the stored bytes; that of `x` is the fifth, that of `out`
    the sixth.

    Raises
    ------
    ValueError
        When a row has more units than :func:`fits_stack` allows.
    """
    if not fits_stack(part):
        raise ValueError(f"rows of {part.columns} columns are too long for one vector at a time")
    encoding, (_, slabs, share) = slab_encoding(part.encoding), slabs_of(part)
    words = (
        part.address, part.row_bytes, part.rows, part.columns, address(x), address(part.out), share,
        slab_blocks(encoding),
    )  # fmt: skip
    one = _one_of_packed if part.encoding in INTERLEAVED else _one_of_plain
    return Job(_compiled(one, encoding), -(-slabs // share), words)


def fits_stack(part: Part) -> bool:
    """Return whether the sums of a vector's units fit the memory that one product has for them."""
    return part.blocked_columns // unit_size(part.encoding) <= MOST_UNITS


def unit_scratch(part: Part) -> int:
    """Return the scratch memory of a worker for products with several vectors."""
    return _share(part) * _slab_bytes(part)


def unit_jobs(
    parts: Sequence[Part], x: npt.NDArray[np.float32], place: int, slot: int
) -> list[Job]:
    """Return the products with several float32 vectors; what they share is computed at once.

    Of scratch memory, from `place` on and `slot` bytes apart, there is the most of `unit_scratch`.
    """
    needs = {_Need.of(part): part.encoding for part in parts}
    room = shared_scratch(sum(4 * len(x) * need.numbers for need in needs))
    ready, at = {}, address(room)
    for need, encoding in needs.items():
        ready[need] = _prepared(need, encoding, x, at, room)
        at += 4 * len(x) * need.numbers
    return [_by_panels(part, len(x), ready[_Need.of(part)], place, slot) for part in parts]


def _slab_bytes(part: Part) -> int:
    """Return the bytes of a spread slab: its weights, and two numbers of each unit."""
    columns = part.blocked_columns
    return 4 * SLAB * (columns + 2 * columns // unit_size(part.encoding))


def _share(part: Part) -> int:
    """Return how many slabs a task takes."""
    _, slabs, _ = slabs_of(part)
    return panel_rows(slabs, _slab_bytes(part), _PANEL_BYTES, 1)


def _by_panels(part: Part, count: int, x: _Activations, place: int, slot: int) -> Job:
    encoding, columns = slab_encoding(part.encoding), part.blocked_columns
    share = fitting(_share(part), slot, _slab_bytes(part), 1)
    spread = _spread_packed if part.encoding in INTERLEAVED else _spread_plain
    words = (
        part.address, part.row_bytes, part.rows, columns // BLOCKS[encoding].elements, x.x,
        x.stride, x.sums, x.sums_stride, count, address(part.out), part.rows * 4, share,
        _compiled(spread, encoding), place, slot, columns, columns // unit_size(encoding),
        _slab_bytes(part), slab_blocks(encoding),
    )  # fmt: skip
    function = _compiled(_many, alike_units(encoding), _WIDEST[setup.current().level])
    return Job(function, -(-part.rows // (SLAB * share)), words)
