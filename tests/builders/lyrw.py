"""LYRW files made by hand, field by field, without the writer that is tested."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MAGIC = bytes.fromhex("57 52 59 4c")


def u16(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def v1_file(
    quant_format: int,
    intermediate: int,
    hidden: int,
    table: Sequence[tuple[int, int, int, int]],
    payload: bytes,
    *,
    version: int = 1,
    num_entries: int | None = None,
) -> bytes:
    count = len(table) if num_entries is None else num_entries
    head = MAGIC + u32(version, quant_format, count, intermediate, hidden)
    return head + b"".join(u64(*row) for row in table) + payload


def header(
    *,
    version: int = 2,
    layer: int = 7,
    banks: int = 1,
    segments: int = 1,
    flags: int = 0,
    reserved: int = 0,
) -> bytes:
    return MAGIC + u32(version, layer) + u16(banks, segments) + u32(flags, reserved)


def bank(
    bank_id: int = 0,
    *,
    kind: int = 1,
    schemas: int = 1,
    flags: int = 0,
    entries: int = 1,
    dims: tuple[int, int, int] = (4, 2, 4),
) -> bytes:
    return u16(bank_id, kind, schemas, flags) + u32(entries, *dims)


def segment(bank_id: int = 0, index: int = 0, first: int = 0, count: int = 1) -> bytes:
    return u16(bank_id, index) + u32(first, count)


def schema(
    index: int = 0,
    role: int = 2,
    code: int = 0,
    packing: int = 0,
    *,
    pair: int = 0xFFFF,
    layout: int = 0,
    rows: int = 4,
    cols: int = 4,
) -> bytes:
    return u16(index, role, code, packing, pair, layout) + u32(rows, cols)


def v2_file(tables: bytes, regions: Sequence[bytes]) -> bytes:
    """Put regions behind tables, each at the next multiple of 64."""
    position = len(tables) + 16 * len(regions)
    table, payload = b"", b""
    for region in regions:
        padding = -position % 64
        table += u64(position + padding, len(region))
        payload += bytes(padding) + region
        position += padding + len(region)
    return tables + table + payload
