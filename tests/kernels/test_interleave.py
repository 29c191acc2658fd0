"""Plain rows interleaved in memory: bytes of packed rows, and no byte read or written beside."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from larql.kernels import setup
from larql.kernels.encodings import BLOCKS
from larql.kernels.interleave import interleave_slab
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.jit import Variant, compiled_address, kernel
from larql.kernels.memory import load_i64
from larql.kernels.threads import launch
from larql.kernels.unit_slab import has_units
from tests.naive.packed import pack

Bytes = npt.NDArray[np.uint8]
ENCODINGS = [name for name in INTERLEAVED if has_units(name)]
MARGIN = 64


@kernel
def _interleave(variant: object, p: int, task: int, worker: int) -> None:
    interleave_slab(
        variant, load_i64(p), load_i64(p + 8), load_i64(p + 16), load_i64(p + 24), load_i64(p + 32),
        load_i64(p),
    )  # fmt: skip


def interleaved(encoding: str, rows: Bytes, stride: int, blocks: int, address: int) -> Bytes:
    """The slab of the rows at an address; what lies around it must stay as it was."""
    size = 16 * blocks * BLOCKS[encoding].nbytes
    target = np.full(size + 2 * MARGIN, 0xA5, np.uint8)
    words = (address, stride, len(rows) - 1, blocks, int(target.ctypes.data) + MARGIN)
    code = compiled_address(_interleave, Variant(setup.current().level, encoding))
    launch(code, np.array(words, np.int64), 1, rows, target)
    assert (target[:MARGIN] == 0xA5).all() and (target[-MARGIN:] == 0xA5).all()
    return target[MARGIN:-MARGIN]


def expected(encoding: str, rows: Bytes, size: int) -> Bytes:
    """The twin's slab, the last row repeated where rows are missing."""
    full = [row[:size].tobytes() for row in rows]
    full += full[-1:] * (16 - len(rows))
    packed = pack(INTERLEAVED[encoding].source, full, BLOCKS[encoding].nbytes)
    return np.frombuffer(packed, np.uint8)


@settings(deadline=None, max_examples=60)
@given(
    encoding=st.sampled_from(ENCODINGS),
    rows=st.integers(1, 16),
    blocks=st.integers(1, 5),
    gap=st.integers(0, 70),
    shift=st.integers(0, 63),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_slab_has_the_bytes_of_packed_rows(
    encoding: str, rows: int, blocks: int, gap: int, shift: int, seed: int
) -> None:
    size = blocks * BLOCKS[encoding].nbytes
    memory = np.random.default_rng(seed).integers(0, 256, shift + rows * (size + gap), np.uint8)
    stored = memory[shift:].reshape(rows, size + gap)
    found = interleaved(encoding, stored, size + gap, blocks, int(stored.ctypes.data))
    assert np.array_equal(found, expected(encoding, stored, size))


@pytest.mark.parametrize("rows", [1, 2, 15, 16])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nothing_is_read_before_the_first_row_or_behind_the_last(encoding: str, rows: int) -> None:
    """Rows end where a page begins that must not be touched, then begin where one ends."""
    size, page = 2 * BLOCKS[encoding].nbytes, mmap.PAGESIZE
    pages = -(-rows * size // page) + 2
    memory = mmap.mmap(-1, pages * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    raw = np.random.default_rng(rows).integers(0, 256, (rows, size), np.uint8)
    for first, barred in ((base + (pages - 1) * page - rows * size, pages - 1), (base + page, 0)):
        ctypes.memmove(first, raw.tobytes(), raw.size)
        assert protect(base + barred * page, page, 0) == 0
        found = interleaved(encoding, raw, size, 2, first)
        assert protect(base + barred * page, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        assert np.array_equal(found, expected(encoding, raw, size))
