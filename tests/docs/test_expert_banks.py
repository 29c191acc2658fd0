"""The page on expert banks says what the code reads: records, tags, limits."""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from pathlib import Path

import pytest

from larql.format.lyrw import codes, extents, tables, v1
from larql.format.lyrw.codes import BankKind, Browse, Format, Layout, Packing, Role

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
RECORDS = {
    "header": tables.HEADER,
    "bank": tables.BANK,
    "segment": tables.SEGMENT,
    "schema": tables.SCHEMA,
    "version 1": v1.HEADER,
}
WIDTHS = {"u16": "H", "u32": "I", "u64": "Q"}


def rows_after(marker: str) -> list[list[str]]:
    text = FORMAT.read_text(encoding="utf-8")
    assert text.count(marker) == 1, marker
    lines = text.split(f"{marker}\n\n")[1].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_documented(name: str) -> None:
    rows = rows_after(f"<!-- record: {name} -->")
    kinds = "".join(WIDTHS[row[1]] for row in rows)
    record = RECORDS[name]
    assert record.size == struct.calcsize("<" + kinds)
    expanded = re.sub(r"(\d+)(\w)", lambda found: found[2] * int(found[1]), record.format)
    assert expanded == "<" + kinds
    starts = [struct.calcsize("<" + kinds[:place]) for place in range(len(kinds))]
    assert [int(row[0]) for row in rows] == starts


@pytest.mark.parametrize("names", [Role, Format, Packing])
def test_tags_are_documented(names: type[IntEnum]) -> None:
    rows = rows_after(f"<!-- tags: {names.__name__} -->")
    found = {int(row[0]): row[1].strip("`") for row in rows}
    assert found == {int(member): member.name.lower() for member in names}


def test_tags_inside_fields_are_documented() -> None:
    def meaning(record: str, field: str) -> str:
        (row,) = (row for row in rows_after(f"<!-- record: {record} -->") if row[2] == field)
        return row[3]

    for member in BankKind:
        assert f"{int(member)} {member.name.lower()}" in meaning("bank", "kind")
    for layout in Layout:
        name = layout.name.lower().replace("_", " ")
        assert f"{int(layout)} {name}" in meaning("schema", "layout")
    assert max(Browse) == 2
    assert f"{codes.UNPAIRED:#06X}".replace("X", "x") in meaning("schema", "pair id")


def test_limits_and_private_codes_are_documented() -> None:
    text = " ".join(FORMAT.read_text(encoding="utf-8").split())
    assert f"above {extents.MAX_REGIONS} and {tables.MAX_SCHEMAS}." in text
    assert f"stored under {codes.PRIVATE_FORMATS:#x} plus its ggml type" in text
