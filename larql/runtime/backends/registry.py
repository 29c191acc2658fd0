"""Backends by name; production and its kernels are imported only when they are asked for."""

from __future__ import annotations

from larql.errors import UsageError
from larql.runtime.backends.base import Backend

__all__ = ["BACKENDS", "make_backend"]

BACKENDS = ("production", "reference")


def make_backend(name: str, threads: int | None = None) -> Backend:
    """Return a fresh backend.

    Parameters
    ----------
    name : str
        One of ``BACKENDS``.
    threads : int or None
        Threads for the production kernels, one per core by default. The reference backend uses
        NumPy's own.

    Raises
    ------
    UsageError
        If there is no such backend.
    PlatformError
        If the kernels cannot run on this machine.
    """
    if name == "reference":
        from larql.runtime.backends.reference import ReferenceBackend

        return ReferenceBackend()
    if name == "production":
        from larql.runtime.backends.production import production_backend

        return production_backend(threads)
    raise UsageError(f"--backend {name!r}: expected one of {', '.join(BACKENDS)}")
