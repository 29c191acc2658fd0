"""The child process that measures how fast this machine reads memory."""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from larql.kernels import setup
from larql.runtime.bench.arms.child import Commands, Json, answer, memory

__all__: list[str] = []

_PASSES = 5


def _make(threads: int, nbytes: int) -> tuple[Json, Commands]:
    setup.configure(threads)
    from larql.kernels.bandwidth import read_through
    from larql.kernels.threads import set_threads

    set_threads(threads)
    buffer = np.ones(nbytes, np.uint8)

    def read(command: Json) -> Json:
        seconds = []
        for _ in range(_PASSES):
            began = time.perf_counter()
            read_through(buffer)
            seconds.append(time.perf_counter() - began)
        return {"bytes": nbytes, "seconds": min(seconds)}

    facts = {"threads": threads, "buffer_bytes": nbytes, "passes": _PASSES}
    return {"load_seconds": 0.0, "facts": facts}, {"read": read, "memory": memory}


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    sys.exit(answer(lambda: _make(options["threads"], options["bytes"])))
