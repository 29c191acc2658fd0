"""Checkpoint to container directory, streaming: peak memory is a piece of one tensor."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from larql.errors import CompileError, OutputError, TokenizerError
from larql.format.atomic import check_output, write_directory
from larql.format.closure import check_closure
from larql.format.container import is_container
from larql.format.digest import remember_sha256, sha256_of
from larql.format.generation import Generation, written_schema
from larql.format.graph_json import graph_to_json
from larql.format.index import (
    INDEX_NAME,
    FileEntry,
    Index,
    Representation,
    SourceBinding,
    dump_json,
    index_to_json,
)
from larql.format.moe.from_graph import manifest_of
from larql.format.moe.manifest_json import manifest_to_json
from larql.format.progress import Progress
from larql.format.segment import SegmentTensor, write_segment, write_stream
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.format.source.extract_banks import (
    bank_file_of,
    bank_recoding,
    bank_representation,
    write_layer_banks,
)
from larql.format.source.pieces import BankBinding
from larql.format.source.recode import (
    Recoding,
    choose_recoding,
    fallback_notes,
    source_chunks,
    stored_chunks,
)
from larql.format.tokenizer import (
    TokenizerFile,
    companion_files,
    configuration_file,
    licence_files,
    tokenizer_files,
)

__all__ = [
    "GRAPH_NAME",
    "MANIFEST_NAME",
    "Extraction",
    "check_apart",
    "check_beside",
    "check_place",
    "extract",
    "graph_document",
    "manifest_document",
    "planned_representations",
    "precision_map",
    "source_document",
    "text_document",
    "text_files",
]

GRAPH_NAME = "system_graph.json"
MANIFEST_NAME = "moe_manifest.json"


@dataclass(frozen=True)
class Extraction:
    """What an extraction wrote.

    Attributes
    ----------
    path : Path
        The container.
    fingerprint : str
        The sha256 of its index.
    nbytes : int
        Size of all its files.
    notes : tuple of str
        What a user should know; those that begin with ``warning:`` deserve attention.
    left : mapping
        Tensors that were not carried, and why.
    """

    path: Path
    fingerprint: str
    nbytes: int
    notes: tuple[str, ...]
    left: Mapping[str, str]


class _Hashing:
    """Passes chunks through and keeps the sha256 of a tensor's bytes in the checkpoint."""

    def __init__(self, checkpoint: Checkpoint, binding: Binding, recoding: Recoding) -> None:
        self._checkpoint = checkpoint
        self._binding = binding
        self._recoding = recoding
        self.sha256 = ""

    def __iter__(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        if self._recoding.verbatim:
            for chunk in stored_chunks(self._checkpoint, self._binding, self._recoding):
                digest.update(chunk)
                yield chunk
        else:
            for chunk in source_chunks(self._checkpoint, self._binding):
                digest.update(chunk)
            yield from stored_chunks(self._checkpoint, self._binding, self._recoding)
        self.sha256 = digest.hexdigest()


def graph_document(compiled: Compiled) -> bytes:
    """Return the bytes of ``system_graph.json``."""
    return dump_json(graph_to_json(compiled.graph))


def manifest_document(compiled: Compiled) -> bytes | None:
    """Return the bytes of ``moe_manifest.json``, None where no expert is routed to."""
    files = {(bank.component, bank.layer): bank_file_of(bank) for bank in compiled.banks}
    manifest = manifest_of(compiled.graph.components, files)
    return None if manifest is None else dump_json(manifest_to_json(manifest))


def text_document(compiled: Compiled) -> dict[str, object]:
    """Return what the index says of the model's text."""
    return {"end_of_text_ids": list(compiled.end_ids)}


def extract(
    checkpoint: Checkpoint,
    output: Path,
    *,
    quant: str | None,
    force: bool,
    progress: Progress,
) -> Extraction:
    """Compile a checkpoint and write its container.

    Parameters
    ----------
    checkpoint : Checkpoint
        Opened source; it is not changed.
    output : Path
        Directory to create.
    quant : str or None
        Encoding for matrices, or None to carry all bytes verbatim.
    force : bool
        Replace a container that stands at ``output``.
    progress : Progress
        Told of the bytes written.

    Raises
    ------
    CompileError
        If the checkpoint cannot be judged, or its operands do not close.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    """
    check_place(checkpoint, output, force=force)
    compiled = compile_checkpoint(checkpoint)
    recodings = {b.operand: choose_recoding(b, quant) for b in compiled.bindings}
    recodings.update((b.operand, bank_recoding(b, quant)) for b in compiled.banks)
    representations = planned_representations(compiled, quant)
    for component in compiled.graph.components:
        defects = check_closure(component, representations)
        if defects:
            raise CompileError(f"{checkpoint.root}: {defects[0].line()}")
    with write_directory(output, force=force, replaceable=is_container) as directory:
        index = _write(directory, checkpoint, compiled, recodings, progress)
        document = dump_json(index_to_json(index))
        entry = write_stream(directory / INDEX_NAME, [document])
    for name, file in index.files.items():
        remember_sha256(output / name, file.sha256)
    return Extraction(
        path=output,
        fingerprint=entry.sha256,
        nbytes=entry.size + sum(file.size for file in index.files.values()),
        notes=index.notes,
        left=compiled.left,
    )


def check_place(checkpoint: Checkpoint, output: Path, *, force: bool) -> None:
    """Refuse a place for a container that cannot be written, or that holds the checkpoint.

    Raises
    ------
    OutputError
        Saying why.
    """
    inputs = [*checkpoint.weight_files, *checkpoint.side_files.values()]
    check_apart(output, [checkpoint.root, *inputs])
    check_output(output, force=force, replaceable=is_container)


def planned_representations(compiled: Compiled, quant: str | None) -> dict[str, Representation]:
    """Return what an extraction would store of each operand, before any byte is read.

    Raises
    ------
    UnsupportedRefusal
        If a tensor is stored in a form that this build does not decode.
    UsageError
        If ``quant`` is not a choice.
    """
    found = {
        b.operand: _representation(b, choose_recoding(b, quant), "") for b in compiled.bindings
    }
    found.update(
        (b.operand, bank_representation(b, bank_recoding(b, quant), "")) for b in compiled.banks
    )
    return found


def check_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse an output that is one of the inputs, or that one of them lies in.

    Raises
    ------
    OutputError
        Naming the input.
    """
    # Path.resolve raises RuntimeError on a loop of links; what follows refuses it in words.
    target = Path(os.path.realpath(output))
    for source in inputs:
        real = Path(os.path.realpath(source))
        if target == real or target in real.parents:
            raise OutputError(f"{output}: holds the source {source}; choose another path")


def check_beside(output: Path, container: Path) -> None:
    """Refuse an output that is a container, that holds it, or that lies in it.

    Raises
    ------
    OutputError
        Saying which.
    """
    check_apart(output, [container])
    if Path(os.path.realpath(container)) in Path(os.path.realpath(output)).parents:
        raise OutputError(f"{output}: lies in the container itself; choose another path")


def _write(
    directory: Path,
    checkpoint: Checkpoint,
    compiled: Compiled,
    recodings: Mapping[str, Recoding],
    progress: Progress,
) -> Index:
    (directory / "segments").mkdir()
    shapes = {b.operand: b.shape for b in compiled.bindings}
    shapes.update((b.operand, b.shape) for b in compiled.banks)
    total = sum(recodings[name].nbytes(shape) for name, shape in shapes.items())
    progress.start("extract", total)
    segments: dict[str, FileEntry] = {}
    representations: dict[str, Representation] = {}
    objects: dict[str, object] = {}
    grouped: dict[str, list[Binding]] = {}
    for binding in compiled.bindings:
        grouped.setdefault(binding.object, []).append(binding)
    for name, bindings in grouped.items():
        file = _segment_name(name)
        streams = {b.operand: _Hashing(checkpoint, b, recodings[b.operand]) for b in bindings}
        segments[file] = write_segment(
            directory / file,
            [
                SegmentTensor(b.tensor, recodings[b.operand].encoding, b.shape, streams[b.operand])
                for b in bindings
            ],
        )
        progress.advance(segments[file].size)
        for b in bindings:
            recoding = recodings[b.operand]
            representations[b.operand] = _representation(b, recoding, streams[b.operand].sha256)
        objects[name] = {
            "kind": name.split(".")[1],
            "component": name.split(".")[0],
            "representations": [b.operand for b in bindings],
        }
    routed: dict[str, list[BankBinding]] = {}
    for bank in compiled.banks:
        routed.setdefault(bank.object, []).append(bank)
    if routed:
        (directory / "routed").mkdir()
    for banks in routed.values():
        file, segments[file], hashes = write_layer_banks(
            directory, checkpoint, banks, recodings, progress
        )
        for bank in banks:
            representations[bank.operand] = bank_representation(
                bank, recodings[bank.operand], hashes[bank.operand]
            )
            cast("dict[str, list[str]]", objects[bank.object])["representations"].append(
                bank.operand
            )
    progress.finish()
    files = dict(segments)
    files[GRAPH_NAME] = write_stream(directory / GRAPH_NAME, [graph_document(compiled)])
    manifest = manifest_document(compiled)
    if manifest is not None:
        files[MANIFEST_NAME] = write_stream(directory / MANIFEST_NAME, [manifest])
    notes = [*compiled.notes, *_write_text(directory, checkpoint, files)]
    notes += fallback_notes(
        (value.requested, value.encoding.name) for value in representations.values()
    )
    component = compiled.graph.components[0]
    return Index(
        schema=written_schema(Generation.VINDEX3),
        model=compiled.model,
        family=compiled.family,
        hidden_size=component.hidden_size,
        num_layers=len(component.layers),
        components=tuple(c.id for c in compiled.graph.components),
        system_graph=GRAPH_NAME,
        moe_manifest=None if manifest is None else MANIFEST_NAME,
        source=source_document(checkpoint, compiled),
        text=text_document(compiled),
        objects=objects,
        representations=representations,
        precision_map=precision_map(representations),
        authority="canonical",
        notes=tuple(notes),
        segments=segments,
        files={name: files[name] for name in sorted(files)},
    )


def _segment_name(object_name: str) -> str:
    return f"segments/{object_name}.safetensors"


def _representation(binding: Binding, recoding: Recoding, sha256: str) -> Representation:
    return Representation(
        id=binding.operand,
        operand=binding.operand,
        encoding=recoding.encoding,
        fidelity=recoding.fidelity,
        shape=binding.shape,
        segment=_segment_name(binding.object),
        tensor=binding.tensor,
        source=SourceBinding(
            binding.source.name,
            binding.source.encoding.name,
            sha256,
            binding.rows,
            None if binding.source.shape == binding.shape else binding.source.shape,
        ),
        requested=recoding.requested,
    )


def _write_text(
    directory: Path, checkpoint: Checkpoint, files: dict[str, FileEntry]
) -> Iterator[str]:
    """Write tokenizer and template files; yield what a user should know."""
    text, problem = text_files(checkpoint)
    if problem is not None:
        yield f"warning: no tokenizer is carried: {problem}"
    for name, file in text.items():
        files[name] = write_stream(directory / name, file.chunks())


def text_files(checkpoint: Checkpoint) -> tuple[Mapping[str, TokenizerFile], str | None]:
    """Return a container's text files by name, and why there is no tokenizer among them."""
    beside = {**licence_files(checkpoint), **configuration_file(checkpoint)}
    try:
        return {**tokenizer_files(checkpoint), **beside}, None
    except TokenizerError as error:
        # The container must not hang on where the checkpoint lay.
        root = str(checkpoint.root)
        problem = str(error).replace(f"{root}/", "").removeprefix(f"{root}: ")
        return {**companion_files(checkpoint), **beside}, problem


def precision_map(representations: Mapping[str, Representation]) -> dict[str, object]:
    """Return how many logical elements are stored in each encoding, as the index states it."""
    elements: dict[str, int] = {}
    for value in representations.values():
        elements[value.encoding.name] = elements.get(value.encoding.name, 0) + value.elements
    return {name: elements[name] for name in sorted(elements)}


def source_document(checkpoint: Checkpoint, compiled: Compiled) -> dict[str, object]:
    """Return what the index says of the checkpoint: format, files, licence, what was left."""
    document: dict[str, object] = {
        "format": checkpoint.format,
        "weights": [
            {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in checkpoint.weight_files
        ],
    }
    if compiled.licence is not None:
        document["licence"] = compiled.licence
    if compiled.left:
        document["left"] = dict(compiled.left)
    if compiled.repeats:
        document["repeats"] = dict(compiled.repeats)
    return document
