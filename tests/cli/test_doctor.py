from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from larql import __version__
from larql.cli import doctor, installation

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_it_reports_what_is_here(larql_process: Run, tmp_path: Path) -> None:
    process = larql_process("doctor", "--json", env={"LARQL_CACHE_DIR": str(tmp_path / "new")})
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["ok"] is True
    assert report["versions"]["larql"] == __version__
    assert set(report["versions"]) >= {"python", "numba", "llvmlite", "numpy", "tokenizers"}
    assert report["system"]["cores_usable"] >= 1
    assert report["system"]["memory_bytes"] > 10**8
    assert report["kernels"]["isa"] in {"avx512", "avx2", "portable"}
    assert report["kernels"]["threading_layer"] == "pool"
    assert report["cache"]["directory"] == str(tmp_path / "new")
    assert report["cache"]["models_entries"] == 0
    assert report["environment"]["LARQL_CACHE_DIR"] == str(tmp_path / "new")


def test_people_get_the_same_in_lines(larql_process: Run) -> None:
    process = larql_process("doctor")
    assert process.returncode == 0
    for part in ("versions", "kernels", "  numba ", "  free ", f"  larql            {__version__}"):
        assert part in process.stdout


def test_a_level_that_this_machine_lacks_is_broken(larql_process: Run) -> None:
    process = larql_process("doctor", "--json", env={"LARQL_ISA": "avx1024"})
    assert process.returncode == 1
    report = json.loads(process.stdout)
    assert report["ok"] is False
    assert [f["what"] for f in report["findings"] if f["state"] == "broken"] == ["kernels"]
    assert process.stderr.startswith("larql: error: 1 of the things larql needs")


def test_a_forced_level_is_a_note(larql_process: Run) -> None:
    report = json.loads(larql_process("doctor", "--json", env={"LARQL_ISA": "portable"}).stdout)
    if report["kernels"]["isa_host"] == "portable":
        assert report["findings"] == []
    else:
        assert [f["what"] for f in report["findings"]] == ["instruction set"]


def test_a_cache_that_takes_no_files_is_a_note(larql_process: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    process = larql_process(
        "doctor", "--json", env={"LARQL_CACHE_DIR": str(tmp_path / "file" / "cache")}
    )
    assert process.returncode == 0
    assert process.stderr == ""
    report = json.loads(process.stdout)
    assert report["cache"].get("writable") is not True
    assert {f["what"] for f in report["findings"]} == {"cache", "kernel cache"}


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc")
    monkeypatch.setenv("LARQL_TEST_VALUE", "seen")
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:word@example.org/simple")
    monkeypatch.setenv("UNRELATED", "not listed")
    facts = doctor._environment()
    assert "hf_abc" not in str(facts)
    assert "word" not in str(facts)
    assert facts["PIP_INDEX_URL"] == "https://***@example.org/simple"
    assert facts["LARQL_TEST_VALUE"] == "seen"
    assert "UNRELATED" not in facts


def test_modules_that_cannot_be_imported_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "larql_raises.py").write_text("raise ImportError('libgomp.so.1:\\nnot found')")
    (tmp_path / "larql_dies.py").write_text("import os; os._exit(132)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    modules = ["json", "larql_raises", "larql_absent", "larql_dies", "math"]
    assert installation.import_failures(modules) == {
        "larql_raises": "ImportError: libgomp.so.1: not found",
        "larql_absent": "ModuleNotFoundError: No module named 'larql_absent'",
        "larql_dies": "importing it ends the process (status 132)",
    }


def test_a_module_that_cannot_be_imported_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from larql.cli.main import main

    monkeypatch.setattr(doctor, "_NEEDED", {"no-such-thing": "no_such_thing"})
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["no-such-thing"] == "missing"
    assert report["findings"][0]["state"] == "broken"


def test_a_version_outside_the_tested_range_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_NEEDED", {"numpy": "numpy"})
    monkeypatch.setattr(installation, "tested_ranges", lambda: {"numpy": ">=1.0,<1.1"})
    findings: list[doctor.Finding] = []
    doctor._versions(findings)
    assert [(f.state, f.what) for f in findings] == [("note", "numpy")]
    assert ">=1.0,<1.1" in findings[0].found


@pytest.mark.parametrize(
    ("found", "wanted", "holds"),
    [
        ("0.68.1", ">=0.61,<0.69", True),
        ("0.69.0", ">=0.61,<0.69", False),
        ("0.69", ">=0.61,<0.69", False),
        ("0.60.9", ">=0.61,<0.69", False),
        ("0.61", ">=0.61,<0.69", True),
        ("2.0.1rc1", ">=2.0", True),
        ("13.9", ">=13", True),
        ("1", "!=2", True),
    ],
)
def test_version_ranges(found: str, wanted: str, holds: bool) -> None:
    assert installation.within(found, wanted) is holds


def test_the_declared_ranges_are_read() -> None:
    ranges = installation.tested_ranges()
    assert ranges["numba"].startswith(">=") or "<" in ranges["numba"]
    assert "pytest" not in ranges


def test_the_report_needs_no_proc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_text", lambda path: None)
    facts = doctor._system([])
    assert facts["cpu"] is None
    assert facts["memory_bytes"] is None
    assert sys.platform in ("linux", "darwin")
