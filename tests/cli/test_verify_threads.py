"""``larql verify``: the same bytes from any number of threads, and work that shows and stops."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from larql.errors import ContainerError
from larql.format import hash_files as hashing
from larql.format.index import FileEntry
from larql.format.progress import SilentProgress
from tests.builders.containers import copy_container, edit_graph, edit_index, file_bytes, flip_byte
from tests.cli.conftest import Run

SEGMENTS = [f"segments/target.layer.00{n}.safetensors" for n in range(3)]


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    """A container with something wrong in each of five files."""
    made = copy_container(llama, tmp_path / "damaged.vindex3")
    flip_byte(made / SEGMENTS[0])
    (made / SEGMENTS[1]).unlink()
    with (made / SEGMENTS[2]).open("ab") as stream:
        stream.write(b"more")
    flip_byte(made / "tokenizer.json", 40)
    edit_graph(made, lambda graph: graph["components"][0].update(hidden_size=65), vouch=False)
    return made


@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["text", "json"])
def test_threads_and_order_change_no_byte(
    flag: list[str], damaged: Path, llama: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = random.Random(0)
    orders = set()

    def order(sizes: Mapping[str, int]) -> Sequence[str]:
        names = shuffled.sample(sorted(sizes), len(sizes))
        orders.add(tuple(names))
        return names

    monkeypatch.setattr(hashing, "largest_first", order)
    for model, status in ((damaged, 1), (llama, 0)):
        found = {
            (answer.status, answer.out, answer.err)
            for threads in (1, 2, 3, 8)
            for answer in (cli("verify", model, *flag, "--threads", threads) for _ in range(3))
        }
        assert len(found) == 1
        assert next(iter(found))[0] == status
    assert len(orders) == 24, "no two runs hashed in the same order"


def test_every_defect_is_told_by_name(damaged: Path, cli: Run) -> None:
    lines = cli("verify", damaged, "--threads", "3").out.splitlines()
    told = [line.partition(":")[0] for line in lines]
    names = [*SEGMENTS, "system_graph.json", "tokenizer.json"]
    assert told[: len(names)] == names
    assert "sha256 is" in lines[0]
    assert "no such file" in lines[1]
    assert "bytes, expected" in lines[2]


def test_largest_files_are_begun_first() -> None:
    assert list(hashing.largest_first({"a": 1, "b": 3, "c": 2, "d": 3})) == ["b", "d", "c", "a"]


class _Watched(SilentProgress):
    """A progress that would find out if two threads told it of work at once."""

    def __init__(self) -> None:
        self.done, self.total, self.inside, self.most = 0, -1, 0, 0
        self.threads: set[str] = set()

    def start(self, label: str, total: int | None) -> None:
        self.total = -1 if total is None else total

    def advance(self, n: int) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.001)
        self.done += n
        self.threads.add(threading.current_thread().name)
        self.inside -= 1


def test_files_are_hashed_at_once_and_told_of_one_at_a_time(tmp_path: Path) -> None:
    import hashlib

    contents = {f"{n}.bin": os.urandom(1 << 20) * n for n in range(6)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    sizes = {name: len(content) for name, content in contents.items()}
    watched = _Watched()
    found = hashing.hash_files(tmp_path, {**sizes, "gone": 5}, 3, watched)
    gone = found.pop("gone")
    assert isinstance(gone, ContainerError)
    assert found == {
        name: FileEntry(len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    }
    assert (watched.done, watched.total) == (sum(sizes.values()), sum(sizes.values()) + 5)
    assert watched.most == 1
    assert len(watched.threads) == 3


def test_one_thread_is_one_thread(llama: Path) -> None:
    sizes = {name: len(data) for name, data in file_bytes(llama).items()}
    watched = _Watched()
    hashing.hash_files(llama, sizes, 1, watched)
    assert len(watched.threads) == 1


@pytest.fixture
def long_work(llama: Path, tmp_path: Path) -> Path:
    """A container with two files that take many seconds to hash, and no space on the disk."""
    made = copy_container(llama, tmp_path / "long.vindex3")
    for name in ("a.bin", "b.bin"):
        with (made / name).open("wb") as stream:
            stream.truncate(64 << 30)

    def change(index: Any) -> None:
        for name in ("a.bin", "b.bin"):
            index["files"][name] = {"size": 64 << 30, "sha256": "0" * 64}

    return edit_index(made, change)


def test_a_terminal_shows_a_bar_and_an_interruption_ends_it_at_once(long_work: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "larql", "verify", str(long_work), "--threads", "2"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 30
    # Some of both files has been read: threads are at work.
    while not re.search(rb"[1-9]\.\d/137\.4 GB", shown) and time.monotonic() < deadline:
        shown += os.read(master, 4096)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    reader = threading.Thread(target=_drain, args=(master,), daemon=True)
    reader.start()
    out, _ = process.communicate(timeout=20)
    assert time.monotonic() - sent < 5
    assert process.returncode == 130
    assert out == b""
    assert b"verify" in shown
    os.close(master)


def _drain(master: int) -> None:
    try:
        while os.read(master, 4096):
            pass
    except OSError:  # the other end is closed
        return


def test_a_pipe_shows_nothing(llama: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "larql", "verify", str(llama)], capture_output=True, check=True
    )
    assert done.stderr == b""
