"""Outputs appear whole or not at all, and nothing of anybody else's is ever removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from larql.errors import ContainerError, OutputError
from larql.format import atomic
from larql.format.atomic import check_output, recover, write_directory, write_file
from larql.format.container import Container
from tests.builders.containers import file_bytes

NAME = "m [1]*.vindex3"
"""A name that means something else to a glob."""


def ours(path: Path) -> bool:
    return (path / "mark").exists()


def write(path: Path, text: str, *, force: bool = False) -> None:
    with write_directory(path, force=force, replaceable=ours) as directory:
        (directory / "mark").write_text(text)
        (directory / "below").mkdir()
        (directory / "below" / "file").write_text(text)


@pytest.fixture(params=["exchange", "two renames"])
def replacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to replace a directory."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    return str(request.param)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))  # noqa: PTH208 - hidden ones matter most


def test_a_directory_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with write_directory(path, force=False, replaceable=ours) as directory:
        assert directory.parent == tmp_path
        assert directory.name.startswith(".")
        (directory / "mark").write_text("1")
        assert not path.exists()
    assert file_bytes(path) == {"mark": b"1"}
    assert names(tmp_path) == [NAME]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit, ContainerError])
def test_an_abandoned_directory_leaves_nothing(
    tmp_path: Path, problem: type[BaseException]
) -> None:
    with (
        pytest.raises(problem),
        write_directory(tmp_path / NAME, force=False, replaceable=ours) as directory,
    ):
        (directory / "mark").write_text("1")
        raise problem("stop")
    assert names(tmp_path) == []


def test_an_abandoned_replacement_leaves_the_old_one(tmp_path: Path, replacing: str) -> None:
    write(tmp_path / NAME, "old")
    with (
        pytest.raises(ValueError, match="stop"),
        write_directory(tmp_path / NAME, force=True, replaceable=ours) as directory,
    ):
        (directory / "mark").write_text("new")
        raise ValueError("stop")
    assert (tmp_path / NAME / "mark").read_text() == "old"
    assert names(tmp_path) == [NAME]


def test_force_replaces_everything(tmp_path: Path, replacing: str) -> None:
    write(tmp_path / NAME, "old")
    (tmp_path / NAME / "left over").write_text("old")
    write(tmp_path / NAME, "new", force=True)
    assert file_bytes(tmp_path / NAME) == {"mark": b"new", "below/file": b"new"}
    assert names(tmp_path) == [NAME]


def test_the_system_exchanges_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").touch()
    assert atomic._exchange(tmp_path / "a", tmp_path / "b")
    assert (names(tmp_path / "a"), names(tmp_path / "b")) == ([], ["x"])
    assert not atomic._exchange(tmp_path / "a", tmp_path / "missing")


def test_an_empty_directory_is_filled_with_or_without_force(tmp_path: Path) -> None:
    for force in (False, True):
        path = tmp_path / f"empty-{force}"
        path.mkdir()
        write(path, "new", force=force)
        assert (path / "mark").read_text() == "new"
    assert len(names(tmp_path)) == 2


def foreign(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def link_to_ours(path: Path) -> None:
    target = path.with_name("target")
    target.mkdir()
    (target / "mark").write_text("linked")
    path.symlink_to(target)


def link_to_nothing_in_it(path: Path) -> None:
    path.with_name("target").mkdir()
    path.symlink_to(path.with_name("target"))


OCCUPANTS: tuple[Callable[[Path], object], ...] = (
    foreign,
    lambda path: path.write_text("a file"),
    lambda path: path.write_text(""),
    link_to_ours,
    link_to_nothing_in_it,
    lambda path: path.symlink_to("nowhere"),
    os.mkfifo,
)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("occupy", OCCUPANTS)
def test_what_is_not_ours_is_never_replaced(
    tmp_path: Path, occupy: Callable[[Path], object], force: bool
) -> None:
    path = tmp_path / NAME
    occupy(path)
    before, listed = os.lstat(path), names(tmp_path)
    with pytest.raises(OutputError, match="it will not be replaced") as caught:
        write(path, "new", force=force)
    assert str(path) in str(caught.value)
    with pytest.raises(OutputError, match="it will not be replaced"):
        check_output(path, force=force, replaceable=ours)
    assert os.lstat(path) == before
    assert names(tmp_path) == listed


def test_ours_is_replaced_with_force_only(tmp_path: Path) -> None:
    write(tmp_path / NAME, "old")
    with pytest.raises(OutputError, match="exists; give --force to replace it"):
        write(tmp_path / NAME, "new")
    assert (tmp_path / NAME / "mark").read_text() == "old"


@pytest.mark.parametrize("force", [False, True])
def test_what_appears_during_the_work_is_not_replaced(
    tmp_path: Path, force: bool, replacing: str
) -> None:
    path = tmp_path / NAME
    with (
        pytest.raises(OutputError),
        write_directory(path, force=force, replaceable=ours) as directory,
    ):
        (directory / "mark").write_text("new")
        foreign(path)
    assert file_bytes(path) == {"thesis.txt": b"years of work"}
    assert names(tmp_path) == [NAME]


def test_what_appears_at_the_last_moment_is_not_replaced_without_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    path.mkdir()
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        (path / "thesis.txt").write_text("years of work")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(OutputError, match="something appeared there meanwhile"):
        write(path, "new")
    assert file_bytes(path) == {"thesis.txt": b"years of work"}


def test_a_replacement_that_fails_half_way_puts_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    write(path, "old")
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if ".tmp-" in self.name:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        write(path, "new", force=True)
    assert (path / "mark").read_text() == "old"
    assert names(tmp_path) == [NAME]


KILLED_BETWEEN_RENAMES = """
import os, signal, sys
from pathlib import Path
from larql.format import atomic
atomic._exchange = lambda first, second: False
rename = Path.rename
def killing(self, target):
    done = rename(self, target)
    if ".old-" in Path(target).name:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
