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
from larql.format.source.builder import Builder
from larql.format.source.checkpoint import Checkpoint, open_checkpoint
from larql.format.source.compiler import Compiled, Judging, compile_checkpoint
from larql.format.source.config import ConfigReader, KeyVerdict
from larql.format.source.extract import planned_representations
from larql.format.source.problems import Problem, Problems

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
    problems : tuple of Problem
        Why not, all of it; empty where it would be.
    family : str or None
        The family that judged it, if one did.
    format : str or None
        ``safetensors`` or ``gguf``; None where it could not be opened.
    components : tuple of Component
        What it computes, with stand-ins for what was refused.
    keys : tuple of KeyVerdict
        What became of each configuration key, and of each that is missing.
    assumed : str or None
        A key whose stand-in decides which tensors there should be, so that no tensor was held
        against the configuration.
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

    problems: tuple[Problem, ...]
    family: str | None = None
    format: str | None = None
    components: tuple[Component, ...] = ()
    keys: tuple[KeyVerdict, ...] = ()
    assumed: str | None = None
    tensors: int = 0
    nbytes: int = 0
    left: Mapping[str, str] | None = None
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def admissible(self) -> bool:
        """Whether an extraction would be written."""
        return not self.problems


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
        return Verdict((Problem("file", str(path), str(error)),))


def _judge(checkpoint: Checkpoint) -> Verdict:
    judging = Judging(headers_only=True)
    problems, where = judging.problems, str(checkpoint.root)
    compiled: Compiled | None = None
    try:
        compiled = compile_checkpoint(checkpoint, judging)
    except (CompileError, SourceError, EncodingError, UnsupportedRefusal) as error:
        if not (isinstance(error, CompileError) and problems.found):
            problems.add(Problem("file", where, str(error)))
    if judging.builder is not None:
        _check_encodings(judging.builder, problems)
    if compiled is not None and not problems.found:
        stored = planned_representations(compiled, None)
        for component in compiled.graph.components:
            for defect in check_closure(component, stored):
                line = defect.line()
                problems.add(Problem("operation", line, f"{where}: {line}"))
    components: tuple[Component, ...] = ()
    if judging.component is not None:
        components = (judging.component,)
    if compiled is not None:
        components = compiled.graph.components
    builder, reader = judging.builder, judging.reader
    read, left = (set(), {}) if builder is None else (builder.asked, dict(builder.left))
    described = judging.component is not None and problems.assumed is None
    return Verdict(
        problems=tuple(problems.found),
        family=None if judging.family is None else judging.family.name,
        format=checkpoint.format,
        components=components,
        keys=() if reader is None else _keys(reader, problems),
        assumed=problems.assumed,
        tensors=len(checkpoint.tensors),
        nbytes=sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
        left=left,
        unread=tuple(n for n in checkpoint.tensors if n not in read and n not in left)
        if described
        else (),
        notes=() if builder is None else tuple(builder.notes),
    )


def _check_encodings(builder: Builder, problems: Problems) -> None:
    """Record every tensor that an operand needs and that this build does not decode."""
    needed = [binding.source for binding in builder.bindings.values()]
    needed += [
        source
        for bank in builder.banks.values()
        for piece in bank.pieces
        if piece.form != "values_and_scales"
        for source in piece.sources
    ]
    for source in needed:
        if source.known_encoding is None:
            try:
                _ = source.encoding
            except UnsupportedRefusal as error:
                problems.add(Problem("tensor", source.name, str(error)))


def _keys(reader: ConfigReader, problems: Problems) -> tuple[KeyVerdict, ...]:
    """Return the verdicts on keys that are there, and on those that are missing or unheard of."""
    found = {verdict.key: verdict for verdict in reader.verdicts()}
    for problem in problems.found:
        if problem.kind == "key":
            found[problem.name] = KeyVerdict(problem.name, "blocking")
    return tuple(found.values())
