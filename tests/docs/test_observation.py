"""The page on observation says what the code writes, and the notebook's code runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import get_args

import pytest

from larql.format.container import Container
from larql.runtime.observe import events
from larql.runtime.observe.events import CarrierWrite, Event
from larql.runtime.observe.lines import line_of, writes_line
from larql.runtime.observe.record import Receipt, RecordWriter
from tests.builders.containers import make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors

DOCS = Path(__file__).parents[2] / "docs"


def table_after(title: str) -> list[list[str]]:
    text = (DOCS / "observation.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", text.split(f"### {title}\n")[1])[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sample(kind: type) -> Event:
    fields = {field.name: () for field in dataclasses.fields(kind)}
    return kind(**fields)  # type: ignore[no-any-return]


def test_every_event_and_its_fields_are_documented() -> None:
    documented = {names(row[0])[0]: names(row[1]) for row in table_after("Events")}
    written = {}
    for kind in get_args(Event):
        if kind is CarrierWrite:
            line = writes_line(0, [CarrierWrite(0, 0, 1.0, 1.0, (1.0,))])
        else:
            line = line_of(0, sample(kind))
        assert list(line)[:3] == ["kind", "seq", "position"]
        written[str(line["kind"])] = list(line)[3:]
    assert documented == written
    assert len(written) == sum(kind in events.__all__ for kind in map(_name, get_args(Event)))


def _name(kind: type) -> str:
    return kind.__name__


def test_the_header_is_documented() -> None:
    fields = [name for row in table_after("Header") for name in names(row[0])]
    assert fields == [
        "kind", "schema", "version", "run_id", "provenance_fingerprint", "identity", "sites",
    ]  # fmt: skip


def test_the_receipt_is_documented() -> None:
    fields = [name for row in table_after("Receipt") for name in names(row[0])]
    assert fields == [field.name for field in dataclasses.fields(Receipt)]
    assert RecordWriter({}, None).receipt(complete=True, readers={}, fired=(), environment={})


def blocks() -> list[str]:
    text = (DOCS / "notebook.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_lens_takes_ten_lines() -> None:
    assert len([line for line in blocks()[0].splitlines() if line]) <= 10


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_container(
        write_llama_safetensors(tmp_path / "tiny", LlamaSpec(layers=3, tokenizer=True)),
        tmp_path / "model.vindex3",
    )
    assert isinstance(made, Container)
    monkeypatch.chdir(tmp_path)
    names_so_far: dict[str, object] = {}
    for block in blocks():
        exec(compile(block, "notebook.md", "exec"), names_so_far)
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "run.jsonl").exists()


def test_the_example_of_interventions_is_read(tmp_path: Path) -> None:
    import json

    import numpy as np

    from larql.runtime.observe.capture import write_captures
    from larql.runtime.observe.interventions import load_interventions

    text = (DOCS / "observation.md").read_text(encoding="utf-8")
    example = text.split("```json\n")[1].split("```")[0]
    json.loads(example)
    (tmp_path / "i.json").write_text(example, encoding="utf-8")
    write_captures(tmp_path / "other.safetensors", {"20.ffn@4/carrier": np.zeros(4)}, {})
    assert [made.do for made in load_interventions(tmp_path / "i.json", 4)] == [
        "zero", "scale", "replace",
    ]  # fmt: skip
