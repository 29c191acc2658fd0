"""The product of encoded rows and vectors: exact against its twin, and independent of the cut."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels import product, product_q8, setup
from larql.kernels import threads as machine
from larql.kernels.encodings import BLOCKS
from larql.kernels.expand import PREPARED
from larql.kernels.parts import Part
from larql.kernels.product import products
from larql.kernels.rounding import quantize_rows
from larql.kernels.threads import scratch, set_threads, threads
from tests.kernels import units
from tests.kernels.decode import FLOATS, decode, random_rows
from tests.kernels.same import normal, same

ENCODINGS = tuple(name for name, found in BLOCKS.items() if found.together == 1)
BLOCKED = tuple(name for name in ENCODINGS if name not in FLOATS)


def multiply(  # type: ignore[type-arg]
    raw: np.ndarray, encoding: str, x: np.ndarray, stored: int | None = None
) -> np.ndarray:
    out = np.full((len(x), len(raw)), 7, np.float32)
    products([Part(raw, encoding, len(raw), x.shape[1], out, stored)], x)
    return out


@pytest.mark.parametrize("plain", [True, False], ids=["ordinary", "any bytes"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_encoding_has_the_twins_bits(encoding: str, plain: bool) -> None:
    raw = random_rows(np.random.default_rng(1), encoding, 23, 512, plain)
    x = normal(2, 9, 512)
    expected = units.product(encoding, raw, x)
    assert same(multiply(raw, encoding, x), expected)
    for c in range(2):
        assert same(multiply(raw, encoding, x[c : c + 1]), expected[c : c + 1])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_products_with_unit_vectors_are_the_weights(encoding: str) -> None:
    """A walk takes columns so, and no second way of decoding exists for it."""
    raw = random_rows(np.random.default_rng(13), encoding, 18, 256)
    weights = np.stack([decode(encoding, row) for row in raw])
    x = np.eye(256, dtype=np.float32)
    assert np.array_equal(multiply(raw, encoding, x).T, weights)
    for c in (0, 100, 255):
        assert np.array_equal(multiply(raw, encoding, x[c : c + 1])[0], weights[:, c])


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-140, 2.0**-110, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tiny_and_huge_vectors_have_the_twins_bits(encoding: str, size: float) -> None:
    """Subnormals are no zeros, and sums become infinite where those of the twin do."""
    raw = random_rows(np.random.default_rng(3), encoding, 17, 256)
    with np.errstate(over="ignore"):
        x = normal(4, 5, 256) * np.float32(size)
    x[1], x[2] = np.abs(x[1]), -np.abs(x[2])
    x[3, ::2] = -0.0
    expected = units.product(encoding, raw, x)
    assert same(multiply(raw, encoding, x), expected)
    for c in range(5):
        assert same(multiply(raw, encoding, x[c : c + 1]), expected[c : c + 1])


@settings(deadline=None, max_examples=60)
@given(
    encoding=st.sampled_from(tuple(FLOATS)),
    rows=st.integers(1, 21),
    columns=st.integers(1, 67),
    count=st.integers(1, 14),
    seed=st.integers(0, 2**32 - 1),
)
def test_odd_shapes_of_floats(
    encoding: str, rows: int, columns: int, count: int, seed: int
) -> None:
    raw = random_rows(np.random.default_rng(seed), encoding, rows, columns)
    x = normal(seed, count, columns)
    expected = units.product(encoding, raw, x)
    assert same(multiply(raw, encoding, x), expected)


@settings(deadline=None, max_examples=60)
@given(
    encoding=st.sampled_from(BLOCKED),
    rows=st.integers(1, 50),
    blocks=st.integers(1, 3),
    count=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_odd_shapes_of_blocks(encoding: str, rows: int, blocks: int, count: int, seed: int) -> None:
    columns = blocks * BLOCKS[encoding].elements
    raw = random_rows(np.random.default_rng(seed), encoding, rows, columns)
    x = normal(seed, count, columns)
    together = multiply(raw, encoding, x)
    alone = np.concatenate([multiply(raw, encoding, x[c : c + 1]) for c in range(count)])
    assert same(together, alone)
    some = sorted({0, 1, rows // 2, rows - 2, rows - 1} & set(range(rows)))
    assert same(np.ascontiguousarray(together[:, some]), units.product(encoding, raw[some], x))


@settings(deadline=None, max_examples=60)
@given(
    encoding=st.sampled_from(BLOCKED),
    rows=st.integers(1, 35),
    columns=st.integers(1, 40).map(lambda groups: 16 * groups),
    more=st.integers(0, 2),
    count=st.sampled_from([1, 2, 3, 5, 8, 17, 40]),
    seed=st.integers(0, 2**32 - 1),
    plain=st.booleans(),
)
def test_columns_that_end_inside_a_block(
    encoding: str, rows: int, columns: int, more: int, count: int, seed: int, plain: bool
) -> None:
    """Blocks that are stored behind it are no part of the row."""
    block = BLOCKS[encoding]
    inside = -(-columns // block.elements) * block.elements
    stored = inside + more * block.elements
    raw = random_rows(np.random.default_rng(seed), encoding, rows, stored, plain)
    raw[:, block.row_bytes(inside) :] = 255  # scales that are no numbers
    x = normal(seed, count, columns)
    found = multiply(raw, encoding, x, stored)
    some = sorted({0, rows // 2, rows - 1})
    assert same(np.ascontiguousarray(found[:, some]), units.product(encoding, raw[some], x))
    assert same(multiply(raw, encoding, x[:1], stored), np.ascontiguousarray(found[:1]))


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 31, 32, 33])
def test_rows_beside_a_slab_change_no_bit(encoding: str, rows: int) -> None:
    raw = random_rows(np.random.default_rng(rows), encoding, 48, 256)
    x = normal(5, 7, 256)
    expected = multiply(raw, encoding, x)
    for first in (0, 1, 48 - rows):
        some = np.ascontiguousarray(expected[:, first : first + rows])
        assert same(multiply(raw[first : first + rows], encoding, x), some)
        assert same(multiply(raw[first : first + rows], encoding, x[6:]), some[6:])


@pytest.mark.parametrize("encoding", ["q4_1", "q6_k", "q8_0", "iq4_xs", "bf16"])
def test_threads_columns_and_rows_change_no_bit(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(3), encoding, 203, 1024)
    x = normal(4, 17, 1024)
    expected = multiply(raw, encoding, x)
    before = threads()
    try:
        for count in (1, 2, 3, 16):
            set_threads(count)
            assert same(multiply(raw, encoding, x), expected)
            assert same(multiply(raw, encoding, x[5:6]), expected[5:6])
            for a, b in ((0, 2), (3, 8), (8, 17)):
                assert same(multiply(raw, encoding, x[a:b]), expected[a:b])
            part = multiply(raw[100:141], encoding, x)
            assert same(part, np.ascontiguousarray(expected[:, 100:141]))
    finally:
        set_threads(before)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_matrices_that_are_multiplied_together_change_no_bit(count: int) -> None:
    x = normal(11, count, 256)
    raws = [
        (encoding, random_rows(np.random.default_rng(12), encoding, rows, 256))
        for encoding, rows in (
            ("q4_1", 37), ("q6_k", 5), ("f16", 90), ("q4_1", 1), ("f32", 8), ("q2_k", 3),
            ("q8_0", 16),
        )
    ]  # fmt: skip
    parts = [
        Part(raw, name, len(raw), 256, np.empty((count, len(raw)), np.float32))
        for name, raw in raws
    ]
    products(parts, x)
    for part, (name, raw) in zip(parts, raws, strict=True):
        assert same(part.out, multiply(raw, name, x))


def test_matrices_of_both_definitions_share_the_memory_of_a_new_thread() -> None:
    """Panels of one kind must not move when those of the other need more room."""
    x, generator = normal(31, 6, 4096), np.random.default_rng(32)
    raws = [(name, random_rows(generator, name, 640, 4096)) for name in ("q8_0", "q4_1", "q6_k")]
    parts = [Part(raw, name, 640, 4096, np.empty((6, 640), np.float32)) for name, raw in raws]
    with ThreadPoolExecutor(1) as other:
        other.submit(products, parts, x).result()
    for part, (name, raw) in zip(parts, raws, strict=True):
        assert same(part.out, multiply(raw, name, x))


@pytest.mark.parametrize("other", [1, 2, 32])
@pytest.mark.parametrize("encoding", ["q8_0", "q4_1", "q8_0 in integers"])
def test_a_thread_count_set_between_sizing_and_running_moves_no_byte(
    encoding: str, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another Python thread may set it, right after scratch memory was taken for 16."""
    name = encoding.split()[0]
    raw, x = random_rows(np.random.default_rng(41), name, 999, 1024), normal(42, 7, 1024)
    integers, out = "integers" in encoding, np.empty((7, 999), np.float32)
    module, part = (product_q8 if integers else product), Part(raw, name, 999, 1024, out)
    before = threads()

    def run() -> None:
        if integers:
            product_q8.products_q8([part], quantize_rows(x))
        else:
            products([part], x)

    def interrupted(size: int) -> tuple[int, int]:
        place, slot = scratch(size)
        set_threads(other)
        taken.append((place, slot))
        return place, slot

    taken: list[tuple[int, int]] = []
    try:
        set_threads(16)
        run()
        expected = out.copy()
        monkeypatch.setattr(module, "scratch", interrupted)
        for _ in range(5):
            set_threads(16)
            out[:] = 7
            run()
            assert same(out, expected)
        assert taken
    finally:
        set_threads(before)


