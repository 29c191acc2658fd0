"""The compiler's pages are given back, and are there again when it is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from larql.kernels import compiler

SCRIPT = """
import json, re, sys
from pathlib import Path
import numpy as np
from larql.kernels import activation, compiler, setup

def resident():
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef":
            inside = "libllvmlite" in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found

x = np.linspace(-3, 3, 50, dtype=np.float32)
def run(kind):
    out = np.empty_like(x)
    activation.activate(x, kind, out)
    return out.tobytes().hex()

report = {"silu": run("silu"), "before": resident()}
compiler.release()
report["after"] = resident()

report["again"] = run("silu")
report["running"] = resident()
report["relu"] = run("relu")
report["compiling"] = resident()
compiler.release()
report["end"] = resident()
opened = []
compiler.Path = lambda name: opened.append(name)
compiler.release()
report["opened"] = opened
print(json.dumps(report))
"""


def run(cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "LARQL_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_pages_go_and_come_back_with_the_same_results(tmp_path: Path) -> None:
    compiled, cached = run(tmp_path), run(tmp_path)
    for found in (compiled, cached):
        assert found["before"] > 40 << 20
        assert found["after"] < found["before"] / 4
        # compiled kernels run without the compiler, and it works again where one is missing
        assert found["running"] == found["after"]
        assert found["compiling"] > found["after"] + (1 << 20)
        assert found["end"] < found["before"] / 4
        assert found["again"] == found["silu"]
        assert found["opened"] == []  # nothing has been compiled since
    assert {k: compiled[k] for k in ("silu", "relu")} == {k: cached[k] for k in ("silu", "relu")}


def test_a_system_that_does_not_tell_what_is_mapped(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pathlib\nfrom larql.kernels import compiler\n"
            "compiler.Path = lambda name: pathlib.Path('/nowhere')\ncompiler.release()",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_compiler(number: signal.Signals) -> None:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(number, stop)
    reached = False
    try:
        with pytest.raises(KeyboardInterrupt), compiler.uninterrupted():
            signal.raise_signal(number)
            reached = True
        assert reached and signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_other_threads_compile_without_touching_signals() -> None:
    before = signal.getsignal(signal.SIGINT)

    def compile_there() -> object:
        with compiler.uninterrupted():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as other:
        assert other.submit(compile_there).result() is before
