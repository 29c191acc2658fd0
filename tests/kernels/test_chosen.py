"""Products of chosen matrices against the products of each, bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.codec import encode
from larql.format.encoding import ENCODINGS
from larql.kernels.chosen import Alike, chosen_products
from larql.kernels.parts import Part
from larql.kernels.product import products
from larql.kernels.product_q8 import products_q8
from larql.kernels.program import recorded
from larql.kernels.rounding import quantize_rows
from tests.kernels.same import normal, same

Bytes = npt.NDArray[np.uint8]


def stored(encoding: str, rows: int, columns: int, padding: int = 0) -> list[Bytes | None]:
    """Five matrices, the fourth of which is not here."""
    made: list[Bytes | None] = []
    for number in range(5):
        values = normal(number, rows, columns)
        if padding:
            values = np.concatenate([values, np.full((rows, padding), 50, np.float32)], axis=1)
        made.append(None if number == 3 else encode(ENCODINGS[encoding], values).reshape(-1))
    return made


CASES = [
    ("f32", 24, 48, None), ("f32", 7, 20, 24), ("bf16", 9, 33, None), ("q8_0", 40, 96, None),
    ("q8_0", 12, 80, 96), ("q4_k", 20, 512, None), ("q4_k", 8, 704, 768), ("q8_0", 8, 64, 128),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "rows", "columns", "padded"), CASES)
@pytest.mark.parametrize("vectors", [1, 3, 8])
def test_chosen_rows_are_those_of_each_product(
    encoding: str, rows: int, columns: int, padded: int | None, vectors: int
) -> None:
    entries = stored(encoding, rows, columns, 0 if padded is None else padded - columns)
    alike = Alike(entries, encoding, rows, columns, padded)
    other = Alike(stored("f32", rows + 3, columns), "f32", rows + 3, columns)
    chosen = np.array([2, 0, 4, 4, 1, 2, 0, 1], np.int64)
    x, which = normal(9, vectors, columns), np.arange(8) % vectors
    out, beside = np.empty((8, rows), np.float32), np.empty((8, rows + 3), np.float32)
    assert not chosen_products([alike, other], chosen, which, x, [out, beside]).any()
    integers = Alike(entries, encoding, rows, columns, padded).takes_integers
    rounded_out = np.empty_like(out)
    if integers:
        chosen_products([alike], chosen, which, quantize_rows(x, apart=True), [rounded_out])
    for j, number in enumerate(chosen):
        row = x[which[j] : which[j] + 1]
        entry = entries[number]
        assert entry is not None
        expected = np.empty((1, rows), np.float32)
        part = Part(entry, encoding, rows, columns, expected, padded)
        products([part], row)
        assert same(out[j], expected[0])
        if integers:
            products_q8([part], quantize_rows(row))
            assert same(rounded_out[j], expected[0])
        whole = other.entries[number]
        assert whole is not None
        next_to = np.empty((1, rows + 3), np.float32)
        products([Part(whole, "f32", rows + 3, columns, next_to)], row)
        assert same(beside[j], next_to[0])


def test_padding_is_not_read() -> None:
    entries = stored("f32", 6, 20, 12)
    clean = [None if e is None else e.copy() for e in entries]
    for entry in clean:
        if entry is not None:
            entry.view(np.float32).reshape(6, 32)[:, 20:] = np.nan
    x, out, again = normal(3, 1, 20), np.empty((2, 6), np.float32), np.empty((2, 6), np.float32)
    chosen = np.array([0, 4])
    none = np.zeros(2, np.int64)
    chosen_products([Alike(entries, "f32", 6, 20, 32)], chosen, none, x, [out])
    chosen_products([Alike(clean, "f32", 6, 20, 32)], chosen, none, x, [again])
    assert np.isfinite(again).all() and same(out, again)


@pytest.mark.parametrize("missing", [3, 5, -1])
def test_what_is_not_here_is_told_and_nothing_else_is_touched(missing: int) -> None:
    alike = Alike(stored("q8_0", 4, 32), "q8_0", 4, 32)
    x, rows = normal(1, 1, 32), np.zeros(2, np.int64)
    out, expected = np.empty((2, 4), np.float32), np.empty((2, 4), np.float32)
    chosen_products([alike], np.array([2, 2]), rows, x, [expected])
    found = chosen_products([alike, alike], np.array([2, missing]), rows, x, [out, expected.copy()])
    assert found.tolist() == [1, 1]
    assert same(out[0], expected[0])
    assert chosen_products([alike], np.array([2, 4]), rows, x, [out]).tolist() == [0]


def test_recorded_products_are_of_what_is_chosen_when_they_run() -> None:
    alike = Alike(stored("q4_k", 8, 512), "q4_k", 8, 512)
    x, rows, chosen = normal(1, 1, 512), np.zeros(3, np.int64), np.zeros(3, np.int64)
    out, expected = np.empty((3, 8), np.float32), np.empty((3, 8), np.float32)
    with recorded(0) as program:
        missing = chosen_products([alike], chosen, rows, x, [out])
    for numbers, absent in (([4, 1, 0], 0), ([0, 3, 2], 1), ([2, 2, 1], 0)):
        chosen[:] = numbers
        program().run(0)
        assert missing.tolist() == [absent]
        here = np.array([n if n != 3 else 0 for n in numbers])
        chosen_products([alike], here, rows, x, [expected])
        assert same(out[[0, 2]], expected[[0, 2]])


def test_what_does_not_fit_is_refused() -> None:
    alike = Alike(stored("q8_0", 4, 32), "q8_0", 4, 32)
    x, out, chosen = normal(1, 1, 32), np.empty((2, 4), np.float32), np.array([0, 1])
    none = np.zeros(2, np.int64)
    absent = Alike([None, None], "q8_0", 4, 32)
    with pytest.raises(ValueError, match="is not here, nor is any other"):
        chosen_products([absent], chosen, none, x, [out])
    with pytest.raises(ValueError, match="rows must be from 0 to 0"):
        chosen_products([alike], chosen, np.array([0, 1]), x, [out])
    with pytest.raises(ValueError, match="rows must be 2 contiguous int64"):
        chosen_products([alike], chosen, np.zeros(3, np.int64), x, [out])
    with pytest.raises(ValueError, match="x must have 32 columns"):
        chosen_products([alike], chosen, none, normal(1, 1, 64), [out])
    with pytest.raises(ValueError, match="out"):
        chosen_products([alike], chosen, none, x, [np.empty((2, 5), np.float32)])
    wide = dataclasses.replace(quantize_rows(normal(1, 2, 32)), width=8)
    with pytest.raises(ValueError, match="must have width 1"):
        chosen_products([alike], chosen, none, wide, [out])
    with pytest.raises(ValueError, match="weight must be"):
        Alike(stored("q8_0", 4, 32), "q8_0", 5, 32)
    with pytest.raises(ValueError, match="of 48 cannot be read as stored"):
        Alike(stored("q8_0", 4, 40, 24), "q8_0", 4, 40, 48)
