"""The user's cache: where it is, what it holds, and the digests it remembers."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from larql.errors import LarqlError, OutputError, PlatformError, SourceError, UsageError
from larql.format import cache, digest
from larql.format.cache import cache_dir, cache_root, entries, locked, remove, sha256_of, sweep
from tests.source.conftest import Recorder


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fill(root: Path) -> None:
    for path, size in {
        "models/pypi/tiny-1.0/tiny.gguf": 100,
        "models/pypi/tiny-1.0/source.json": 10,
        "models/pypi/.tiny.lock": 0,
        "models/pypi/.tiny.partial/wheels/x.whl": 7,
        "models/.hidden/x/y": 1,
        "containers/abc/index.json": 20,
        "containers/abc/segments/a": 30,
        "containers/both/x": 1,
        "kernels/both/x": 2,
        "kernels/file": 5,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(bytes(size))


# Where


def test_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "a"))
    assert cache_root() == tmp_path / "a"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARQL_CACHE_DIR", "b")
    assert cache_root() == tmp_path / "b"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LARQL_CACHE_DIR", "~/c")
    assert cache_root() == tmp_path / "home/c"
    monkeypatch.setenv("LARQL_CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / "home/.cache/larql"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg/larql"
    assert not list(tmp_path.iterdir())


def test_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LARQL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert cache_root() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/larql"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(PlatformError, match="has no home directory; set LARQL_CACHE_DIR"):
        cache_root()
    with pytest.raises(PlatformError):
        entries()
    # What earlier versions of platformdirs do.
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    with pytest.raises(PlatformError, match="has no home directory; set LARQL_CACHE_DIR"):
        cache_root()


def test_directories_are_made_when_needed(larql_cache: Path) -> None:
    assert entries() == []
    assert not larql_cache.exists()
    assert cache_dir("kernels") == larql_cache / "kernels"
    assert (larql_cache / "kernels").is_dir()


def test_directories_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for bad in ("file", "file/x"):
        monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / bad))
        with pytest.raises(PlatformError, match="set LARQL_CACHE_DIR to a directory you may"):
            cache_dir("models")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(PlatformError, match="cannot list the cache"):
        entries()
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "read-only"))
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK | os.X_OK)
    with pytest.raises(PlatformError, match="is not writable; set LARQL_CACHE_DIR"):
        cache_dir("models")


# What


def test_entries(larql_cache: Path) -> None:
    fill(larql_cache)
    assert [(e.kind, e.name, e.bytes) for e in entries()] == [
        ("models", "tiny-1.0", 110),
        ("containers", "abc", 50),
        ("containers", "both", 1),
        ("kernels", "both", 2),
        ("kernels", "file", 5),
    ]
    assert [e.path for e in entries("models")] == [larql_cache / "models/pypi/tiny-1.0"]


def test_remove(larql_cache: Path) -> None:
    fill(larql_cache)
    removed = remove("tiny-1.0")
    assert (removed.kind, removed.bytes) == ("models", 110)
    assert not removed.path.exists()
    assert remove("file").bytes == 5
    with pytest.raises(UsageError, match=r"names several entries .*give --kind"):
        remove("both")
    assert remove("both", "kernels").bytes == 2
    assert [e.name for e in entries()] == ["abc", "both"]
    with pytest.raises(UsageError, match=r"no entry 'tiny-1.0' in the cache"):
        remove("tiny-1.0")
    with pytest.raises(UsageError, match="no entry 'abc'"):
        remove("abc", "models")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc", "a\\b", "a\0", ".tiny.lock", ".tiny.partial", "pypi/.."],
)
def test_names_that_could_lead_elsewhere(larql_cache: Path, name: str) -> None:
    fill(larql_cache)
    with pytest.raises(UsageError, match="is not the name of a cache entry"):
        remove(name)
    assert len(entries()) == 5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="./a\0~\\-*", max_size=8))
def test_nothing_outside_is_ever_removed(larql_cache: Path, name: str) -> None:
    fill(larql_cache)
    outside = larql_cache.parent / "outside"
    outside.mkdir(exist_ok=True)
    with pytest.raises(LarqlError):
        remove(name)
    assert outside.exists()
    assert len(entries()) == 5


def test_a_link_is_removed_and_not_what_it_leads_to(larql_cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "x").write_bytes(bytes(1000))
    (larql_cache / "kernels").mkdir(parents=True)
    (larql_cache / "kernels/link").symlink_to(target)
    assert entries()[0].bytes < 1000
    remove("link")
    assert entries() == []
    assert (target / "x").exists()


def test_an_entry_is_gone_at_once_even_if_deleting_fails(
    larql_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(larql_cache)

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", broken)
        with pytest.raises(OutputError, match="cannot be removed: Input/output error"):
            remove("abc")
    assert "abc" not in [e.name for e in entries()]
    assert sweep("containers") == 50
    assert [p.name for p in (larql_cache / "containers").iterdir()] == ["both"]


def test_sweeping_spares_work_in_progress(larql_cache: Path) -> None:
    fill(larql_cache)
    partial = larql_cache / "models/pypi/.tiny.partial"
    assert sweep() == 0
    assert partial.exists()
    long_ago = time.time() - 4000
    for path in (partial, *partial.rglob("*")):
        os.utime(path, (long_ago, long_ago))
    os.utime(larql_cache / "models/pypi/.tiny.lock", (long_ago, long_ago))
    assert sweep("kernels") == 0
    assert sweep() == 7
    assert not partial.exists()
    assert (larql_cache / "models/pypi/.tiny.lock").exists()
    assert len(entries()) == 5


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock"):
            order.append("second")

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


# Digests


class Counted:
    """Counts how often a SHA-256 is begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._real = hashlib.sha256
        monkeypatch.setattr(hashlib, "sha256", self)

    def __call__(self, *content: bytes) -> object:
        self.count += 1
        return self._real(*content)


