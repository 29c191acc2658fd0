"""A LYRW version 2 file written out by hand: two banks, four schemas, six regions."""

from __future__ import annotations

from larql.format.lyrw.codes import BankKind, Browse, Format, Packing, Role
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables

GOLDEN = bytes.fromhex(
    # magic, version 2, layer 7, 2 banks, 2 segments, flags, reserved
    "5752594c 02000000 07000000 0200 0200 00000000 00000000"
    # bank 0, routed, 2 schemas, browse direct, 2 entries, dims 32, 1, 3
    "0000 0100 0200 0100 02000000 20000000 01000000 03000000"
    # bank 5, shared, 2 schemas, browse none, 1 entry, dims 32, 1, 1
    "0500 0200 0200 0000 01000000 20000000 01000000 01000000"
    # segment 0 of bank 0: entries 0 to 2; of bank 5: entry 0
    "0000 0000 00000000 02000000"
    "0500 0000 00000000 01000000"
    # bank 0: gate_up_fused q4_0 inline unpaired [2, 32]; down f16 row-major unpaired [3, 1]
    "0000 0200 0300 0100 ffff 0000 02000000 20000000"
    "0100 0300 0100 0000 ffff 0000 03000000 01000000"
    # bank 5: up mxfp4 values, pair 9 [1, 32]; scales mxfp4 scales, pair 9 [1, 1]
    "0000 0100 0800 0200 0900 0000 01000000 20000000"
    "0100 0500 0800 0300 0900 0000 01000000 01000000"
    # entries of bank 0, then of bank 5: offset and length
    "4001000000000000 2400000000000000 8001000000000000 0600000000000000"
    "c001000000000000 2400000000000000 0002000000000000 0600000000000000"
    "4002000000000000 1000000000000000 8002000000000000 0100000000000000"
    # from byte 272 to 320
    + "00" * 48
    # bank 0, entry 0
    + "a0" * 36
    + "00" * 28
    + "003c 0040 0042"
    + "00" * 58
    # bank 0, entry 1
    + "a1" * 36
    + "00" * 28
    + "00bc 00c0 00c2"
    + "00" * 58
    # bank 5, entry 0
    + "21" * 16
    + "00" * 48
    + "7f"
)

FUSED = RegionSchema(0, Role.GATE_UP_FUSED, Format.Q4_0, Packing.BLOCKS_INLINE, 2, 32)
DOWN = RegionSchema(1, Role.DOWN, Format.F16, Packing.ROW_MAJOR, 3, 1)
VALUES = RegionSchema(0, Role.UP, Format.MXFP4, Packing.BLOCK_VALUES, 1, 32, pair_id=9)
SCALES = RegionSchema(1, Role.SCALES, Format.MXFP4, Packing.BLOCK_SCALES, 1, 1, pair_id=9)
ROUTED = Bank(0, BankKind.ROUTED, 2, 32, 1, 3, (FUSED, DOWN), Browse.DIRECT)
SHARED = Bank(5, BankKind.SHARED, 1, 32, 1, 1, (VALUES, SCALES))
TABLES = Tables(7, (ROUTED, SHARED), (BankSegment(0, 0, 0, 2), BankSegment(5, 0, 0, 1)))

REGIONS: tuple[tuple[int, int, RegionSchema, bytes], ...] = (
    (0, 0, FUSED, b"\xa0" * 36),
    (0, 0, DOWN, bytes.fromhex("003c 0040 0042")),
    (0, 1, FUSED, b"\xa1" * 36),
    (0, 1, DOWN, bytes.fromhex("00bc 00c0 00c2")),
    (5, 0, VALUES, b"\x21" * 16),
    (5, 0, SCALES, b"\x7f"),
)

# Where the fields of the golden file are.
BANKS, SEGMENTS, SCHEMAS, ENTRIES, TABLES_END = 24, 72, 96, 176, 272


def patched(at: int, value: int, width: int) -> bytes:
    return GOLDEN[:at] + value.to_bytes(width, "little") + GOLDEN[at + width :]