def test_scratch_memory_has_room_for_threads_that_are_set_later() -> None:
    place, slot = scratch(100_000)
    memory = machine._CALLER.scratch
    assert place + setup.MAX_THREADS * slot <= memory.ctypes.data + memory.nbytes


AT_ONCE = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from larql.kernels.parts import Part
from larql.kernels.product import products
barrier = threading.Barrier(4)
def run(number):
    out, x = np.empty((1, 64), np.float32), np.ones((1, 64), np.float32)
    barrier.wait()
    products([Part(np.zeros(64 * 256, np.uint8), "f32", 64, 64, out)], x)
    return float(np.abs(out).sum())
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(run, range(4))) == [0.0] * 4
"""


def test_the_first_calls_of_a_process_may_come_from_several_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nan_and_infinity_are_carried(encoding: str) -> None:
    raw = random_rows(np.random.default_rng(5), encoding, 4, 256)
    x = np.abs(normal(6, 3, 256))
    x[1, 200], x[2, 0] = np.nan, np.inf
    out = multiply(raw, encoding, x)
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()
    assert not np.isfinite(out[2]).any() or (decode(encoding, raw[0])[0] == 0)


def test_a_row_whose_scales_do_not_fit_at_once_takes_the_same_sums() -> None:
    columns = 32 * (PREPARED // 8 + 1)
    raw = random_rows(np.random.default_rng(7), "q4_1", 5, columns)
    x = normal(8, 2, columns)
    expected = units.product("q4_1", raw[:1], x)
    assert same(multiply(raw, "q4_1", x)[:, :1].copy(), expected)
    assert same(multiply(raw, "q4_1", x[:1])[:, :1].copy(), expected[:1])


def test_mapped_read_only_bytes_at_an_odd_address(tmp_path: Path) -> None:
    raw = random_rows(np.random.default_rng(9), "q8_0", 12, 96)
    path = tmp_path / "weights"
    path.write_bytes(b"x" + raw.tobytes())
    mapped = np.memmap(path, np.uint8, "r", 1, raw.size)
    x, out = normal(10, 1, 96), np.empty((1, 12), np.float32)
    products([Part(mapped, "q8_0", 12, 96, out)], x)
    assert same(out, multiply(raw, "q8_0", x))
    products([Part(np.asarray(mapped).reshape(12, -1), "q8_0", 12, 96, out)], x)
    assert same(out, multiply(raw, "q8_0", x))


def test_nothing_to_do() -> None:
    raw = random_rows(np.random.default_rng(0), "f32", 3, 16)
    none = np.empty((0, 16), np.float32)
    products([Part(raw, "f32", 3, 16, np.empty((0, 3), np.float32))], none)
    products([Part(raw[:0], "f32", 0, 16, np.empty((1, 0), np.float32))], normal(1, 1, 16))
    products([], normal(1, 1, 16))


def refused(match: str, **change: object) -> None:
    operands: dict[str, object] = {
        "weight": np.zeros(2 * 34, np.uint8),
        "encoding": "q8_0",
        "rows": 2,
        "columns": 32,
        "x": np.zeros((1, 32), np.float32),
        "out": np.zeros((1, 2), np.float32),
    }
    operands |= change
    x = operands.pop("x")
    with pytest.raises(ValueError, match=match):
        products([Part(**operands)], x)  # type: ignore[arg-type]


def test_operands_that_do_not_fit_are_refused() -> None:
    refused("no kernel reads the encoding 'iq2_xxs'", encoding="iq2_xxs")
    wide = np.zeros((1, 33), np.float32)
    refused("33 columns are no multiple of the block of 32", columns=33, x=wide)
    refused("weight must be 68 contiguous bytes", weight=np.zeros(67, np.uint8))
    refused("weight must be 68 contiguous bytes, found int8", weight=np.zeros(68, np.int8))
    refused("weight must be 68 contiguous", weight=np.zeros((2, 35), np.uint8)[:, :34])
    refused("x must be contiguous float32", x=np.zeros((1, 32)))
    refused("x must be contiguous float32", x=np.zeros((1, 64), np.float32)[:, ::2])
    refused("x must have 32 columns, found 33", x=np.zeros((1, 33), np.float32))
    refused(r"x must be \[C, columns\]", x=np.zeros(32, np.float32))
    refused("out must be contiguous float32", out=np.zeros((2, 2), np.float32))
    fixed = np.zeros((1, 2), np.float32)
    fixed.flags.writeable = False
    refused("out must be writable", out=fixed)
