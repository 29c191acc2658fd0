"""Checkpoint to system graph: families are judged here, and nowhere after.

The compiler finds the family, lets it describe its component, and refuses whatever the family
did not judge: a configuration key that may change the computation, a tensor that nothing reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from larql.errors import SourceError
from larql.format.closure import check_geometry
from larql.format.graph import Component, Edge, Graph
from larql.format.rows import RowSelection, row_count
from larql.format.source.binding import Binding
from larql.format.source.builder import Builder, Family
from larql.format.source.checkpoint import Checkpoint, SourceTensor
from larql.format.source.config import ConfigReader, KeyVerdict
from larql.format.source.families import FAMILIES
from larql.format.source.keys import common_hugging_face_keys
from larql.format.source.names import GGUF_NAMING, hugging_face_naming
from larql.format.source.pieces import BankBinding
from larql.format.source.problems import Problem, Problems
from larql.format.tokenizer.ends import declared_end_id
from larql.format.tokenizer.vocabulary import KNOWN_TOKENIZER_KEYS
from larql.format.untrusted import read_json_object

__all__ = ["Compiled", "Judging", "compile_checkpoint"]

_GGUF_BOOKKEEPING = ("general.", "tokenizer.", "quantize.", "split.", "imatrix.", "mradermacher.")
_DERIVED_BUFFERS = re.compile(r"(^|\.)rotary_emb\.inv_freq$|(^|\.)masked_bias$")
# Of models that also see, hear or draft, around the configuration of the text model.
_OUTER_KEYS = (
    "vision_config",
    "mm_tokens_per_image",
    "image_token_index",
    "image_token_id",
    "boi_token_index",
    "boi_token_id",
    "eoi_token_index",
    "eoi_token_id",
    "video_token_id",
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "eoa_token_id",
    "eoa_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "image_bos_token_id",
    "audio_bos_token_id",
    "mtp_config",
)
_OUTER_TENSORS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.audio.",
    "model.audio_tower.",
    "visual.",
    "model.visual.",
)


@dataclass(frozen=True)
class Compiled:
    """A checkpoint's meaning, before any tensor byte is copied.

    Attributes
    ----------
    family : str
        Name of the family, for information.
    model : str
        The model's own name.
    graph : Graph
    bindings : tuple of Binding
        Which tensor fills which operand, in execution order.
    banks : tuple of BankBinding
        Which tensors fill the operands of experts, in execution order.
    left : mapping
        Tensors that are not carried, and why.
    repeats : mapping
        Of these, the ones whose bytes are those of an operand, and of which.
    keys : tuple of KeyVerdict
        What became of each configuration key.
    notes : tuple of str
        What a user should know; those that begin with ``warning:`` deserve attention.
    end_ids : tuple of int
        End-of-text ids that the configurations and the tokenizer's files declare.
    licence : str or None
        As the checkpoint states it.
    """

    family: str
    model: str
    graph: Graph
    bindings: tuple[Binding, ...]
    banks: tuple[BankBinding, ...]
    left: Mapping[str, str]
    repeats: Mapping[str, str]
    keys: tuple[KeyVerdict, ...]
    notes: tuple[str, ...]
    end_ids: tuple[int, ...]
    licence: str | None


class Judging:
    """What a compilation has come to, also where it then ends in an error.

    Parameters
    ----------
    headers_only : bool
        Read no tensor: a stored copy of a tied head is then taken to be one.

    Attributes
    ----------
    family : Family or None
    reader : ConfigReader or None
        Knows which keys were judged.
    builder : Builder or None
        Knows which tensors were bound or left.
    component : Component or None
        Where there are problems, with stand-ins for what was refused.
    problems : Problems
    """

    def __init__(self, *, headers_only: bool = False) -> None:
        self.headers_only = headers_only
        self.problems = Problems()
        self.family: Family | None = None
        self.reader: ConfigReader | None = None
        self.builder: Builder | None = None
        self.component: Component | None = None

    def same_bytes(self, checkpoint: Checkpoint) -> Callable[[SourceTensor, SourceTensor], bool]:
        """Return what compares two tensors."""
        return _same_shape if self.headers_only else _same_bytes(checkpoint)


def compile_checkpoint(checkpoint: Checkpoint, judging: Judging | None = None) -> Compiled:
    """Judge a checkpoint.

    Parameters
    ----------
    checkpoint : Checkpoint
    judging : Judging or None
        Told on the way what has been found.

    Raises
    ------
    CompileError
        If the family is unknown, a key that may change the computation is not understood, a
        tensor is missing, of another shape, or read by nothing: with the first problem, and how
        many more ``judging`` has.
    SourceError
        If the configuration cannot be read.
    """
    judging = judging or Judging()
    if checkpoint.format == "gguf":
        return _compile_gguf(checkpoint, judging)
    return _compile_hugging_face(checkpoint, judging)


def _family(
    name: object, known: Iterable[tuple[str, Family]], where: str, key: str, problems: Problems
) -> Family:
    table = dict(known)
    if isinstance(name, str) and name in table:
        return table[name]
    text = (
        f"{where}: `{key}` is {name!r}, a family this build does not compile "
        f"({', '.join(sorted(table))})"
    )
    problems.add(Problem("key", key, text))
    problems.check()
    raise AssertionError("a problem was recorded")


def _compile_hugging_face(checkpoint: Checkpoint, judging: Judging) -> Compiled:
    where = str(checkpoint.root / "config.json")
    root = judging.reader = ConfigReader(checkpoint.config, where, problems=judging.problems)
    model_type = checkpoint.config.get("model_type")
    known = [(name, family) for family in FAMILIES for name in family.model_types]
    if model_type not in [name for name, _ in known]:
        common_hugging_face_keys(root)
    family = judging.family = _family(model_type, known, where, "model_type", judging.problems)
    inner = root.child("text_config")
    if inner is not None:
        root.irrelevant(*_OUTER_KEYS)
        for key in (
            "architectures",
            "model_type",
            "torch_dtype",
            "dtype",
            "transformers_version",
            "initializer_range",
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "_name_or_path",
            "use_cache",
        ):
            root.irrelevant(key)
        _same_in_both(root, inner, checkpoint.config, "tie_word_embeddings")
        nested_type = inner.text("model_type", family.name)
        if nested_type not in (*family.model_types, family.name):
            root.contradiction("model_type", "text_config.model_type", family.name, nested_type)
    builder = judging.builder = Builder(
        inner or root,
        checkpoint.tensors,
        judging.same_bytes(checkpoint),
        hugging_face_naming("model.", "lm_head", {}),
    )
    component = judging.component = family.hugging_face(builder)
    draft = None if family.drafts is None else family.drafts(builder, component)
    builder.leave((n for n in checkpoint.tensors if _DERIVED_BUFFERS.search(n)), "a derived buffer")
    if inner is not None:
        builder.leave(
            (n for n in checkpoint.tensors if n.startswith(_OUTER_TENSORS)), "not the text model"
        )
    nested = checkpoint.config.get("text_config")
    generation = checkpoint.side_files.get("generation_config.json")
    declared: list[tuple[Mapping[str, object], str]] = [
        (checkpoint.config, where),
        (nested if isinstance(nested, Mapping) else {}, where),
    ]
    if generation is not None:
        declared.append((read_json_object(generation, SourceError), str(generation)))
    vocab = component.vocab_size
    end_ids = [
        token
        for config, at in declared
        for token in _token_ids(config.get("eos_token_id"), "eos_token_id", at, vocab, builder)
    ]
    end_ids += _token_ids(
        declared_end_id(checkpoint.side_files), "eos_token", where, vocab, builder
    )
    return _finish(
        checkpoint,
        family,
        component,
        draft,
        builder,
        root,
        model=_own_name(checkpoint.config.get("_name_or_path")) or family.name,
        end_ids=tuple(dict.fromkeys(end_ids)),
        licence=_readme_licence(checkpoint.root / "README.md"),
    )


def _own_name(value: object) -> str | None:
    """Return what a checkpoint calls itself; the directory it happens to lie in is not a name."""
    if not isinstance(value, str):
        return None
    # JSON can spell half a surrogate pair, which no file can hold.
    name = value.encode(errors="replace").decode().rstrip("/").rsplit("/", 1)[-1]
    return name or None


def _same_in_both(
    root: ConfigReader, inner: ConfigReader, config: Mapping[str, object], key: str
) -> None:
    """Judge a key that nested checkpoints repeat outside the text model."""
    outer = config.get(key)
    nested = cast("Mapping[str, object]", config["text_config"]).get(key)
    root.irrelevant(key)
    inner.inherit(key, outer)
    if outer is not None and nested is not None and outer != nested:
        root.contradiction(key, f"text_config.{key}", outer, nested)


def _compile_gguf(checkpoint: Checkpoint, judging: Judging) -> Compiled:
    config = checkpoint.config
    where = str(checkpoint.weight_files[0])
    architecture = config.get("general.architecture")
    family = judging.family = _family(
        architecture,
        ((name, family) for family in FAMILIES for name in family.architectures),
        where,
        "general.architecture",
        judging.problems,
    )
    prefix = f"{architecture}."
    for key in config:
        if not key.startswith((prefix, *_GGUF_BOOKKEEPING)):
            text = (
                f"{where}: metadata key `{key}` is unknown to this build and may change what the "
                f"model computes"
            )
            judging.problems.add(Problem("key", key, text))
    stated = {key[len(prefix) :]: config[key] for key in config if key.startswith(prefix)}
    reader = judging.reader = ConfigReader(stated, where, prefix, judging.problems)
    builder = judging.builder = Builder(
        reader,
        checkpoint.tensors,
        judging.same_bytes(checkpoint),
        GGUF_NAMING,
        drops_ones=True,
    )
    assert family.gguf is not None  # it was found by an architecture
    component = judging.component = family.gguf(builder)
    end_ids = [
        value
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
        for value in _token_ids(
            config.get(f"tokenizer.ggml.{key}"),
            f"tokenizer.ggml.{key}",
            where,
            component.vocab_size,
            builder,
        )
    ]
    builder.notes += [
        f"warning: metadata key `{key}` is unknown to this build, which ignores it; text may be "
        f"tokenized otherwise than the model was trained with"
        for key in config
        if key.startswith("tokenizer.")
        and key not in KNOWN_TOKENIZER_KEYS
        and not key.startswith("tokenizer.chat_template")
    ]
    name = config.get("general.name")
    licence = config.get("general.license")
    return _finish(
        checkpoint,
        family,
        component,
        None,
        builder,
        reader,
        model=name if isinstance(name, str) and name else family.name,
        end_ids=tuple(dict.fromkeys(end_ids)),
        licence=licence if isinstance(licence, str) else None,
    )


def _finish(
    checkpoint: Checkpoint,
    family: Family,
    component: Component,
    draft: Component | None,
    builder: Builder,
    reader: ConfigReader,
    *,
    model: str,
    end_ids: tuple[int, ...],
    licence: str | None,
) -> Compiled:
    reader.finish()
    for name in checkpoint.tensors:
        if name not in builder.asked and name not in builder.left:
            builder.refuse(
                name,
                f": nothing in the {family.name} family reads it, so the model would not be "
                f"computed as it was trained",
            )
    _check_rows(builder)
    reader.problems.check()
    components = (component,) if draft is None else (component, draft)
    for described in components:
        for defect in check_geometry(described):
            text = f"{reader.where}: {defect.line()}"
            reader.problems.add(Problem("operation", defect.line(), text))
    reader.problems.check()
    edges = () if draft is None else (Edge(component.id, "final_norm", draft.id),)
    notes = list(builder.notes)
    outer = sum(1 for why in builder.left.values() if why == "not the text model")
    if outer:
        notes.append(f"{outer} tensors outside the text model were left behind")
    return Compiled(
        family=family.name,
        model=model,
        graph=Graph(components, edges),
        bindings=tuple(builder.bindings.values()),
        banks=tuple(builder.banks.values()),
        left=dict(builder.left),
        repeats=dict(builder.repeats),
        keys=tuple(reader.verdicts()),
        notes=tuple(notes),
        end_ids=end_ids,
        licence=licence,
    )


def _check_rows(builder: Builder) -> None:
    """Refuse a tensor of which some rows are read by nothing, or some by two operands."""
    parts: dict[str, tuple[SourceTensor, list[RowSelection]]] = {}
    for binding in builder.bindings.values():
        if binding.rows is not None and builder.sound(binding.source):
            parts.setdefault(binding.source.name, (binding.source, []))[1].append(binding.rows)
    for bank in builder.banks.values():
        for piece in bank.pieces:
            for source, rows in zip(piece.sources, piece.rows, strict=True):
                if not builder.sound(source):
                    continue
                parts.setdefault(source.name, (source, []))[1].append(rows)
    for name, (source, found) in parts.items():
        at = 0
        for first, count in sorted(span for rows in found for span in rows.spans()):
            if first != at:
                break
            at = first + count
        if at != row_count(source.shape):
            builder.refuse(
                name, f": row {at} is not read exactly once by the operands that are made of it"
            )


def _token_ids(
    value: object, key: str, where: str, vocab: int, builder: Builder
) -> tuple[int, ...]:
    """Return the ids of an end-of-text key, which is absent, one id, or a list of them.

    An id beyond the vocabulary, as configurations that keep a default have it, can never come up:
    it is told and left out.
    """
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    kept = []
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or v < 0:
            text = f"{where}: `{key}` is {value!r:.60}, expected token ids from 0 to {vocab - 1}"
            builder.problems.add(Problem("key", key, text))
        elif v < vocab:
            kept.append(v)
        else:
            builder.notes.append(
                f"warning: `{key}` is {v}, which the vocabulary of {vocab} does not have; text "
                f"does not end there"
            )
    return tuple(kept)


def _same_shape(first: SourceTensor, second: SourceTensor) -> bool:
    return (first.shape, first.dtype) == (second.shape, second.dtype)


def _same_bytes(checkpoint: Checkpoint) -> Callable[[SourceTensor, SourceTensor], bool]:
    def same(first: SourceTensor, second: SourceTensor) -> bool:
        if (first.shape, first.encoding) != (second.shape, second.encoding):
            return False
        pairs = zip(checkpoint.chunks(first.name), checkpoint.chunks(second.name), strict=True)
        return all(a == b for a, b in pairs)

    return same


def _readme_licence(readme: Path) -> str | None:
    """Return the ``license`` of a model card's front matter, if it has one."""
    try:
        if not readme.is_file():
            return None
        with readme.open(encoding="utf-8", errors="replace") as stream:
            head = stream.read(65536)
    except OSError:
        return None
    match = re.match(r"---\r?\n(.*?)\r?\n---", head, re.DOTALL)
    found = re.search(r"^license:\s*(\S+)\s*$", match.group(1), re.MULTILINE) if match else None
    return found.group(1).strip("'\"") if found else None
