"""Backends by name; production and its kernels are imported only when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from larql.errors import PlatformError, UnsupportedRefusal, UsageError
from larql.provenance import format_cap
from larql.runtime.backends.base import Backend

if TYPE_CHECKING:
    from larql.runtime.backends.production.arithmetic import Arithmetic

__all__ = [
    "ACTIVATIONS",
    "BACKENDS",
    "KV_FORMS",
    "make_backend",
    "production_arithmetic",
    "settle_kernels",
]

BACKENDS = ("production", "reference")
ACTIVATIONS = ("f32", "q8")
KV_FORMS = ("f32", "f16")


def make_backend(
    name: str, threads: int | None = None, activations: str = "f32", kv: str = "f32"
) -> Backend:
    """Return a fresh backend.

    Parameters
    ----------
    name : str
        One of ``BACKENDS``.
    threads : int or None
        Threads for the production kernels, one per core by default. The reference backend uses
        NumPy's own.
    activations : str
        One of ``ACTIVATIONS``.
    kv : str
        One of ``KV_FORMS``. ``LARQL_CPU_MAX_FORMAT`` does not concern it: that caps operands.

    Raises
    ------
    UsageError
        If there is no such backend, activation policy or form of keys and values, or
        ``LARQL_CPU_MAX_FORMAT`` forbids the policy.
    UnsupportedRefusal
        If the backend does not have the policy.
    PlatformError
        If the kernels cannot run on this machine.
    """
    if activations not in ACTIVATIONS:
        raise UsageError(f"--activations {activations!r}: expected one of {', '.join(ACTIVATIONS)}")
    if kv not in KV_FORMS:
        raise UsageError(f"--kv {kv!r}: expected one of {', '.join(KV_FORMS)}")
    cap = format_cap()
    if activations == "q8" and cap in ("f16", "f32"):
        raise UsageError(
            f"--activations q8: LARQL_CPU_MAX_FORMAT={cap} forbids so compressed a form; unset "
            f"it, or leave the option out"
        )
    if name == "reference":
        if activations != "f32":
            raise UnsupportedRefusal(
                f"--activations {activations}: the reference backend executes f32 activations only"
            )
        from larql.runtime.backends.reference.backend import ReferenceBackend

        return ReferenceBackend(kv)
    if name == "production":
        return _production(threads, activations, kv)
    raise UsageError(f"--backend {name!r}: expected one of {', '.join(BACKENDS)}")


def production_arithmetic(threads: int | None = None) -> Arithmetic:
    """Return fresh arithmetic of the production backend, exact in its activations.

    Raises
    ------
    PlatformError
        If the kernels cannot run on this machine.
    """
    settle_kernels(threads)
    from larql.runtime.backends.production.arithmetic import Arithmetic

    return Arithmetic("f32")


def _production(threads: int | None, activations: str, kv: str) -> Backend:
    count = settle_kernels(threads)
    from larql.runtime.backends.production.backend import ProductionBackend

    return ProductionBackend(count, activations, kv)


def settle_kernels(threads: int | None) -> int:
    """Settle the environment of the kernels, before anything imports them.

    Returns
    -------
    int
        The number of threads.

    Raises
    ------
    PlatformError
        If the kernels cannot run on this machine.
    """
    from larql.kernels import setup

    try:
        # Numba reads its environment when it is imported, which the next imports do.
        chosen = setup.configure(threads)
    except (ValueError, RuntimeError) as error:
        raise PlatformError(f"the production kernels cannot run: {error}") from None
    from larql.kernels.threads import set_threads

    count = chosen.threads if threads is None else threads
    set_threads(count)
    return count
