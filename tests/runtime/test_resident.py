"""What a process says that it occupies, and what it gives back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from larql.runtime import resident, text
from larql.runtime.bench.arms import child
from tests.tokenizer.support import byte_level, loaded


def test_memory_is_what_the_system_says() -> None:
    before = Path("/proc/self/status").read_text()
    found = resident.resident()
    expected = {
        "resident_bytes": "VmRSS", "resident_file_bytes": "RssFile", "peak_resident_bytes": "VmHWM",
    }  # fmt: skip
    assert found.keys() == expected.keys()
    for name, field in expected.items():
        (said,) = re.findall(rf"^{field}:\s+(\d+) kB", before, re.MULTILINE)
        value = found[name]
        assert isinstance(value, int)
        assert abs(value - int(said) * 1024) < 64 << 20, name


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "Path", lambda name: Path("/nowhere"))
    assert resident.resident() == {}


def test_holes_in_the_heap_are_given_back() -> None:
    blocks = [bytearray(20_000) for _ in range(4000)]
    del blocks[::2]  # what is left keeps the C library from giving them back by itself
    full = resident.resident()["resident_bytes"]
    resident.trim()
    after = resident.resident()["resident_bytes"]
    assert isinstance(full, int) and isinstance(after, int)
    assert after < full - (16 << 20)


def test_another_c_library_has_nothing_to_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident.ctypes, "CDLL", lambda name: object())
    resident.trim()


def test_a_loaded_tokenizer_leaves_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[None] = []
    monkeypatch.setattr(text, "trim", lambda: made.append(None))
    loaded(byte_level(()), tmp_path)
    assert made == [None]
