"""Checkpoint to VINDEX2 directory, streaming: peak memory is one tensor and its decoded form."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from larql import __version__
from larql.errors import CompileError, UsageError
from larql.format.atomic import write_directory
from larql.format.closure import check_closure
from larql.format.container import is_container
from larql.format.digest import remember_sha256
from larql.format.encoding import Encoding
from larql.format.generation import Generation, written_schema
from larql.format.graph import Component, Graph
from larql.format.graph_json import graph_to_json
from larql.format.index import INDEX_NAME, FileEntry, dump_json
from larql.format.progress import Progress
from larql.format.segment import write_stream
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.format.source.extract import (
    Extraction,
    check_place,
    planned_representations,
    source_document,
    text_files,
)
from larql.format.source.recode import Recoding, fallback_notes, stored_chunks
from larql.format.vindex2.down_meta import FeatureTokens
from larql.format.vindex2.encodings import dtype_of, tensor_recoding
from larql.format.vindex2.index import (
    DEFAULT_TOP_K,
    LayerFeatures,
    Vindex2Index,
    index_to_json,
)
from larql.format.vindex2.layout import (
    DOWN_META,
    EMBEDDINGS,
    GATE,
    MANIFEST,
    TENSOR_FILES,
    FfnLayout,
    Level,
    needed_level,
)
from larql.format.vindex2.placement import (
    Form,
    Place,
    contiguous,
    features_of,
    places,
    routed_of,
    widest_network,
)
from larql.format.vindex2.weight_manifest import WeightEntry, manifest_to_json, packed_entries
from larql.format.vindex2.write_entries import (
    bank_vector_chunks,
    write_dense_entry,
    write_experts,
)
from larql.format.vindex2.write_meta import write_down_meta

__all__ = ["Options", "Origin", "extract_vindex2"]

_EPOCH = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint was fetched from; nothing for one that lay on this machine."""

    repo: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Options:
    """What a directory is to have.

    Attributes
    ----------
    level : Level
    quant : str or None
        Encoding for matrices of attention, feed-forward networks and head.
    ffn_layout : FfnLayout or None
        Where dense networks lie.
    top_k : int
        Tokens of each record of ``down_meta.bin``.
    """

    level: Level = Level.INFERENCE
    quant: str | None = None
    ffn_layout: FfnLayout | None = None
    top_k: int = DEFAULT_TOP_K


def extract_vindex2(
    checkpoint: Checkpoint,
    output: Path,
    tokens: FeatureTokens,
    *,
    options: Options,
    origin: Origin,
    force: bool,
    progress: Progress,
) -> Extraction:
    """Compile a checkpoint and write it as a VINDEX2 directory.

    Parameters
    ----------
    checkpoint : Checkpoint
        Opened source; it is not changed.
    output : Path
        Directory to create.
    tokens : FeatureTokens
        Computes what features write.
    options : Options
    origin : Origin
    force : bool
        Replace a container that stands at ``output``.
    progress : Progress
        Told of the bytes written.

    Raises
    ------
    CompileError
        If the checkpoint cannot be judged, its operands do not close, or the layout that was asked
        for cannot hold it.
    OutputError
        If the output exists or cannot be written. No partial directory is left behind.
    UsageError
        If ``SOURCE_DATE_EPOCH`` is set and no time.
    """
    check_place(checkpoint, output, force=force)
    made_at = _extracted_at()
    compiled = compile_checkpoint(checkpoint)
    target = compiled.graph.components[0]
    defects = check_closure(target, planned_representations(compiled, options.quant))
    if defects:
        raise CompileError(f"{checkpoint.root}: {defects[0].line()}")
    with write_directory(output, force=force, replaceable=is_container) as directory:
        writing = _Writing(directory, checkpoint, compiled, options, progress)
        index = writing.run(tokens)
        source = {
            "repo": origin.repo,
            "revision": origin.revision,
            "extracted_at": made_at,
            "tool_version": f"larql {__version__}",
            **source_document(checkpoint, compiled),
        }
        source["sha"] = _source_sha(source["weights"])
        index = replace(index, source=source)
        entry = write_stream(directory / INDEX_NAME, [dump_json(index_to_json(index))])
    for name, sha256 in index.checksums.items():
        remember_sha256(output / name, sha256)
    return Extraction(
        path=output,
        fingerprint=entry.sha256,
        nbytes=entry.size + sum((output / name).stat().st_size for name in index.checksums),
        notes=index.notes,
        left=compiled.left,
    )