def old_file(path: Path, content: bytes) -> Path:
    """Write a file that has not been touched for a while."""
    path.write_bytes(content)
    past = time.time() - 100
    os.utime(path, (past, past))
    return path


def test_a_file_is_read_once(
    larql_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorder: Recorder
) -> None:
    content = os.urandom(3_000_000)
    path = old_file(tmp_path / "file", content)
    (tmp_path / "link").symlink_to(path)
    counted = Counted(monkeypatch)
    assert sha256_of(path, recorder) == hashlib.sha256(content).hexdigest()
    assert recorder.stages == [("Checking file", len(content))]
    assert (recorder.done, recorder.open) == ([len(content)], 0)
    begun = counted.count
    for again in (path, tmp_path / "link"):
        assert sha256_of(again, recorder) == sha256_of(path)
    assert counted.count == begun
    assert len(recorder.stages) == 1


def test_any_change_is_noticed(larql_cache: Path, tmp_path: Path) -> None:
    path = old_file(tmp_path / "file", b"first")
    stamp = path.stat()
    assert sha256_of(path) == sha256(b"first")
    path.write_bytes(b"later")
    assert sha256_of(path) == sha256(b"later")
    # The same size, time and inode; only the time of the change itself tells.
    path.write_bytes(b"third")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert sha256_of(path) == sha256(b"third")
    other = old_file(tmp_path / "other", b"other")
    other.replace(path)
    assert sha256_of(path) == sha256(b"other")


def test_a_file_that_is_still_being_written_is_not_remembered(
    larql_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    # As on a file system whose clock has not moved between the two writes.
    monkeypatch.setattr(digest, "_stamp", lambda status: "same")
    for content in (b"first", b"later"):
        path.write_bytes(content)
        assert sha256_of(path) == sha256(content)


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    larql_cache: Path, tmp_path: Path
) -> None:
    path = old_file(tmp_path / "file", b"first")

    class Meddler(Recorder):
        def advance(self, n: int) -> None:
            path.write_bytes(b"later")
            os.utime(path, (1, 1))

    sha256_of(path, Meddler())
    assert sha256_of(path) == sha256(b"later")


