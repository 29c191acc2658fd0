"""The compiler's verdict on a checkpoint, from its headers and configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from larql.errors import CompileError, EncodingError, SourceError, UnsupportedRefusal, UsageError
from larql.format.closure import check_closure
from larql.format.graph import Component
from larql.format.progress import Progress
from larql.format.source.checkpoint import Checkpoint, open_checkpoint
from larql.format.source.compiler import Compiled, Judging, compile_checkpoint
from larql.format.source.config import ConfigReader, KeyVerdict
from larql.format.source.extract import planned_representations

__all__ = ["Headers", "Verdict", "headers_of", "judge"]


@dataclass(frozen=True)
class Headers:
    """A checkpoint of which at least the headers are on this machine.

    Attributes
    ----------
    path : Path
        What to open.
    revision : str or None
        Commit or version; None for a local path.
    fetched : int or None
        Bytes of weights that were fetched for it; None where the weights are here.
    place : Path or None
        Directory that was made for them, which a user has never heard of.
    notes : tuple of str
    """

    path: Path
    revision: str | None
    fetched: int | None
    place: Path | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Whether a checkpoint would be compiled, and what each of its parts came to.

    Attributes
    ----------
    problem : str or None
        Why not; None where it would be.
    family : str or None
        The family that judged it, if one did.
    format : str or None
        ``safetensors`` or ``gguf``; None where it could not be opened.
    components : tuple of Component
        What it computes, as far as the family came to describe it.
    keys : tuple of KeyVerdict
        What became of each configuration key; ``blocking`` where nobody judged it.
    tensors : int
        How many tensors the checkpoint has.
    nbytes : int
        Their size.
    left : mapping
        Tensors that would not be carried, and why.
    unread : tuple of str
        Tensors that nothing reads.
    notes : tuple of str
        What an extraction would tell.
    """

    problem: str | None
    family: str | None = None
    format: str | None = None
    components: tuple[Component, ...] = ()
    keys: tuple[KeyVerdict, ...] = ()
    tensors: int = 0
    nbytes: int = 0
    left: Mapping[str, str] | None = None
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def admissible(self) -> bool:
        """Whether an extraction would be written."""
        return self.problem is None


@contextmanager
def headers_of(name: str, progress: Progress) -> Iterator[Headers]:
    """Bring what a verdict needs to this machine: of a model on a hub, its headers alone.

    Parameters
    ----------
    name : str
        As :func:`~larql.format.source.locate.locate` takes it.
    progress : Progress

    Yields
    ------
    Headers
        Usable inside the ``with`` block.

    Raises
    ------
    UsageError
        If the name leads to a container.
    LarqlError
        As :func:`~larql.format.source.locate.locate` does.
    """
    from larql.format.source.locate import locate

    if name.startswith("hf://"):
        from larql.format.source.hub_headers import hub_headers
        from larql.format.source.hub_name import parse_hub_name

        with hub_headers(parse_hub_name(name), progress) as remote:
            yield Headers(remote.path, remote.revision, remote.nbytes, remote.place, remote.notes)
        return
    located = locate(name, progress=progress)
    if located.kind != "checkpoint":
        raise UsageError(f"{name}: is a container already; larql show describes it")
    yield Headers(located.path, located.revision, None, None, located.notes)


def judge(path: Path) -> Verdict:
    """Judge a checkpoint without reading a tensor.

    Parameters
    ----------
    path : Path
        What :func:`~larql.format.source.checkpoint.open_checkpoint` opens.

    Returns
    -------
    Verdict
        Also of a checkpoint that cannot be opened: that is the problem then.
    """
    try:
        with open_checkpoint(path) as checkpoint:
            return _judge(checkpoint)
    except (SourceError, UnsupportedRefusal) as error:
        return Verdict(problem=str(error))


def _judge(checkpoint: Checkpoint) -> Verdict:
    judging = Judging(headers_only=True)
    compiled: Compiled | None = None
    problem = None
    try:
        compiled = compile_checkpoint(checkpoint, judging)
        stored = planned_representations(compiled, None)
        for component in compiled.graph.components:
            for defect in check_closure(component, stored):
                raise CompileError(f"{checkpoint.root}: {defect.line()}")
    except (CompileError, SourceError, EncodingError, UnsupportedRefusal) as error:
        problem = str(error)
    components: tuple[Component, ...] = ()
    if judging.component is not None:
        components = (judging.component,)
    if compiled is not None:
        components = compiled.graph.components
    builder, reader = judging.builder, judging.reader
    described = builder is not None and judging.component is not None
    read = builder.bound() if builder else set()
    left = dict(builder.left) if builder else {}
    return Verdict(
        problem=problem,
        family=None if judging.family is None else judging.family.name,
        format=checkpoint.format,
        components=components,
        keys=() if reader is None else _keys(reader, problem, described),
        tensors=len(checkpoint.tensors),
        nbytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        left=left,
        unread=tuple(n for n in checkpoint.tensors if n not in read and n not in left)
        if described
        else (),
        notes=compiled.notes if compiled is not None else (),
    )


def _keys(reader: ConfigReader, problem: str | None, described: bool) -> tuple[KeyVerdict, ...]:
    """Return the verdicts; what judging did not come to is unreached, not blocking."""
    found = reader.verdicts()
    if described:
        return tuple(found)
    return tuple(
        KeyVerdict(v.key, "unreached")
        if v.verdict == "blocking" and f"`{v.key}`" not in (problem or "")
        else v
        for v in found
    )
