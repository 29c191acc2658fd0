"""Proof that a container holds what a checkpoint holds: both ends are read and hashed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from larql.errors import ContainerError, LarqlError
from larql.format.closure import Defect
from larql.format.container import Container
from larql.format.index import INDEX_NAME, Index, Representation
from larql.format.progress import Progress
from larql.format.segment import hash_file
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.compare_banks import compare_bank
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.format.source.extract import graph_document, manifest_document, text_document, text_files
from larql.format.source.recode import Recoding, source_chunks, stored_chunks

__all__ = ["compare_with_source"]


def compare_with_source(
    container: Container, checkpoint: Checkpoint, progress: Progress
) -> list[Defect]:
    """Return every difference between a container and the checkpoint it claims to come from.

    The checkpoint is compiled again and its graph and text files compared; each tensor is hashed
    in the checkpoint and against the bytes in the container. A tensor that was re-encoded is
    re-encoded again and compared byte for byte.

    Raises
    ------
    CompileError, SourceError
        If the checkpoint cannot be read or judged.
    """
    compiled = compile_checkpoint(checkpoint)
    defects = []
    name = container.index.system_graph or "system_graph.json"
    try:
        stored = (container.path / name).read_bytes()
    except OSError as error:
        defects.append(Defect(name, error.strerror or "unreadable"))
    else:
        if stored != graph_document(compiled):
            defects.append(Defect(name, "is not the graph that the source compiles to"))
    defects.extend(_compare_manifest(container, compiled))
    defects.extend(_compare_facts(container.index, compiled))
    defects.extend(_compare_text(container, checkpoint))
    representations = container.operands
    total = sum(_nbytes(b) for b in compiled.bindings)
    total += sum(bank.encoding.nbytes(bank.shape) for bank in compiled.banks)
    progress.start("compare", total)
    for binding in compiled.bindings:
        representation = representations.get(binding.operand)
        if representation is None:
            defects.append(Defect(binding.operand, f"is missing; {binding.source.name} fills it"))
        else:
            defects.extend(_compare(container, checkpoint, binding, representation))
        progress.advance(_nbytes(binding))
    for bank in compiled.banks:
        representation = representations.get(bank.operand)
        if representation is None:
            defects.append(Defect(bank.operand, f"is missing; {bank.source} fills it"))
        else:
            defects.extend(compare_bank(container, checkpoint, bank, representation))
        progress.advance(bank.encoding.nbytes(bank.shape))
    progress.finish()
    bound = {binding.operand for binding in compiled.bindings}
    bound.update(bank.operand for bank in compiled.banks)
    defects.extend(
        Defect(operand, "has no counterpart in the source")
        for operand in representations
        if operand not in bound
    )
    return defects


def _compare_facts(index: Index, compiled: Compiled) -> Iterator[Defect]:
    """Compare what the index repeats of the graph or adds to it."""
    target = compiled.graph.components[0]
    facts: dict[str, tuple[object, object]] = {
        "model": (index.model, compiled.model),
        "family": (index.family, compiled.family),
        "hidden_size": (index.hidden_size, target.hidden_size),
        "num_layers": (index.num_layers, len(target.layers)),
        "components": (index.components, tuple(c.id for c in compiled.graph.components)),
        "text": (dict(index.text), text_document(compiled)),
    }
    for name, (found, expected) in facts.items():
        if found != expected:
            yield Defect(INDEX_NAME, f"{name} is {found!r}, the source says {expected!r}")


def _compare_manifest(container: Container, compiled: Compiled) -> Iterator[Defect]:
    name, meant = container.index.moe_manifest, manifest_document(compiled)
    if (name is None) != (meant is None):
        yield Defect(INDEX_NAME, "has a manifest of experts where the source has none, or none")
    elif name is not None:
        try:
            if (container.path / name).read_bytes() != meant:
                yield Defect(name, "is not the manifest that the source compiles to")
        except OSError as error:
            yield Defect(name, error.strerror or "unreadable")


def _compare_text(container: Container, checkpoint: Checkpoint) -> Iterator[Defect]:
    text, _problem = text_files(checkpoint)
    stored = container.text_files()
    for name, file in text.items():
        if name not in stored:
            yield Defect(name, "is missing, the source has it")
            continue
        expected = hashlib.sha256()
        for chunk in file.chunks():
            expected.update(chunk)
        try:
            found = hash_file(stored[name])
        except ContainerError as error:
            yield Defect(name, str(error).removeprefix(f"{stored[name]}: "))
            continue
        if found.sha256 != expected.hexdigest():
            yield Defect(name, "differs from the source's")
    for name in stored:
        if name not in text:
            yield Defect(name, "has no counterpart in the source")


def _nbytes(binding: Binding) -> int:
    return binding.source.encoding.nbytes(binding.shape)


def _compare(
    container: Container, checkpoint: Checkpoint, binding: Binding, stored: Representation
) -> Iterator[Defect]:
    source = binding.source
    if stored.shape != binding.shape:
        yield Defect(
            binding.operand,
            f"has shape {list(stored.shape)}, {source.name} gives {list(binding.shape)}",
        )
        return
    if stored.source.rows != binding.rows:
        yield Defect(binding.operand, f"is recorded as other rows of {source.name}")
        return
    recorded = (stored.source.tensor, stored.source.encoding)
    if recorded != (source.name, source.encoding.name):
        yield Defect(
            binding.operand,
            f"is recorded as {' in '.join(recorded)}, in the source it is {source.name} in "
            f"{source.encoding.name}",
        )
    digest = hashlib.sha256()
    for chunk in source_chunks(checkpoint, binding):
        digest.update(chunk)
    if digest.hexdigest() != stored.source.sha256:
        yield Defect(
            binding.operand,
            f"{source.name} has sha256 {digest.hexdigest()}, the index recorded "
            f"{stored.source.sha256}",
        )
    verbatim = stored.encoding == source.encoding
    if verbatim != (stored.fidelity == "source-exact"):
        yield Defect(
            binding.operand,
            f"is {stored.encoding.name} from {source.encoding.name} and cannot be "
            f"{stored.fidelity}",
        )
        return
    try:
        expected = digest
        if not verbatim:
            expected = hashlib.sha256()
            for chunk in stored_chunks(checkpoint, binding, Recoding(stored.encoding, verbatim)):
                expected.update(chunk)
        segment = container.segment(stored.segment)
        segment.check(stored.tensor, stored.encoding, stored.shape)
        found = hashlib.sha256()
        for chunk in segment.chunks(stored.tensor):
            found.update(chunk)
    except LarqlError as error:
        yield Defect(stored.segment, str(error).removeprefix(f"{container.path}/"))
        return
    if expected.digest() != found.digest():
        yield Defect(stored.segment, f"{stored.tensor} differs from {source.name} in the source")
