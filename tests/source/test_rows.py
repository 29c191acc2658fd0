"""Operands that are some rows of a checkpoint's tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.format.rows import RowSelection, row_count
from larql.format.source.binding import Binding
from larql.format.source.builder import Builder
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import _check_rows
from larql.format.source.config import ConfigReader
from larql.format.source.names import Naming
from tests.builders.safetensors import write_safetensors_dir


@given(
    first=st.integers(0, 5),
    length=st.integers(1, 4),
    gap=st.integers(0, 3),
    runs=st.integers(1, 5),
    size=st.integers(1, 40),
)
def test_chunks_of_rows_are_the_rows(
    tmp_path_factory: pytest.TempPathFactory,
    first: int,
    length: int,
    gap: int,
    runs: int,
    size: int,
) -> None:
    directory = tmp_path_factory.getbasetemp() / "rows"
    if not directory.exists():
        directory.mkdir()
        values = np.arange(80 * 3, dtype=np.float32).reshape(80, 3)
        write_safetensors_dir(directory, {}, {"w": values})
    rows = RowSelection(first, length, length + gap, runs)
    assert rows.fits(80)
    with open_checkpoint(directory) as checkpoint:
        pieces = list(checkpoint.chunks("w", size, rows))
    wanted = [r for start, count in rows.spans() for r in range(start, start + count)]
    found = np.frombuffer(b"".join(pieces), np.float32).reshape(-1, 3)
    assert found[:, 0].tolist() == [3.0 * row for row in wanted]
    assert len(wanted) == rows.count
    assert all(len(piece) <= max(size, 12) and len(piece) % 12 == 0 for piece in pieces)


def test_what_a_row_is() -> None:
    assert row_count((6,)) == 6
    assert row_count((4, 6)) == 4
    assert row_count((4, 1, 6)) == 4


@pytest.mark.parametrize(
    "rows",
    [
        RowSelection(0, 4, 3, 2),  # runs overlap
        RowSelection(0, 0, 1, 1),
        RowSelection(0, 1, 1, 0),
        RowSelection(8, 3, 3, 1),  # beyond the end
    ],
)
def test_selections_that_do_not_fit(rows: RowSelection) -> None:
    assert not rows.fits(10)


@pytest.mark.parametrize(
    ("spans", "row"), [([(0, 2), (3, 3)], 2), ([(0, 3), (2, 4)], 3), ([(0, 5)], 5)]
)
def test_every_row_is_read_once(tmp_path: Path, spans: list[tuple[int, int]], row: int) -> None:
    write_safetensors_dir(tmp_path, {}, {"w": np.zeros((6, 2), np.float32)})
    with open_checkpoint(tmp_path) as checkpoint:
        source = checkpoint.tensors["w"]
    builder = Builder(ConfigReader({}, "here"), {"w": source}, lambda a, b: False, Naming({}))
    builder.bindings = {
        f"o/{i}": Binding(f"o/{i}", source, (count, 2), RowSelection.span(first, count))
        for i, (first, count) in enumerate(spans)
    }
    _check_rows(builder)
    (problem,) = builder.problems.found
    assert f"tensor w: row {row} is not read exactly once" in problem.text
