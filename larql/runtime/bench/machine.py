"""What the machine is, and how busy it is with other work (Linux, from ``/proc`` and ``/sys``)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BUSY", "Clock", "Load", "cpu_model", "largest_cache", "load_average"]

BUSY = 0.5  # cores kept busy by others, from which on a measurement is called disturbed

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Load:
    """Work on the machine in a stretch of time, in cores kept busy on average.

    Attributes
    ----------
    own : float
        By the processes of the measurement.
    others : float
        By everything else.
    stolen : float
        Taken by the host of a virtual machine.
    """

    own: float
    others: float
    stolen: float


class Clock:
    """Counts the processor time of the machine and of some processes from now on.

    Parameters
    ----------
    pids : iterable of int
        Processes of the measurement beside this one; they must outlive the clock.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._began = self._now()

    def load(self) -> Load:
        """Return the load since the clock was made."""
        then, now = self._began, self._now()
        elapsed = max(now[0] - then[0], 1e-9)
        busy, stolen, own = ((b - a) / elapsed for a, b in zip(then[1:], now[1:], strict=True))
        return Load(own, max(0.0, busy - own), stolen)

    def _now(self) -> tuple[float, float, float, float]:
        busy, stolen = _machine_seconds()
        own = sum(_process_seconds(pid) for pid in (os.getpid(), *self._pids))
        return time.perf_counter(), busy, stolen, own


def _machine_seconds() -> tuple[float, float]:
    """Return seconds of all cores at work, and stolen ones, since the machine started."""
    # cpu user nice system idle iowait irq softirq steal ... (proc(5))
    with Path("/proc/stat").open(encoding="ascii") as lines:
        ticks = [int(field) for field in lines.readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = ticks
    rate = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / rate, steal / rate


def _process_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads; 0 where it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    # The second field, the name in parentheses, may hold anything.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_model() -> str | None:
    """Return the processor's name; None where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None


def largest_cache() -> int | None:
    """Return the bytes of the largest cache of the first core; None where the system is silent."""
    sizes = []
    for path in _CPU.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes, default=None)


def load_average() -> float | None:
    """Return the system's load average over the last minute; None where it has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
