"""larql as an arm."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from larql.format.container import open_container
from larql.runtime.run import RunOptions, open_run
from larql.runtime.sampling import greedy

__all__ = ["Larql", "load"]


class Larql:
    """A prepared container and one session; see `larql.runtime.bench.arms.child.Engine`."""

    def __init__(self, container: Path, options: RunOptions, room: int) -> None:
        began = time.perf_counter()
        run = open_run(open_container(container), options)
        self._session = run.session(room)
        self.load_seconds = time.perf_counter() - began
        said = run.provenance((), room)
        kept = (
            "backend", "numerics", "activations", "kv", "threads", "max_format", "operand_reads",
            "operand_bytes", "prepare_seconds", "environment",
        )  # fmt: skip
        alike = Counter(region.cost for region in self._session.state.regions)
        self.facts: dict[str, object] = {
            **{name: said[name] for name in kept},
            "state": [
                {
                    "count": count,
                    "bytes_per_position": cost.per_position,
                    "window": cost.window,
                    "fixed_bytes": cost.fixed,
                }
                for cost, count in alike.items()
            ],
        }

    def prefill(self, ids: list[int]) -> int:
        """Start anew."""
        self._session.truncate(0)
        return greedy(self._session.step(ids))

    def step(self, token: int) -> int:
        """Advance by one."""
        return greedy(self._session.step((token,)))

    def rewind(self, length: int) -> bool:
        """Go back, where no windowed layer has dropped what it would need."""
        if not self._session.can_truncate(length):
            return False
        self._session.truncate(length)
        return True


def load(options: Mapping[str, object]) -> Larql:
    """Prepare ``container``.

    The other options are ``threads``, ``room``, ``activations``, ``kv`` and ``prefault``, and
    ``profile`` where one is asked for.
    """
    threads, room, prefault = options["threads"], options["room"], options["prefault"]
    profile = options.get("profile")
    assert isinstance(threads, int) and isinstance(room, int) and isinstance(prefault, bool)
    assert profile is None or isinstance(profile, str)
    run = RunOptions(
        threads=threads,
        activations=str(options["activations"]),
        kv=str(options["kv"]),
        prefault=prefault,
        profile=profile,
    )
    return Larql(Path(str(options["container"])), run, room)
