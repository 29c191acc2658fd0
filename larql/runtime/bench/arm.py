"""The parent's side of an arm: starting its process, asking it, ending it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from larql import errors
from larql.errors import LarqlError, PlatformError

__all__ = ["Arm", "ArmSpec", "Decoded", "Memory", "Prefilled"]

# What larql's own child refuses is refused here, in the same words.
_REFUSALS: Mapping[str, type[LarqlError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, LarqlError)
}
_MOST_SHOWN = 300  # characters of a child's last line


@dataclass(frozen=True)
class ArmSpec:
    """How to start an arm.

    Attributes
    ----------
    name : str
        What it is called in reports.
    command : tuple of str
        Program and arguments.
    environment : mapping
        Variables to set for it.
    advice : str
        What to do where it lacks a module.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True)
class Memory:
    """What a process occupies, in bytes.

    Attributes
    ----------
    resident : int
        Now (VmRSS).
    peak : int
        At most so far (VmHWM).
    mapped : int
        Part of ``resident`` that is mapped from files and can be dropped (RssFile).
    """

    resident: int
    peak: int
    mapped: int


@dataclass(frozen=True)
class Prefilled:
    """One prefill: seconds up to the choice of the next token, and that token."""

    seconds: float
    token: int


@dataclass(frozen=True)
class Decoded:
    """Some greedy steps: seconds for all, and the tokens that they advanced by."""

    seconds: float
    tokens: tuple[int, ...]


class Arm:
    """A running child process that holds a model, or a buffer to read; ``with`` ends it.

    Parameters
    ----------
    spec : ArmSpec

    Attributes
    ----------
    start_seconds : float
        From the start of the process until it was ready.
    load_seconds : float
        The part of it that loaded the model, imports not counted.
    facts : mapping
        What the child says of itself.

    Raises
    ------
    PlatformError
        If the child cannot be started, lacks a module, fails or ends; so do all methods.
    LarqlError
        Whatever larql's own child refused.
    """

    def __init__(self, spec: ArmSpec) -> None:
        self.spec = spec
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the arm
        began = time.perf_counter()
        try:
            # A session of its own, so that Ctrl-C reaches the parent alone, which ends the rest.
            self._process = subprocess.Popen(
                spec.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **spec.environment},
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise PlatformError(
                f"{spec.name}: {spec.command[0]} cannot be started: {error.strerror}"
            ) from None
        try:
            ready = self._answer().inner("ready")
            self.start_seconds = time.perf_counter() - began
            self.load_seconds = ready.seconds("load_seconds", least=0.0)
            self.facts = ready.inner("facts").document
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def prefill(self, ids: Sequence[int]) -> Prefilled:
        """Run a prompt from nothing."""
        reply = self._ask({"do": "prefill", "ids": list(ids)})
        return Prefilled(reply.seconds("seconds"), reply.whole("token"))

    def decode(self, ids: Sequence[int], steps: int) -> Decoded:
        """Run greedy steps after a prompt whose own time is not counted."""
        reply = self._ask({"do": "decode", "ids": list(ids), "steps": steps})
        return Decoded(reply.seconds("seconds"), reply.wholes("tokens", steps))

    def read(self) -> float:
        """Read memory, in an arm that does that; return bytes per second."""
        reply = self._ask({"do": "read"})
        return reply.whole("bytes") / reply.seconds("seconds")

    def memory(self) -> Memory:
        """Return what the process occupies now."""
        reply = self._ask({"do": "memory"})
        return Memory(
            reply.whole("resident_bytes"), reply.whole("peak_bytes"), reply.whole("file_bytes")
        )

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._log.close()

    def _ask(self, command: Mapping[str, object]) -> _Reply:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> _Reply:
        stdout = self._process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._ended()
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        reply = _Reply(document, self.spec.name)
        if "error" in reply.document:
            raise self._refused(reply.inner("error").document)
        return reply

    def _refused(self, error: Mapping[str, object]) -> LarqlError:
        name, message = self.spec.name, " ".join(str(error.get("message")).split())
        if error.get("missing_module") is not None and self.spec.advice:
            return PlatformError(f"{name}: {message}; {self.spec.advice}")
        kind = str(error.get("kind"))
        if kind in _REFUSALS:
            return _REFUSALS[kind](message)
        return PlatformError(
            f"{name}: {kind}: {message}; leave it out, or mend that; {self._said()}"
        )

    def _ended(self) -> PlatformError:
        self._process.wait()
        return PlatformError(
            f"{self.spec.name}: its process ended with status {self._process.returncode}; "
            f"{self._said()}"
        )

    def _said(self) -> str:
        """Return the last line that the child wrote to standard error."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        said = next((line for line in reversed(lines) if line), None)
        return "it wrote nothing" if said is None else f"its last line: {said[:_MOST_SHOWN]}"


class _Reply:
    """An answer of a child, whose values are checked as they are taken."""

    def __init__(self, document: object, arm: str) -> None:
        self._arm = arm
        if not isinstance(document, dict):
            raise self._nonsense("an object", document)
        self.document: Mapping[str, object] = document

    def _nonsense(self, expected: str, found: object) -> PlatformError:
        return PlatformError(
            f"{self._arm}: its process answered {str(found)[:_MOST_SHOWN]!r}, expected {expected}; "
            f"is it the program that it should be?"
        )

    def inner(self, key: str) -> _Reply:
        return _Reply(self.document.get(key), self._arm)

    def seconds(self, key: str, least: float = 1e-9) -> float:
        value = self.document.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least:
            raise self._nonsense(f"{key}, a positive number", self.document)
        return float(value)

    def whole(self, key: str) -> int:
        value = self.document.get(key)
        if type(value) is not int or value < 0:
            raise self._nonsense(f"{key}, a whole number", self.document)
        return value

    def wholes(self, key: str, count: int) -> tuple[int, ...]:
        value = self.document.get(key)
        if not isinstance(value, list) or len(value) != count or {type(v) for v in value} - {int}:
            raise self._nonsense(f"{key}, {count} whole numbers", self.document)
        return tuple(value)
