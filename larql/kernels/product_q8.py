"""Products with activations rounded to eight bits: faster, and approximate.

The products of a unit of weights are exact integers, so that they have the same bits on every
instruction set; what is summed in float32, and in which order, is said in
`larql.kernels.integer_rows`. A few vectors are multiplied one by one, while eight rows are unpacked
in registers; for many, a panel of rows is unpacked once into scratch memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from larql.kernels import setup
from larql.kernels.check import address
from larql.kernels.encodings import block
from larql.kernels.expand import (
    PREPARED,
    prepare,
    prepare_eight,
    prepared_room,
    unpack_integers,
)
from larql.kernels.integer_panel import integer_panel, weight_bytes, widen, widens
from larql.kernels.integer_rows import EIGHT, integer_rows
from larql.kernels.integer_slab_product import integer_job, unpacked_bytes
from larql.kernels.integers import GROUP, INTEGERS, alike, integer_bias
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import call_kernel, fetch_lines, load_i64
from larql.kernels.parts import (
    PANEL_MULTIPLE,
    Job,
    Part,
    check_parts,
    fitting,
    panel_rows,
    rounded_up,
    run_together,
    share_rows,
)
from larql.kernels.rounding import QuantizedRows
from larql.kernels.scales import EIGHT_SPARE
from larql.kernels.shape import (
    scale_count,
    step_bytes,
    step_elements,
    tile_rows,
    unit_count,
)
from larql.kernels.threads import scratch

__all__ = ["job_of_few", "products_q8", "takes_integers"]

# (rows, half blocks of vectors) of a register tile.
_TILE = {"avx512": (4, 6), "avx2": (4, 2), "portable": (2, 4)}
_PANEL_BYTES = 128 << 10
_AHEAD_BYTES = 8 << 10


@kernel
def _rows(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, blocks = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    values, terms, sums = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    groups, count, out = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    share, ahead = load_i64(p + 80), load_i64(p + 88)
    room = prepared_room(variant)
    end = min((task + 1) * share, rows)
    row = task * share
    fetch_lines(weight + row * stride, ahead)
    while row < end:
        first, last = weight + row * stride, end - 1 - row
        prepare_eight(variant, first, stride, last, blocks, room)
        for c in range(count):
            integer_rows(
                variant, first, stride, last, room, ahead, blocks, values + c * groups * 32,
                terms + c * groups * 8, sums + c * groups * 12, out + (c * rows + row) * 4,
            )  # fmt: skip
        row += 8


@kernel
def _unpack(variant: Any, source: int, target: int, columns: int) -> None:
    """Unpack a row: its bytes, then room for two float32 for each 16 elements."""
    size, numbers = step_bytes(variant), scale_count(variant)
    blocks = columns // step_elements(variant)
    most = PREPARED // numbers
    room = prepared_room(variant)
    wide = weight_bytes(variant)
    place_of_bytes = target + (wide - 1) * columns
    scales = target + wide * columns
    done = 0
    while done < blocks:
        count = min(most, blocks - done)
        prepare(variant, source + done * size, count, room)
        at = done * step_elements(variant)
        units = unit_count(variant)
        place = scales + at // 32 * units * 4
        unpack_integers(
            variant, source + done * size, count, room, place_of_bytes + at, place,
            place + columns // 4,
        )  # fmt: skip
        done += count
    if wide > 1:
        widen(variant, place_of_bytes, columns // 32, target)


@kernel
def _panel(variant: Any, p: int, task: int, worker: int) -> None:
    weight, stride, rows, columns = (
        load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24)
    )  # fmt: skip
    values, terms, sums = load_i64(p + 32), load_i64(p + 40), load_i64(p + 48)
    count, out, share = load_i64(p + 56), load_i64(p + 64), load_i64(p + 72)
    unpacker, bias = load_i64(p + 80), load_i64(p + 88)
    panel, panel_stride = load_i64(p + 96) + worker * load_i64(p + 104), load_i64(p + 112)
    quads = load_i64(p + 120)
    first = task * share
    height = min(share, rows - first)
    for row in range(height):
        call_kernel(unpacker, weight + (first + row) * stride, panel + row * panel_stride, columns)
    groups = columns // 32
    column = 0
    while column < count:
        left = count - column
        skip = column * groups
        taken = 0
        for row in range(0, height, tile_rows(variant)):
            w = panel + row * panel_stride
            scales = w + columns * weight_bytes(variant)
            o = out + (column * rows + first + row) * 4
            if column == 0:  # what the next task unpacks comes while this one multiplies
                fetch_lines(weight + (first + share + row) * stride, tile_rows(variant) * stride)
            taken = integer_panel(
                variant, (left + 7) // 8, w, panel_stride, height - 1 - row, scales,
                scales + columns // 4, groups, bias, quads, values + skip * 32, terms + skip * 8,
                sums + skip * 12, left, o, rows * 4,
            )  # fmt: skip
        column += 8 * taken


@cache
def _few(encoding: str) -> int:
    return compiled_address(_rows, Variant(setup.current().level, encoding))


@cache
def _unpacker(encoding: str) -> int:
    return compiled_address(_unpack, Variant(setup.current().level, encoding))


@cache
def _many(encoding: str) -> int:
    level = setup.current().level
    return compiled_address(_panel, Variant(level, alike(level, encoding), *_TILE[level]))


def takes_integers(encoding: str, columns: int) -> bool:
    """Return whether rows of so many columns in this encoding have integer products."""
    if encoding in INTERLEAVED:
        return columns % block(encoding).elements == 0
    if encoding not in INTEGERS or columns % GROUP:
        return False
    geometry = block(encoding)
    numbers = EIGHT * geometry.scales * (columns // geometry.elements)
    return columns % geometry.elements == 0 and numbers + EIGHT_SPARE <= PREPARED


def job_of_few(part: Part, x: QuantizedRows) -> Job:
    """Return the job that multiplies one matrix with as many vectors as `part` has outputs for.

    Its words begin with the address of the stored bytes; the fifth to the seventh are those of `x`,
    the tenth that of `out`.
    """
    stride = part.row_bytes
    share = share_rows(part.rows, stride, EIGHT)
    words = (
        part.address, stride, part.rows, part.columns // block(part.encoding).elements,
        *_addresses(x), part.columns // GROUP, len(part.out), address(part.out), share,
        rounded_up(_AHEAD_BYTES, EIGHT * stride),
    )  # fmt: skip
    return Job(_few(part.encoding), -(-part.rows // share), words)


def _stride(part: Part) -> int:
    """Return the bytes of an unpacked row: a line more, so that rows do not share cache sets."""
    wide = 2 if widens(setup.current().level, part.encoding) else 1
    return rounded_up(wide * part.columns + part.columns // 2, 64) + 64


def _share(part: Part) -> int:
    return panel_rows(part.rows, _stride(part), _PANEL_BYTES)


def _by_panels(part: Part, x: QuantizedRows, place: int, slot: int) -> Job:
    share = fitting(_share(part), slot, _stride(part), PANEL_MULTIPLE)
    words = (
        part.address, part.row_bytes, part.rows, part.columns, *_addresses(x), x.count,
        address(part.out), share, _unpacker(part.encoding),
        integer_bias(setup.current().level, part.encoding), place, slot, _stride(part),
        GROUP // 4,
    )  # fmt: skip
    return Job(_many(part.encoding), -(-part.rows // share), words)


def _addresses(x: QuantizedRows) -> tuple[int, int, int]:
    return address(x.values), address(x.terms), address(x.sums)


def products_q8(parts: Sequence[Part], x: QuantizedRows) -> None:
    """Multiply each row of some matrices with each quantised vector.

    The bits of ``out[c, r]`` depend on row r and vector c alone.

    Parameters
    ----------
    parts : sequence of Part
        Matrices in block encodings with integers.
    x : QuantizedRows
        C vectors.

    Raises
    ------
    ValueError
        When an operand's shape, type or layout is not as `Part` says, or an encoding has no
        integers.
    """
    for part in parts:
        block(part.encoding)
        if part.encoding not in INTEGERS and part.encoding not in INTERLEAVED:
            raise ValueError(f"the encoding {part.encoding!r} has no integer products")
    check_parts(parts, x.columns, x.count)
    for part in parts:
        if not takes_integers(part.encoding, part.columns):
            raise ValueError(f"rows of {part.columns} columns are too long for integer products")
    parts = [part for part in parts if part.out.size]
    if not parts:
        return
    slabs = [part for part in parts if part.encoding in INTERLEAVED]
    plain = [part for part in parts if part.encoding not in INTERLEAVED]
    few = x.width == 1
    rooms = [] if few else [_share(part) * _stride(part) for part in plain]
    if x.count > 1:
        rooms += [unpacked_bytes(part, x) for part in slabs]
    place, slot = scratch(max(rooms)) if rooms else (0, 0)
    jobs = [job_of_few(part, x) if few else _by_panels(part, x, place, slot) for part in plain]
    jobs += [integer_job(part, x, place, slot) for part in slabs]
    run_together(jobs, *parts, x)
