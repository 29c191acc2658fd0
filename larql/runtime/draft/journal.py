"""What a long measurement has done so far, so that it can be resumed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from larql.errors import UsageError
from larql.format.atomic import explain_os_error

__all__ = ["Journal"]


class Journal:
    """Results by name, each written down as soon as it is there.

    The file stands beside the output and is removed when that is written. Its first line says
    what was measured; another measurement does not resume it. A line that a killed run has left
    unfinished is dropped.

    Parameters
    ----------
    output : Path
        The file that the measurement will write.
    identity : mapping
        What the results hang on, as JSON gives it back.
    resume : bool
        Take over what stands in the file.

    Raises
    ------
    UsageError
        If there is a journal and ``resume`` is not given, or it is of another measurement.
    OutputError
        If it cannot be written.
    """

    def __init__(self, output: Path, identity: Mapping[str, object], *, resume: bool) -> None:
        self.path = output.with_name(f"{output.name}.partial")
        self.done: dict[str, object] = {}
        first = json.dumps(identity, sort_keys=True).encode()
        try:
            kept = [first]
            if self.path.exists():
                if not resume:
                    raise UsageError(
                        f"{self.path}: a measurement was interrupted; give --resume to go on with "
                        f"it, or remove the file"
                    )
                kept = self._taken_over(first)
            self._file: BinaryIO = self.path.open("wb")
            self._file.write(b"".join(line + b"\n" for line in kept))
            self._sync()
        except OSError as error:
            raise explain_os_error(error, self.path) from None

    def _taken_over(self, first: bytes) -> list[bytes]:
        lines = self.path.read_bytes().split(b"\n")
        whole = lines[:-1]  # what follows the last newline was not finished
        if not whole or whole[0] != first:
            raise UsageError(
                f"{self.path}: was begun for something else (model, prompts or options); resume "
                f"with the same, or remove the file"
            )
        for number, line in enumerate(whole[1:], start=2):
            try:
                name, value = json.loads(line)
                self.done[str(name)] = value
            except (ValueError, TypeError):
                raise UsageError(
                    f"{self.path}: line {number} is no result; remove the file to begin again"
                ) from None
        return whole

    def add(self, name: str, value: object) -> None:
        """Write a result down, a JSON value without NaN."""
        line = json.dumps([name, value], allow_nan=False).encode() + b"\n"
        try:
            self._file.write(line)
            self._sync()
        except OSError as error:
            raise explain_os_error(error, self.path) from None
        self.done[name] = json.loads(line)[1]

    def remove(self) -> None:
        """Forget it all: the output is written."""
        self._file.close()
        self.path.unlink()

    def close(self) -> None:
        """Leave the file where it is, to be resumed."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