def test_a_known_digest_is_remembered(
    larql_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    cache.remember_sha256(path, "a" * 64)
    assert sha256_of(path) == "a" * 64
    cache.remember_sha256(tmp_path / "nothing", "a" * 64)


def test_what_cannot_be_read(larql_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in {
        "nothing": "cannot be read: No such file",
        ".": "is not a regular file",
        "pipe": "is not a regular file",
        "loop": "cannot be read: ",
    }.items():
        with pytest.raises(SourceError, match=rf"{reason}.*; check the path"):
            sha256_of(tmp_path / name)


@pytest.mark.parametrize("damage", ["noise", "table", "value", "directory"])
def test_a_damaged_memo_only_costs_time(larql_cache: Path, tmp_path: Path, damage: str) -> None:
    path = old_file(tmp_path / "file", b"content")
    memo = larql_cache / "digests.sqlite"
    if damage == "directory":
        memo.mkdir(parents=True)
    else:
        sha256_of(path)
        assert memo.is_file()
    if damage == "noise":
        memo.write_bytes(b"noise" * 1000)
    elif damage in ("table", "value"):
        with sqlite3.connect(memo) as connection:
            if damage == "table":
                connection.execute("ALTER TABLE digests RENAME TO other")
            else:
                connection.execute("UPDATE digests SET digest = 'short'")
    for _ in range(3):
        assert sha256_of(path) == sha256(b"content")
    if damage == "noise":
        with sqlite3.connect(memo) as connection:
            assert connection.execute("SELECT count(*) FROM digests").fetchone() == (1,)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blocked").write_text("")
    path = old_file(tmp_path / "file", b"content")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "blocked/cache"))
    assert sha256_of(path) == sha256(b"content")


def test_a_memo_that_another_process_holds(
    larql_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "file", b"content")
    sha256_of(path)
    before = (larql_cache / "digests.sqlite").stat().st_ino
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda memo, timeout: connect(memo, timeout=0.05))
    holder = connect(larql_cache / "digests.sqlite")
    holder.execute("BEGIN EXCLUSIVE")
    assert sha256_of(path) == sha256(b"content")
    holder.rollback()
    holder.close()
    assert (larql_cache / "digests.sqlite").stat().st_ino == before


def test_processes_share_the_memo(larql_cache: Path, tmp_path: Path) -> None:
    files = [old_file(tmp_path / f"file{n}", b"%d" % n) for n in range(20)]
    script = (
        "import sys, pathlib\n"
        "from larql.format.cache import sha256_of\n"
        "print(*(sha256_of(pathlib.Path(p)) for p in sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, *map(str, files)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    expected = " ".join(sha256(b"%d" % n) for n in range(20)) + "\n"
    assert [run.communicate(timeout=60)[0] for run in runs] == [expected] * 4
    with sqlite3.connect(larql_cache / "digests.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM digests").fetchone() == (20,)


def test_importing_the_cache_is_cheap() -> None:
    script = (
        "import sys\n"
        "import larql.format.cache, larql.format.source.locate\n"
        "heavy = {'numpy', 'platformdirs', 'sqlite3', 'huggingface_hub', 'packaging', 'zipfile'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# The command


def test_ls_and_rm(
    larql_cache: Path, larql_process: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    empty = larql_process("cache", "ls")
    assert (empty.returncode, empty.stdout) == (0, "")
    fill(larql_cache)
    listed = larql_process("cache", "ls")
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == 6
    assert f"5 entries, 168 B in {larql_cache}" in listed.stderr
    document = json.loads(larql_process("cache", "ls", "--json", "--kind", "models").stdout)
    assert document == {
        "root": str(larql_cache),
        "bytes": 110,
        "entries": [
            {
                "name": "tiny-1.0",
                "kind": "models",
                "bytes": 110,
                "path": str(larql_cache / "models/pypi/tiny-1.0"),
            }
        ],
    }
    removed = larql_process("cache", "rm", "abc", "file")
    assert (removed.returncode, removed.stdout) == (0, "abc\nfile\n")
    assert larql_process("cache", "rm", "both", "--kind", "kernels").returncode == 0
    for arguments in (["nothing"], ["../models"], [], ["tiny-1.0", "--all"]):
        refused = larql_process("cache", "rm", *arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert len(refused.stderr.splitlines()) == 1
    assert [e.name for e in entries()] == ["tiny-1.0", "both"]
    everything = larql_process("cache", "rm", "--all", "--kind", "containers", "--json")
    assert json.loads(everything.stdout)["bytes"] == 1
    assert larql_process("cache", "rm", "--all").returncode == 0
    assert entries() == []
