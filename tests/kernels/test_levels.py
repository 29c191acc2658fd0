"""Instruction-set levels, the kernel cache and edited sources, each in processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from larql.kernels import setup

pytestmark = pytest.mark.slow(120)
REPOSITORY = Path(__file__).parents[2]
PROBE = Path(__file__).with_name("probe.py")
LEVELS = setup.LEVELS[setup.LEVELS.index(setup.host_level()) :]


def start(
    cache: Path, level: str, *options: str, threads: int = 2, package: Path = REPOSITORY
) -> subprocess.Popen[str]:
    environment = dict(os.environ, LARQL_ISA=level, LARQL_CACHE_DIR=str(cache))
    return subprocess.Popen(
        [sys.executable, str(PROBE), str(package), str(threads), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@dataclass
class Levels:
    """One run per level, each from an empty cache; kept for all tests of this module."""

    root: Path
    made: dict[str, dict[str, Any]] = field(default_factory=dict)

    def cache(self, level: str) -> Path:
        return self.root / level

    def report(self, level: str) -> dict[str, Any]:
        if level not in self.made:
            self.made[level] = finish(start(self.cache(level), level, "assembly"))
        return self.made[level]

    def few(self, level: str) -> dict[str, str]:
        """The part of the digests that a run of few kernels has."""
        digests: dict[str, str] = self.report(level)["digests"]
        return {name: digests[name] for name in ("q4_1", "q4_1, one vector")}


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Levels]:
    yield Levels(tmp_path_factory.mktemp("levels"))


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_has_the_same_bits(levels: Levels, level: str) -> None:
    found = levels.report(level)
    assert found["level"] == level
    assert found["warnings"] == []
    assert found["digests"] == levels.report("portable")["digests"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_its_instructions_and_no_wider_ones(levels: Levels, level: str) -> None:
    code = levels.report(level)["assembly"]
    assert len(code) > 100_000
    wide = {name: re.search(rf"%{name}\d", code) is not None for name in ("zmm", "ymm", "xmm")}
    fused = re.search(r"\bvf(n?)m(add|sub)\d+", code) is not None
    if setup.features()["machine"] not in ("x86_64", "AMD64"):
        return
    assert wide == {"zmm": level == "avx512", "ymm": level != "portable", "xmm": True}
    assert fused == (level != "portable")
    # the VEX and EVEX forms begin with v: a baseline processor has none of them
    if level == "portable":
        assert re.search(r"^\s+v[a-z0-9]+\s+.*%xmm", code, re.MULTILINE) is None
        assert "pshufb" not in code
    assert ("vpdpbusd" in code) == (level == "avx512")
    halves = re.search(r"\bvcvtps2ph\b", code), re.search(r"\bvcvtph2ps\b", code)
    assert [found is not None for found in halves] == [level != "portable"] * 2


def test_a_second_run_reads_what_the_first_compiled(levels: Levels) -> None:
    first = levels.report("portable")
    files = sorted(Path(first["cache"]).iterdir())
    stamps = [path.stat().st_mtime_ns for path in files]
    again = finish(start(levels.cache("portable"), "portable", threads=3))
    assert again["digests"] == first["digests"]
    assert sorted(Path(first["cache"]).iterdir()) == files
    assert [path.stat().st_mtime_ns for path in files] == stamps


def test_damaged_entries_are_compiled_again(levels: Levels, tmp_path: Path) -> None:
    first = finish(start(tmp_path, "portable", "few"))
    files = sorted(Path(first["cache"]).glob("*.kernel"))
    assert len(files) > 5
    sizes = [path.stat().st_size for path in files]
    for index, path in enumerate(files):
        content = path.read_bytes()
        if index % 3 == 0:
            path.write_bytes(content[: len(content) // 2])
        elif index % 3 == 1:
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        else:
            path.write_bytes(b"")
    again = finish(start(tmp_path, "portable", "few"))
    assert again["digests"] == first["digests"] == levels.few("portable")
    assert again["warnings"] == []
    assert [path.stat().st_size for path in files] == sizes


def test_processes_that_fill_one_cache_together_agree(levels: Levels, tmp_path: Path) -> None:
    processes = [start(tmp_path, "portable", "few", threads=1) for _ in range(4)]
    expected = levels.few("portable")
    assert all(finish(process)["digests"] == expected for process in processes)
    assert not list(tmp_path.rglob("*.partial"))


def test_without_a_writable_cache_there_is_one_warning(levels: Levels, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    found = finish(start(occupied, "portable", "few"))
    assert found["cache"] is None
    assert found["digests"] == levels.few("portable")
    (warning,) = found["warnings"]
    assert "cannot be kept in" in warning and "LARQL_CACHE_DIR" in warning


def test_an_edited_helper_is_seen_by_the_next_run(levels: Levels, tmp_path: Path) -> None:
    first = levels.report("portable")
    package = tmp_path / "larql"
    package.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copytree(REPOSITORY / "larql" / "kernels", package / "kernels")
    helper = package / "kernels" / "vector.py"
    text = helper.read_text(encoding="utf-8")
    assert text.count("LANES = 16\n") == 1
    helper.write_text(text.replace("LANES = 16\n", "LANES = 8\n"), encoding="utf-8")
    environment = dict(
        os.environ, LARQL_ISA="portable", LARQL_CACHE_DIR=str(levels.cache("portable"))
    )
    script = (
        "import sys, numpy as np\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from larql.kernels import norm\n"
        "x = np.random.default_rng(5).standard_normal((3, 50)).astype(np.float32)\n"
        "norm.rms_norm(x, None, 0.0, 1e-5, x)\n"
        "print(norm.__file__, x.tobytes().hex())\n"
    )
    runs = []
    for root in (tmp_path, REPOSITORY):
        text = script.replace(str(tmp_path), str(root))
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        file, bits = done.stdout.split()
        assert Path(file).is_relative_to(root)
        runs.append(bits)
    assert runs[0] != runs[1]
    again = finish(start(levels.cache("portable"), "portable"))
    assert again["digests"] == first["digests"]


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("avx1024", "LARQL_ISA must be one of avx512, avx2, portable, found 'avx1024'"),
        ("avx512", "LARQL_ISA=avx512 needs processor features this machine lacks: avx512f"),
    ],
)
def test_a_level_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, level: str, message: str
) -> None:
    monkeypatch.setenv("LARQL_ISA", level)
    monkeypatch.setattr(setup, "_CHOSEN", [])
    monkeypatch.setattr(setup, "_host_flags", lambda: setup._NEEDS["avx512"] - {"avx512f"})
    with pytest.raises(ValueError, match=message):
        setup.configure()


def test_thread_counts_are_checked_and_the_first_setup_stays(tmp_path: Path) -> None:
    for wrong in (0, 65, -1):
        with pytest.raises(ValueError, match=f"threads must be 1..64, found {wrong}"):
            setup.configure(wrong)
    assert setup.configure(3, tmp_path) is setup.current()


def test_numba_imported_too_early_is_refused() -> None:
    script = (
        "import numba\nfrom larql.kernels import setup\n"
        "try:\n    setup.configure()\nexcept RuntimeError as error:\n    print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert "numba was imported before" in done.stdout


def test_only_the_jit_modules_import_numba() -> None:
    found = {
        path.name
        for path in (REPOSITORY / "larql" / "kernels").glob("*.py")
        if re.search(r"^(from|import) numba", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found == {"jit.py", "cache.py"}


def test_importing_the_package_or_its_setup_does_not_import_numba() -> None:
    script = "import sys, larql.kernels.setup as s; s.features(); print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
