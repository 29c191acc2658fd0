"""The page on the manifest says what the code reads: fields, defaults, choices, programmes."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest

from larql.format.moe import manifest as m
from larql.format.moe.programmes import PROGRAMMES

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
CLASSES = {name: cls for name in m.__all__ if dataclasses.is_dataclass(cls := getattr(m, name))}
TAGGED = {"TopK": "top_k", "GroupedTopK": "grouped_top_k"}


def table(marker: str) -> list[list[str]]:
    text = FORMAT.read_text(encoding="utf-8")
    assert text.count(f"<!-- {marker} -->") == 1, marker
    lines = text.split(f"<!-- {marker} -->")[1].split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith("| ---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("name", CLASSES)
def test_fields_defaults_and_choices_are_documented(name: str) -> None:
    rows = {row[0].strip("`"): row for row in table(f"manifest: {name}")}
    fields = dataclasses.fields(CLASSES[name])
    assert sorted(rows) == sorted([f.name for f in fields] + (["op"] if name in TAGGED else []))
    hints = typing.get_type_hints(CLASSES[name])
    for field in fields:
        default = rows[field.name][2]
        if field.default is dataclasses.MISSING or field.name == "schema":
            assert default == ""
        elif field.default is None:
            assert default == "absent"
        elif field.default == ():
            assert default == "`[]`"
        elif dataclasses.is_dataclass(field.default):
            assert default == "`{}`"
        else:
            assert default == f"`{field.default}`"
        for option in (hints[field.name], *typing.get_args(hints[field.name])):
            if typing.get_origin(option) is typing.Literal:
                for value in typing.get_args(option):
                    assert f"`{value}`" in rows[field.name][3], f"{field.name}: {value}"
    if name in TAGGED:
        assert rows["op"][3] == f"`{TAGGED[name]}`"


def test_programmes_are_documented() -> None:
    expected = [
        [
            str(programme.number),
            f"`{programme.name}`",
            programme.input_space,
            ", ".join(
                " + ".join(role.name.lower() for role in layout) for layout in programme.layouts
            ),
        ]
        for programme in PROGRAMMES.values()
    ]
    assert table("programmes") == expected


def test_the_schema_is_documented() -> None:
    (row,) = (row for row in table("manifest: Manifest") if row[0] == "`schema`")
    assert row[3].startswith(f"`{m.MANIFEST_SCHEMA}`.")
