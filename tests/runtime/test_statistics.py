"""Statistics: sums in the order that is promised, bases that are the same everywhere."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from larql.runtime.observe import statistics
from larql.runtime.observe.basis import seeded_basis
from larql.runtime.observe.statistics import write_statistics
from larql.runtime.sums import tree_sum


def folded(values: list[float]) -> float:
    while len(values) > 1:
        half = (len(values) + 1) // 2
        tail = values[half:]
        values = [v + tail[i] if i < len(tail) else v for i, v in enumerate(values[:half])]
    return values[0] if values else 0.0


@given(rows=npst.arrays(np.float64, st.tuples(st.integers(0, 3), st.integers(0, 40)),
       elements=st.floats(-1e9, 1e9)))  # fmt: skip
def test_sums_are_made_in_the_stated_order(rows: np.ndarray) -> None:  # type: ignore[type-arg]
    before = rows.copy()
    assert tree_sum(rows).tolist() == [folded(row.tolist()) for row in rows]
    assert (rows == before).all()


def test_a_seeded_basis_is_the_same_everywhere() -> None:
    basis = seeded_basis(3, 20, 7)
    stream = hashlib.shake_256(b"larql basis 7").digest(8)
    signs = [-1.0 if stream[i // 8] >> (i % 8) & 1 else 1.0 for i in range(60)]
    expected = np.array(signs).reshape(3, 20) * np.float32(1 / math.sqrt(20))
    assert basis.rows.dtype == np.float32
    assert (basis.rows == expected.astype(np.float32)).all()
    assert basis.sha256() == hashlib.sha256(basis.rows.astype("<f4").tobytes()).hexdigest()
    assert basis.sha256() == "d46e7ec66a216e61327e7a08c2b4a4a8c881d3293a93ac8b996b00809af893ab"
    assert seeded_basis(3, 20, 8).sha256() != basis.sha256()


def test_statistics_do_not_depend_on_how_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    carriers = np.random.default_rng(1).normal(size=(7, 5, 20)).astype(np.float32)
    basis = seeded_basis(3, 20, 0)
    whole = write_statistics(carriers, basis)
    for elements in (1, 150, 250):
        monkeypatch.setattr(statistics, "_ELEMENTS", elements)
        cut = write_statistics(carriers, basis)
        for a, b in ((cut.carrier, whole.carrier), (cut.delta, whole.delta)):
            assert a.tobytes() == b.tobytes()
        assert cut.projection.tobytes() == whole.projection.tobytes()
    for t in range(5):
        alone = write_statistics(carriers[:, t : t + 1], basis)
        assert (alone.delta[:, 0] == whole.delta[:, t]).all()
        assert (alone.projection[:, 0] == whole.projection[:, t]).all()


def test_what_is_not_finite_stays_in_its_row() -> None:
    carriers = np.ones((3, 2, 4), np.float32)
    carriers[1, 0, 2] = np.inf
    found = write_statistics(carriers, None)
    assert np.isfinite(found.carrier[:, 1]).all()
    assert not np.isfinite(found.carrier[1, 0])
    assert found.projection.shape == (3, 2, 0)
