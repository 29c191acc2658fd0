"""What LLVM makes of every kernel for arm64: read as assembly, never run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from larql.kernels.encodings import BLOCKS
from larql.kernels.integers import INTEGERS, alike
from larql.kernels.interleaved import INTERLEAVED
from larql.kernels.pool import _FUTEX_CALL
from larql.kernels.unit_slab import has_units

pytestmark = pytest.mark.slow(55)
UNITED = [name for name in INTERLEAVED if has_units(name)]
TRIPLE = "aarch64-unknown-linux-gnu"
REPOSITORY = Path(__file__).parents[2]
EMIT = Path(__file__).with_name("emit.py")

# What numba puts around a kernel that Python calls, and the two functions of the pool.
_WRAPPER = re.compile(r"_?Py_?[A-Z]\w*|numba_gil_(?:ensure|release)|NRT_\w+")
_POOL = {
    "pool._work": {"syscall"},
    "pool._run": {"syscall", "sched_yield"},
    "pool._wake": {"syscall"},
}
# Lanes of one instruction that multiplies and adds with a single rounding.
_FUSED = {
    r"fml[as]\s+v\d+\.4s": 4,
    r"fml[as]\s+v\d+\.2[sd]": 2,
    r"fn?m(?:add|sub)\s+[sd]\d+": 1,
}
# Estimates and minima that treat NaN and zeros otherwise than the definition of a kernel.
_INEXACT = re.compile(
    r"^\s+(frecp\w+|frsqrt\w+|fmaxnm\w*|fminnm\w*|fmax\w*|fmin\w*)\s", re.MULTILINE
)

Kernel = Mapping[str, Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.mktemp("arm64")
    done = subprocess.run(
        [sys.executable, str(EMIT), str(REPOSITORY), TRIPLE],
        env={**os.environ, "LARQL_ISA": "portable", "LARQL_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def instructions(kernel: Kernel) -> set[str]:
    return set(re.findall(r"^\s+([a-z]\w*)", kernel["assembly"], re.MULTILINE))


def fused_lanes(kernel: Kernel) -> int:
    code = kernel["assembly"]
    return sum(
        lanes * len(re.findall(rf"^\s+{shape}", code, re.MULTILINE))
        for shape, lanes in _FUSED.items()
    )


def foreign_symbols(kernel: Kernel) -> set[str]:
    """Return the symbols that the code calls or refers to and does not define."""
    code = kernel["assembly"]
    defined = set(re.findall(r"^([\w.$]+):|\.(?:comm|set)\s+([\w.$]+)", code, re.MULTILINE))
    named = set(re.findall(r"^\s+bl?\s+([A-Za-z_][\w.$]*)\s*$", code, re.MULTILINE))
    named |= set(re.findall(r":\w+:([A-Za-z_][\w.$]*)", code))
    return named - {name for names in defined for name in names}


def test_every_kernel_is_emitted_with_every_encoding(report: dict[str, Any]) -> None:
    assert report["level"] == "portable"
    assert report["missing"] == []
    emitted = {
        (k["name"], k["types"].split(",")[1]) for k in report["kernels"] if "(" in k["types"]
    }
    for encoding in BLOCKS.keys() - INTERLEAVED.keys():
        assert ("product._expand_row", encoding) in emitted
        assert has_units(encoding) or ("product._coded_rows", encoding) in emitted
    for encoding in INTEGERS:
        assert {("product_q8._rows", encoding), ("product_q8._unpack", encoding)} <= emitted
    assert {("product_q8._panel", alike("portable", encoding)) for encoding in INTEGERS} <= emitted
    for encoding, form in INTERLEAVED.items():
        assert ("slab_product._expand", encoding) in emitted
        if has_units(encoding):
            for name in ("_one_of_packed", "_one_of_plain", "_spread_packed", "_spread_plain"):
                assert (f"unit_product.{name}", encoding) in emitted
        else:
            assert ("slab_product._floats", encoding) in emitted
        for name in ("_integers", "_unpack"):
            assert (f"integer_slab_product.{name}", encoding) in emitted
        assert ("integer_slab_product._many", alike("portable", form.source)) in emitted
    # each encoding has code of its own: none of them stands for another
    for name, least in (
        ("product._coded_rows", len(BLOCKS) - len(INTERLEAVED) - len(UNITED)),
        ("product_q8._rows", len(INTEGERS)),
        ("unit_product._one_of_packed", len(UNITED)),
        ("unit_product._one_of_plain", len(UNITED)),
        ("unit_product._spread_packed", len(UNITED)),
        ("integer_slab_product._integers", len(INTERLEAVED)),
    ):
        codes = [k["assembly"] for k in report["kernels"] if k["name"] == name]
        assert len(set(codes)) == len(codes) >= least


def test_nothing_of_another_processor_is_left(report: dict[str, Any]) -> None:
    for kernel in report["kernels"]:
        assert kernel["foreign"] == [], kernel["name"]
        assert "#APP" not in kernel["assembly"], kernel["name"]
        # v8.0 only: no registers of variable length, no calls that look for atomic instructions
        assert re.search(r"\bz\d+\.[bhsd]|__aarch64_", kernel["assembly"]) is None, kernel["name"]


def test_kernels_call_no_library(report: dict[str, Any]) -> None:
    for kernel in report["kernels"]:
        outside = {s for s in foreign_symbols(kernel) if not _WRAPPER.fullmatch(s)}
        assert outside == _POOL.get(kernel["name"], set()), (kernel["name"], kernel["types"])


def test_products_and_sums_are_fused_where_llvm_was_told_and_nowhere_else(
    report: dict[str, Any],
) -> None:
    assert {"fmul", "fadd"} <= instructions({"assembly": report["plain"]})
    assert fused_lanes({"assembly": report["plain"]}) == 0
    for kernel in report["kernels"]:
        # equal pieces of code may have been merged, but a fused operation is never made up
        assert fused_lanes(kernel) <= kernel["fused"], kernel["name"]
        assert (fused_lanes(kernel) > 0) == (kernel["fused"] > 0), kernel["name"]
    for name in (
        "product._coded_rows", "product._panel", "product_q8._rows", "product_q8._panel",
        "slab_product._floats", "integer_slab_product._integers", "integer_slab_product._many",
        "unit_product._one_of_packed", "unit_product._one_of_plain", "unit_product._many",
    ):  # fmt: skip
        kernels = [k for k in report["kernels"] if k["name"] == name]
        assert kernels
        assert all("fmla" in instructions(kernel) for kernel in kernels), name
    for name in ("attention_block._block", "norm._rms", "activation._gate", "rope._rotate"):
        kernels = [k for k in report["kernels"] if k["name"] == name]
        assert kernels
        assert any(kernel["fused"] for kernel in kernels), name


def test_no_instruction_rounds_otherwise_than_the_definition(report: dict[str, Any]) -> None:
    for kernel in report["kernels"]:
        assert _INEXACT.search(kernel["assembly"]) is None, kernel["name"]


def test_the_pool_waits_by_the_system_call_of_arm64(report: dict[str, Any]) -> None:
    assert _FUTEX_CALL["aarch64"] == 98  # asm-generic/unistd.h: __NR_futex
    for kernel in report["kernels"]:
        if kernel["name"] in ("pool._work", "pool._run"):
            assert {"ldaxr", "stlxr", "ldar"} <= instructions(kernel), kernel["name"]