def _extracted_at() -> str | None:
    """Return the time to record: none, so that bytes do not depend on it, unless one is set."""
    text = os.environ.get(_EPOCH)
    if not text:
        return None
    try:
        moment = datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"{_EPOCH} is {text!r:.40}, expected seconds since 1970 as an integer"
        ) from None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _source_sha(weights: object) -> str | None:
    """Return the sha256 of a lone weights file, or of the hashes of several, a line for each."""
    hashes = [str(w["sha256"]) for w in weights] if isinstance(weights, list) else []
    if len(hashes) < 2:
        return hashes[0] if hashes else None
    return hashlib.sha256("".join(f"{h}\n" for h in hashes).encode()).hexdigest()


class _Writing:
    """One extraction on its way."""

    def __init__(
        self,
        directory: Path,
        checkpoint: Checkpoint,
        compiled: Compiled,
        options: Options,
        progress: Progress,
    ) -> None:
        self._directory = directory
        self._checkpoint = checkpoint
        self._compiled = compiled
        self._options = options
        self._progress = progress
        self._component: Component = contiguous(compiled.graph.components[0])
        self._places = places(self._component, options.ffn_layout)
        self._bindings = {b.operand: b for b in compiled.bindings if b.operand in self._places}
        self._banks = {b.operand: b for b in compiled.banks if b.operand in self._places}
        self._dtype = dtype_of(self._bindings.values(), self._banks.values())
        self._turned = _interleaved(compiled.graph.components[0])
        self._checksums: dict[str, str] = {}
        self._noted: list[Recoding] = []

    def run(self, tokens: FeatureTokens) -> Vindex2Index:
        """Write all files but the index, and return what that is to say."""
        options, component = self._options, self._component
        self._progress.start("extract", self._planned_bytes())
        layers = self._gate_vectors()
        self._embeddings()
        self._down_meta(tokens, layers)
        manifest: list[WeightEntry] = []
        for name in TENSOR_FILES:
            if options.level.includes(needed_level(name)):
                manifest += self._tensors(name)
        if options.level.includes(Level.INFERENCE):
            self._layer_files()
        if options.level.includes(Level.ATTENTION):
            self._write(MANIFEST, [dump_json(manifest_to_json(manifest))])
        self._progress.finish()
        text, problem = text_files(self._checkpoint)
        for name, file in text.items():
            self._write(name, file.chunks())
        notes = list(self._compiled.notes)
        notes += fallback_notes((r.requested, r.encoding.name) for r in self._noted)
        if problem is not None:
            notes.append(f"warning: no tokenizer is carried: {problem}")
        if len(self._compiled.graph.components) > 1:
            notes.append(
                "warning: the draft head was left behind: this generation has no place for it"
            )
        return Vindex2Index(
            schema=written_schema(Generation.VINDEX2),
            model=self._compiled.model,
            family=self._compiled.family,
            dtype=self._dtype,
            source={},
            checksums={name: self._checksums[name] for name in sorted(self._checksums)},
            num_layers=len(component.layers),
            hidden_size=component.hidden_size,
            intermediate_size=widest_network(component, layers),
            vocab_size=component.embed.vocab,
            embed_scale=component.embed.scale,
            level=options.level,
            has_model_weights=options.level.includes(Level.INFERENCE),
            down_top_k=options.top_k,
            layer_bands=None,
            layers=layers,
            model_config={
                "system_graph": graph_to_json(Graph((component,))),
                "end_of_text_ids": list(self._compiled.end_ids),
            },
            quant=options.quant,
            ffn_layout=options.ffn_layout,
            notes=tuple(notes),
        )

    def _write(self, name: str, chunks: Iterator[bytes] | list[bytes]) -> FileEntry:
        entry = write_stream(self._directory / name, chunks)
        self._checksums[name] = entry.sha256
        return entry

    def _planned_bytes(self) -> int:
        """Return about how many bytes will be written."""
        shapes = [b.shape for b in self._bindings.values()]
        shapes += [b.shape for b in self._banks.values()]
        return sum(self._dtype.nbytes(shape) for shape in shapes)

    def _plain(self, binding: Binding) -> Iterator[bytes]:
        """Yield an operand in the directory's dtype."""
        recoding = Recoding(self._dtype, verbatim=binding.source.encoding == self._dtype)
        for chunk in stored_chunks(self._checkpoint, binding, recoding):
            self._progress.advance(len(chunk))
            yield chunk

    def _gate_vectors(self) -> tuple[LayerFeatures, ...]:
        found: list[LayerFeatures] = []
        bindings: list[Binding] = []
        offset = 0
        for layer in self._component.layers:
            operands = features_of(layer)
            if operands is None:
                found.append(LayerFeatures(layer.index, 0, offset, 0))
                continue
            key, _value = operands
            length = self._dtype.nbytes(key.shape)
            found.append(LayerFeatures(layer.index, key.shape[0], offset, length))
            bindings.append(self._bindings[key.name])
            offset += length
        self._write(GATE, (chunk for binding in bindings for chunk in self._plain(binding)))
        return tuple(found)

    def _embeddings(self) -> None:
        self._write(EMBEDDINGS, self._plain(self._bindings[self._component.embed.weight]))

    def _down_meta(self, tokens: FeatureTokens, layers: tuple[LayerFeatures, ...]) -> None:
        head = self._component.head
        rows = self._bindings[head.weight]
        downs = [
            self._bindings[operands[1].name]
            for layer in self._component.layers
            if (operands := features_of(layer)) is not None
        ]
        matrix = EMBEDDINGS if head.tied else ".head.tmp"
        if not head.tied:
            write_stream(self._directory / matrix, self._plain(rows))
        chunks = write_down_meta(
            self._checkpoint, tokens, self._directory / matrix, self._dtype,
            (head.vocab, head.width), downs, len(layers), self._options.top_k,
        )  # fmt: skip
        self._write(DOWN_META, chunks)
        if not head.tied:
            (self._directory / matrix).unlink()

    def _tensors(self, file: str) -> list[WeightEntry]:
        """Write a file without a header, and return what it holds."""
        listed = [p for p in self._places.values() if p.file == file and p.form is Form.LISTED]
        if not listed:
            return []
        made: list[WeightEntry] = []
        for place in listed:
            recoding = self._recoding(place)
            contract = place.contract
            length = recoding.encoding.nbytes(contract.shape)
            made.append(
                WeightEntry(
                    contract.name, recoding.encoding, contract.shape, file, 0, length,
                    recoding.requested,
                )
            )  # fmt: skip
            self._noted.append(recoding)
        entries = packed_entries(made)
        self._write(file, self._padded(entries))
        return entries

    def _recoding(self, place: Place) -> Recoding:
        name, shape = place.contract.name, place.contract.shape
        if name in self._banks:
            return Recoding(_vector_encoding(self._banks[name].encoding, self._dtype), False)
        source = self._bindings[name].source.encoding
        return tensor_recoding(source, shape, self._dtype, self._options.quant, place.file)

    def _padded(self, entries: list[WeightEntry]) -> Iterator[bytes]:
        at = 0
        for entry in entries:
            yield bytes(entry.offset - at)
            at = entry.offset + entry.length
            written = 0
            for chunk in self._stored(entry):
                written += len(chunk)
                self._progress.advance(len(chunk))
                yield chunk
            if written != entry.length:
                raise CompileError(
                    f"{entry.file}: {entry.key} gave {written} bytes, expected {entry.length}"
                )

    def _stored(self, entry: WeightEntry) -> Iterator[bytes]:
        bank = self._banks.get(entry.key)
        if bank is not None:
            turned = entry.key in self._turned
            return bank_vector_chunks(self._checkpoint, bank, entry.dtype, interleaved=turned)
        binding = self._bindings[entry.key]
        recoding = Recoding(entry.dtype, verbatim=binding.source.encoding == entry.dtype)
        return stored_chunks(self._checkpoint, binding, recoding)

    def _layer_files(self) -> None:
        parts: dict[str, dict[str, str]] = {}
        for name, place in self._places.items():
            if place.form in (Form.EXPERTS, Form.DENSE_ENTRY):
                parts.setdefault(place.file, {})[place.part] = name
        if parts:
            (self._directory / "layers").mkdir()
        for file, operands in parts.items():
            path = self._directory / file
            common = self._dtype, self._options.quant, self._noted
            if operands["down"] in self._banks:
                banks = {part: self._banks[name] for part, name in operands.items()}
                turned = operands.get("gate_up") in self._turned
                self._checksums[file] = write_experts(
                    path, self._checkpoint, banks, *common, interleaved=turned
                )
            else:
                bindings = {part: self._bindings[name] for part, name in operands.items()}
                self._checksums[file] = write_dense_entry(path, self._checkpoint, bindings, *common)
            self._progress.advance(path.stat().st_size)


def _vector_encoding(source: Encoding, dtype: Encoding) -> Encoding:
    return tensor_recoding(source, (1,), dtype, None, "").encoding


def _interleaved(component: Component) -> frozenset[str]:
    """Return the operands of experts whose rows are of gate and up in turn."""
    banks = [routed.bank for layer in component.layers if (routed := routed_of(layer)) is not None]
    names = [
        name
        for bank in banks
        if bank.fused_rows == "interleaved"
        for name in (bank.gate_up, bank.gate_up_bias)
    ]
    return frozenset(name for name in names if name is not None)
