"""The child process of an arm: loads a model and answers commands, one JSON object a line.

Standard library only; see the package. Started with the name of an engine's module and a JSON
object of options, it first writes ``{"ready": {...}}``, or ``{"error": {...}}`` and ends. Then it
answers each line of standard input:

====================================================  =========================================
``{"do": "prefill", "ids": [...]}``                   ``{"seconds": s, "token": t}``
``{"do": "decode", "ids": [...], "steps": n}``        ``{"seconds": s, "tokens": [t1 ... tn]}``
``{"do": "memory"}``                                  ``{"resident_bytes": b, ...}``
====================================================  =========================================

Prefill starts from nothing and is timed up to the choice of the next token. Decode is timed over n
steps that each advance by the token chosen last and choose the next; the positions ``ids`` before
them are not timed, and neither is the choice of the first token, t1, from their logits. A command
that fails is answered with ``{"error": {"kind": ..., "message": ...}}``. The end of standard input
ends the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

__all__ = ["Engine", "answer", "memory"]

Json = Mapping[str, object]
Commands = Mapping[str, Callable[[Json], Json]]


class Engine(Protocol):
    """A loaded model that holds one stream of tokens.

    Attributes
    ----------
    load_seconds : float
        How long loading took, imports not counted.
    facts : mapping
        What ran: versions, settings.
    """

    load_seconds: float
    facts: Json

    def prefill(self, ids: list[int]) -> int:
        """Forget everything, advance by ids, compute the last logits, return the largest's id."""

    def step(self, token: int) -> int:
        """Advance by one token and return the id of the largest logit."""

    def rewind(self, length: int) -> bool:
        """Go back to ``length`` positions; False where that would not give the same state."""


class _Model:
    """The commands on an engine; remembers which ids it holds, so as not to run them twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: list[int] = []
        self._next = 0

    def prefill(self, command: Json) -> Json:
        ids = _ids(command)
        began = time.perf_counter()
        token = self._engine.prefill(ids)
        seconds = time.perf_counter() - began
        self._held, self._next = ids, token
        return {"seconds": seconds, "token": token}

    def decode(self, command: Json) -> Json:
        ids, steps = _ids(command), command["steps"]
        assert isinstance(steps, int)
        if self._held != ids or not self._engine.rewind(len(ids)):
            self.prefill({"ids": ids})
        token = self._next
        tokens = []
        began = time.perf_counter()
        for _ in range(steps):
            tokens.append(token)
            token = self._engine.step(token)
        return {"seconds": time.perf_counter() - began, "tokens": tokens}


def _ids(command: Json) -> list[int]:
    ids = command["ids"]
    assert isinstance(ids, list)
    return ids


def memory(command: Json) -> Json:
    """Return what this process occupies, from ``/proc/self/status`` (Linux).

    Returns
    -------
    mapping
        ``resident_bytes`` (VmRSS), ``peak_bytes`` (VmHWM), and of the resident ones those that are
        mapped from files (RssFile), which the system can drop and read again.
    """
    names = {"VmRSS": "resident_bytes", "VmHWM": "peak_bytes", "RssFile": "file_bytes"}
    found: dict[str, object] = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[names[name]] = int(value.split()[0]) * 1024
    return found


def answer(make: Callable[[], tuple[Json, Commands]]) -> int:
    """Make something, say that it is ready, and answer commands until standard input ends.

    Parameters
    ----------
    make : function
        Returns what to say, and the commands by name.

    Returns
    -------
    int
        Exit status: 1 where nothing was made.
    """
    # Libraries print; what they print must not be taken for an answer.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        ready, commands = make()
    except Exception as error:  # noqa: BLE001 -- whatever a foreign engine raises is reported
        _write(replies, {"error": _described(error)})
        return 1
    _write(replies, {"ready": ready})
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply = commands[command["do"]](command)
        except Exception as error:  # noqa: BLE001
            reply = {"error": _described(error)}
        _write(replies, reply)
    return 0


def _write(replies: TextIO, document: Json) -> None:
    replies.write(json.dumps(document, allow_nan=False) + "\n")
    replies.flush()


def _described(error: Exception) -> Json:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return {"kind": type(error).__name__, "message": str(error), "missing_module": missing}


def _load(module: str, options: Json) -> tuple[Json, Commands]:
    engine: Engine = importlib.import_module(module).load(options)
    model = _Model(engine)
    ready = {"load_seconds": engine.load_seconds, "facts": dict(engine.facts)}
    return ready, {"prefill": model.prefill, "decode": model.decode, "memory": memory}


if __name__ == "__main__":
    sys.exit(answer(lambda: _load(sys.argv[1], json.loads(sys.argv[2]))))
