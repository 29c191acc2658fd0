"""Compiled kernels on disk.

Numba keeps one index of all signatures of a function, which processes that fill it at once can
leave pointing at another signature's code. Here each function and signature has a file of its own,
named after both, written whole and renamed into place, and begun with a hash of its content: what
does not match it is removed and compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

from larql.kernels import setup

setup.current()

from numba.core.caching import _Cache  # noqa: E402  (the line above settles its environment)
from numba.core.compiler import CompileResult  # noqa: E402
from numba.core.serialize import dumps  # noqa: E402

_RESULT: Any = CompileResult
_dumps: Any = dumps

__all__ = ["KernelCache"]

_DIGEST_BYTES = 32


class KernelCache(_Cache):
    """The cache of one function, as numba's dispatchers use one.

    Parameters
    ----------
    function : function
        As written in Python.
    directory : Path
        Already specific to kernel sources, compiler versions and instruction-set level.
    """

    def __init__(self, function: Any, directory: Path) -> None:
        self._directory = directory
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        code = function.__code__
        self._stamp = repr((function.__module__, code.co_code, code.co_consts, code.co_names))

    @property
    def cache_path(self) -> str:
        """Return the directory."""
        return str(self._directory)

    def path(self, signature: Any) -> Path:
        """Return the file of one signature."""
        key = hashlib.sha256(f"{signature!r}\0{self._stamp}".encode()).hexdigest()[:24]
        return self._directory / f"{self._name}-{key}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function, or None where there is none that is whole."""
        target_context.refresh()
        path = self.path(sig)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == digest:
            with contextlib.suppress(pickle.UnpicklingError, EOFError, ImportError, AttributeError):
                return _RESULT._rebuild(target_context, *pickle.loads(payload))
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled function; a full or vanished disk costs the next run its time."""
        if data.library.has_dynamic_globals:
            return
        payload: bytes = _dumps(data._reduce())
        path = self.path(sig)
        partial = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(hashlib.sha256(payload).digest() + payload)
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            warnings.warn(
                f"a compiled kernel cannot be kept in {path.parent} ({error.strerror}): later runs "
                "compile it again",
                setup.KernelCacheWarning,
                stacklevel=2,
            )

    def enable(self) -> None:
        """Do nothing: a cache is always on."""

    def disable(self) -> None:
        """Do nothing: a cache is always on."""

    def flush(self) -> None:
        """Remove all files of this function."""
        for path in self._directory.glob(f"{self._name}-*.kernel"):
            path.unlink(missing_ok=True)