Path.rename = killing
path = Path(sys.argv[1])
with atomic.write_directory(path, force=True, replaceable=lambda p: True) as directory:
    (directory / "mark").write_text("new")
"""


def kill_between_renames(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_BETWEEN_RENAMES, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()


def test_a_killed_replacement_is_recovered(tmp_path: Path) -> None:
    path = tmp_path / NAME
    write(path, "old")
    kill_between_renames(path)
    recover(tmp_path / "m [1]x.vindex3")
    assert not path.exists(), "the name is not a pattern"
    recover(path)
    assert (path / "mark").read_text() == "old"
    recover(path)
    assert (path / "mark").read_text() == "old"


def test_a_killed_replacement_is_recovered_when_it_is_opened_or_written(
    damaged: Path,
) -> None:
    kill_between_renames(damaged)
    assert Container(damaged).index.model == "llama"
    kill_between_renames(damaged)
    with pytest.raises(OutputError, match="exists; give --force"):
        check_output(damaged, force=False, replaceable=lambda path: True)
    assert damaged.is_dir()


def test_recovering_twice_at_the_same_time_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / NAME
    write(path, "old")
    kill_between_renames(path)
    rename = Path.rename

    def second(self: Path, target: Path) -> Path:
        rename(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second)
    recover(path)
    assert (path / "mark").read_text() == "old"


def test_a_removed_directory_does_not_come_back(tmp_path: Path) -> None:
    """What a finished replacement left behind is no longer under a name that is recovered."""
    path = tmp_path / NAME
    write(path, "old")
    script = KILLED_BETWEEN_RENAMES.replace(
        'if ".old-" in Path(target).name:', 'if ".old-" in Path(self).name:'
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (path / "mark").read_text() == "new"
    shutil.rmtree(path)
    recover(path)
    assert not path.exists()


def test_a_missing_parent_is_said(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="parent directory does not exist"):
        write(tmp_path / "missing" / "m", "x")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write: its parent is not a directory"):
        write(tmp_path / "file" / "m", "x")
    with pytest.raises(OutputError, match="name is too long"):
        write(tmp_path / ("n" * 300), "x")


@pytest.mark.parametrize("begin", [write, lambda path, _text: _fill(path)])
def test_a_parent_that_nobody_may_write_to_is_said(begin: Callable[[Path, str], None]) -> None:
    """Not even the superuser creates files in sysfs."""
    with pytest.raises(OutputError, match=r"permission denied|does not permit|read-only") as caught:
        begin(Path("/sys/larql"), "x")
    assert str(caught.value).startswith("/sys/larql: cannot write: ")


def test_relative_paths_and_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with write_directory(Path("m"), force=False, replaceable=ours) as directory:
        (directory / "mark").write_text("1")
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert (tmp_path / "m" / "mark").read_text() == "1"


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "dump.bin"
    for text in ("first", "second"):
        with write_file(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == text
        assert names(tmp_path) == ["dump.bin"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, OutputError])
def test_an_abandoned_file_leaves_what_was_there(
    tmp_path: Path, problem: type[BaseException]
) -> None:
    path = tmp_path / "dump.bin"
    path.write_text("old")
    with pytest.raises(problem), write_file(path) as temporary:
        temporary.write_text("new")
        raise problem("stop")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["dump.bin"]


def test_a_file_cannot_be_a_directory_or_stand_in_none(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a directory"), write_file(tmp_path):
        pass
    with pytest.raises(OutputError, match="parent directory does not exist"):
        _fill(tmp_path / "missing" / "f")
    with pytest.raises(OutputError, match="name is too long"):
        _fill(tmp_path / ("n" * 300))
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="parent is not a directory"):
        _fill(tmp_path / "file" / "f")


def _fill(path: Path) -> None:
    with write_file(path) as temporary:
        temporary.write_text("x")


def test_a_special_file_is_written_as_it_is(tmp_path: Path) -> None:
    with write_file(Path("/dev/null")) as path:
        assert path == Path("/dev/null")
        path.write_text("x")
    assert not Path("/dev/null").is_file()


LIMITED = """
import resource, sys
from pathlib import Path
from larql.errors import OutputError
from larql.format.atomic import write_directory, write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
root = Path(sys.argv[1])
try:
    if sys.argv[2] == "file":
        with write_file(root / "out") as path:
            path.write_bytes(bytes(1 << 20))
    else:
        with write_directory(root / "out", force=True, replaceable=lambda p: True) as path:
            (path / "small").write_bytes(b"x")
            (path / "large").write_bytes(bytes(1 << 20))
except OutputError as error:
    print(error)
"""


@pytest.fixture(params=["file", "directory"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), request.param],
        capture_output=True,
        text=True,
        check=True,
    )
    yield tmp_path, done.stdout


def test_a_limit_on_file_size_is_said_and_leaves_nothing(limited: tuple[Path, str]) -> None:
    directory, output = limited
    assert output.startswith(f"{directory / 'out'}: cannot write: ")
    assert "allowed file size" in output
    assert names(directory) == []


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    dead = tmp_path / ".m.vindex3.tmp-dead"
    (dead / "segments").mkdir(parents=True)
    foreign = tmp_path / ".other.vindex3.tmp-dead"
    foreign.mkdir()
    path = tmp_path / "m.vindex3"
    with write_directory(path, force=False, replaceable=lambda _: True) as outer:
        assert not dead.exists()
        with write_directory(path, force=True, replaceable=lambda _: True) as inner:
            assert outer.is_dir()
            (inner / "a").write_text("a")
        (outer / "b").write_text("b")
        shutil.rmtree(path)
    assert foreign.is_dir()
    assert [p.name for p in sorted(tmp_path.iterdir())] == [foreign.name, "m.vindex3"]
