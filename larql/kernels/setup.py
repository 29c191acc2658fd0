"""Choose instruction set, kernel cache and thread limit before numba is imported.

Numba reads its environment once, at import, and its own cache key knows neither of edited helper
modules nor of globals read inside an intrinsic. So everything that decides which machine code runs
is settled here, from the standard library alone, and the cache directory carries a hash of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

__all__ = [
    "LEVELS",
    "MAX_THREADS",
    "KernelCacheWarning",
    "Level",
    "Setup",
    "configure",
    "current",
    "features",
    "host_level",
    "usable_cores",
]

Level = Literal["avx512", "avx2", "portable"]
LEVELS: tuple[Level, ...] = ("avx512", "avx2", "portable")
MAX_THREADS = 64

# Flags as /proc/cpuinfo spells them. A level is used only when the host has all of them.
_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_vnni"})
_NEEDS: Mapping[str, frozenset[str]] = {
    "avx512": _AVX2 | _AVX512,
    "avx2": _AVX2,
    "portable": frozenset(),
}
# The name alone leaves the host's features on, so both are always set.
_TARGETS: Mapping[str, tuple[str, str]] = {
    "avx512": ("x86-64-v4", "+avx512vnni"),
    "avx2": ("x86-64-v3", "+f16c"),
    "portable": ("x86-64", "+sse2"),
}
_ELSEWHERE = ("generic", "")


class KernelCacheWarning(UserWarning):
    """The compiled kernels cannot be kept: every process compiles them again."""


@dataclass(frozen=True)
class Setup:
    """What one process runs with.

    Attributes
    ----------
    level : {'avx512', 'avx2', 'portable'}
        Instruction-set level of every kernel.
    cpu_name, cpu_features : str
        LLVM's names for that level.
    cache_directory : Path or None
        Where compiled kernels are kept; None when they cannot be.
    threads : int
        Thread count until `larql.kernels.threads.set_threads` is called.
    """

    level: Level
    cpu_name: str
    cpu_features: str
    cache_directory: Path | None
    threads: int

    def environment(self) -> dict[str, str]:
        """Return the variables that numba reads at import."""
        return {
            "NUMBA_CPU_NAME": self.cpu_name,
            "NUMBA_CPU_FEATURES": self.cpu_features,
        }


_CHOSEN: list[Setup] = []  # at most one: numba reads its environment once per process


def configure(threads: int | None = None, cache_root: Path | None = None) -> Setup:
    """Settle how kernels are compiled in this process; call before the first numba import.

    Parameters
    ----------
    threads : int or None
        1..64; None takes the number of usable cores. May be changed later.
    cache_root : Path or None
        Directory below which compiled kernels are kept; None takes ``$LARQL_CACHE_DIR/kernels``
        or ``~/.cache/larql/kernels``.

    Returns
    -------
    Setup
        The first call decides; a later one returns what was decided.

    Raises
    ------
    ValueError
        When `threads` is out of range or ``LARQL_ISA`` names no level or one the host lacks.
    RuntimeError
        When numba was imported before and runs with other settings.

    Warns
    -----
    KernelCacheWarning
        When the cache directory cannot be written.
    """
    count = usable_cores() if threads is None else threads
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"threads must be 1..{MAX_THREADS}, found {count}")
    if _CHOSEN:
        return _CHOSEN[0]
    level = _level()
    name, flags = _TARGETS[level] if _is_x86() else _ELSEWHERE
    setup = Setup(level, name, flags, _cache_directory(cache_root, level), count)
    environment = setup.environment()
    if "numba" in sys.modules:
        differing = [key for key, value in environment.items() if os.environ.get(key) != value]
        if differing:
            raise RuntimeError(
                "numba was imported before larql.kernels.setup.configure() could set "
                + ", ".join(differing)
                + "; import larql's runtime before numba"
            )
    os.environ.update(environment)
    _CHOSEN.append(setup)
    return setup


def current() -> Setup:
    """Return the setup of this process, settling the defaults if nobody has."""
    return _CHOSEN[0] if _CHOSEN else configure()


def host_level() -> Level:
    """Return the widest level that this machine can run."""
    flags = _host_flags()
    for level in LEVELS:
        if _NEEDS[level] <= flags:
            return level
    return "portable"


def features() -> dict[str, str | int | None]:
    """Report what the kernels run on, without importing numba."""
    setup = current()
    return {
        "isa": setup.level,
        "isa_host": host_level(),
        "isa_forced": os.environ.get("LARQL_ISA"),
        "cpu_name": setup.cpu_name,
        "cpu_features": setup.cpu_features,
        "threading_layer": "pool",
        "threads": setup.threads,
        "cores": usable_cores(),
        "kernel_cache": None if setup.cache_directory is None else str(setup.cache_directory),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "numpy": _version("numpy"),
        "machine": platform.machine(),
    }


def _level() -> Level:
    forced = os.environ.get("LARQL_ISA")
    if not forced:
        return host_level()
    if forced not in LEVELS:
        raise ValueError(f"LARQL_ISA must be one of {', '.join(LEVELS)}, found {forced!r}")
    missing = _NEEDS[forced] - _host_flags()
    if missing:
        raise ValueError(
            f"LARQL_ISA={forced} needs processor features this machine lacks: "
            + ", ".join(sorted(missing))
        )
    return forced


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


@lru_cache(maxsize=1)
def _host_flags() -> frozenset[str]:
    if not _is_x86():
        return frozenset()
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def usable_cores() -> int:
    """Return how many cores this process may use, at most 64."""
    return max(1, min(MAX_THREADS, len(os.sched_getaffinity(0))))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache_key(level: str) -> str:
    """Hash everything that decides machine code: sources, compiler versions, level."""
    found = hashlib.sha256()
    for part in (level, _version("numba"), _version("llvmlite"), platform.python_version()):
        found.update(f"{part}\0".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(f"{path.name}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:24]


def _user_root() -> Path | None:
    """Return where kernels are kept unless told otherwise; None for a user without a home."""
    given = os.environ.get("LARQL_CACHE_DIR")
    if given:
        return Path(given) / "kernels"
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "larql" / "kernels"
    except RuntimeError:
        return None


def _cache_directory(root: Path | None, level: str) -> Path | None:
    root = _user_root() if root is None else root
    if root is None:
        warnings.warn(
            "compiled kernels cannot be kept (the user has no home directory): this and every "
            "later run compiles them again; set LARQL_CACHE_DIR to a writable directory",
            KernelCacheWarning,
            stacklevel=3,
        )
        return None
    directory = root.absolute() / f"{level}-{_cache_key(level)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        with contextlib.suppress(OSError):
            os.utime(directory)  # lets `larql cache` tell used directories from left-over ones
    except OSError as error:
        warnings.warn(
            f"compiled kernels cannot be kept in {directory} ({error.strerror}): this and every "
            "later run compiles them again; set LARQL_CACHE_DIR to a writable directory",
            KernelCacheWarning,
            stacklevel=3,
        )
        return None
    return directory
