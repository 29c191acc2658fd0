"""Container to checkpoint: the tensors as their maker named them, written back.

Streaming: what is in memory is some rows of a tensor, or one entry of a bank. What the index hashed
at extraction is hashed again, so that a tensor that is called exact is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from larql.errors import LarqlError
from larql.format.atomic import check_output, write_directory
from larql.format.container import Container
from larql.format.encoding import ENCODINGS
from larql.format.index import dump_json, load_json
from larql.format.moe.authority import Authority, fold
from larql.format.progress import Progress
from larql.format.rows import row_count
from larql.format.safetensors_header import contiguous_entries, serialize_header
from larql.format.segment import write_stream
from larql.format.source.extract import check_beside
from larql.format.source.operand_bytes import OperandBytes
from larql.format.source.recipes import Plan, Target, plan_reconstruction
from larql.format.tokenizer import SOURCE_CONFIG

__all__ = ["RECORD_NAME", "Reconstruction", "is_reconstruction", "reconstruct"]

RECORD_NAME = "reconstruction.json"
WEIGHTS_NAME = "model.safetensors"
_CHUNK = 4 << 20


@dataclass(frozen=True)
class Reconstruction:
    """What a reconstruction wrote.

    Attributes
    ----------
    path : Path
        The checkpoint directory.
    authority : Authority
        How near the tensors are to those of the checkpoint.
    recipes : mapping
        Recipe to number of tensors.
    nbytes : int
        Size of the tensors.
    approximate : tuple of str
        Tensors that were rounded on their way.
    left : mapping
        Tensors of the checkpoint that the container does not carry, and why.
    configuration : bool
        Whether ``config.json`` was carried, and is written.
    """

    path: Path
    authority: Authority
    recipes: Mapping[str, int]
    nbytes: int
    approximate: tuple[str, ...]
    left: Mapping[str, str]
    configuration: bool


def is_reconstruction(directory: Path) -> bool:
    """Return whether a directory is a checkpoint that :func:`reconstruct` wrote."""
    try:
        return "container" in load_json(directory / RECORD_NAME)
    except LarqlError:
        return False


def reconstruct(
    container: Container, output: Path, *, force: bool, progress: Progress
) -> Reconstruction:
    """Write the checkpoint that a container was made from.

    Parameters
    ----------
    container : Container
        Opened; it is not changed.
    output : Path
        Directory to create. It holds ``model.safetensors``; ``config.json`` and the text files as
        far as the container carries them; and ``reconstruction.json``, which says what is what.
    force : bool
        Replace an earlier reconstruction that stands there.
    progress : Progress
        Told of the bytes written.

    Raises
    ------
    LarqlError
        As :func:`~larql.format.source.recipes.plan_reconstruction`.
    ContainerError
        If a file is missing or damaged.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    """
    check_beside(output, container.path)
    kind = "a reconstructed checkpoint"
    check_output(output, force=force, replaceable=is_reconstruction, kind=kind)
    plan = plan_reconstruction(container)
    text = container.text_files()
    with write_directory(
        output, force=force, replaceable=is_reconstruction, kind=kind
    ) as directory:
        nbytes = _write_weights(container, plan, directory / WEIGHTS_NAME, progress)
        for name in text:
            # A file of an index may stand in a directory; a checkpoint's text files do not.
            if "/" not in name and name not in (RECORD_NAME, WEIGHTS_NAME):
                container.check_bytes(name)
                written = "config.json" if name == SOURCE_CONFIG else name
                write_stream(directory / written, _file_chunks(text[name]))
        licence = container.index.source.get("licence")
        if isinstance(licence, str):
            card = f"---\nlicense: {licence}\n---\n"
            write_stream(directory / "README.md", [card.encode()])
        done = Reconstruction(
            path=output,
            authority=fold([(v.operand, v.fidelity) for v in plan.baselines]),
            recipes=dict(sorted(Counter(t.recipe for t in plan.targets).items())),
            nbytes=nbytes,
            approximate=tuple(t.name for t in plan.targets if _is_approximate(t)),
            left=plan.left,
            configuration=SOURCE_CONFIG in text,
        )
        write_stream(directory / RECORD_NAME, [dump_json(_record(container, plan, done))])
    return done


def _is_approximate(target: Target) -> bool:
    return any(
        part.representation.encoding.name != part.representation.source.encoding
        for part in target.parts
    )


def _record(container: Container, plan: Plan, done: Reconstruction) -> dict[str, object]:
    return {
        "container": container.fingerprint,
        "model": container.index.model,
        "licence": container.index.source.get("licence"),
        "authority": done.authority.document(),
        "configuration": done.configuration,
        "source_weights": container.index.source.get("weights"),
        "left": dict(done.left),
        "tensors": {
            target.name: {
                "recipe": target.recipe,
                "fidelity": fold(
                    [(p.representation.operand, p.representation.fidelity) for p in target.parts]
                ).level,
                "operands": [part.representation.operand for part in target.parts],
            }
            for target in plan.targets
        },
    }


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def _write_weights(container: Container, plan: Plan, path: Path, progress: Progress) -> int:
    entries = contiguous_entries((t.name, t.dtype, t.shape) for t in plan.targets)
    total = sum(entry.end - entry.begin for entry in entries.values())
    progress.start("reconstruct", total)
    source = OperandBytes(container)

    def stream() -> Iterator[bytes]:
        yield serialize_header(entries, {"format": "pt"})
        for target in plan.targets:
            for chunk in _target_chunks(source, target):
                progress.advance(len(chunk))
                yield chunk
            for part in target.parts:
                value = part.representation
                last = part.entry is None or part.entry + 1 == value.shape[0]
                if last and target.half != "scales":
                    source.check(value)

    write_stream(path, stream())
    progress.finish()
    return total


def _target_chunks(source: OperandBytes, target: Target) -> Iterator[bytes]:
    if len(target.parts) == 1:
        (part,) = target.parts
        yield from source.chunks(part.representation, part.entry, target.half)
        return
    encoding = ENCODINGS[target.parts[0].representation.source.encoding]
    shape = target.shape
    row = encoding.nbytes(shape) // row_count(shape)
    readers = [_Reader(source.chunks(p.representation, p.entry)) for p in target.parts]
    spans = sorted(
        (first, count, number)
        for number, part in enumerate(target.parts)
        for first, count in part.rows.spans()
    )
    waiting = bytearray()
    for _, count, number in spans:
        for chunk in readers[number].take(count * row):
            waiting += chunk
            if len(waiting) >= _CHUNK:
                yield bytes(waiting)
                waiting.clear()
    for reader in readers:
        reader.finish()
    yield bytes(waiting)


class _Reader:
    """Takes chunks of any size apart into as many bytes as are asked for."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = memoryview(b"")

    def take(self, count: int) -> Iterator[memoryview]:
        """Yield the next ``count`` bytes, or fewer where the chunks end before."""
        while count:
            if not self._held:
                self._held = memoryview(next(self._chunks, b""))
                if not self._held:
                    return
            piece, self._held = self._held[:count], self._held[count:]
            count -= len(piece)
            yield piece

    def finish(self) -> None:
        """Read on to the end, where the hash of all chunks is complete."""
        for _ in self._chunks:
            pass
