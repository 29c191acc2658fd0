"""The parts of a model by which slices are made, and the presets that name several."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from larql.format.tokenizer.files import COMPANIONS, LICENCE_FILES, TOKENIZER

__all__ = ["DOWN_META", "EVERYTHING", "LABEL_FILES", "PRESETS", "Part", "file_part"]

DOWN_META = "down_meta.bin"
LABEL_FILES = ("feature_labels.json", "relation_clusters.json")


class Part(StrEnum):
    """What can be asked for by name."""

    EMBED = "embed"
    NORMS = "norms"
    ATTN = "attn"
    GATE = "gate"
    FFN = "ffn"
    ROUTER = "router"
    EXPERT_LAYERS = "expert_layers"
    HEAD = "head"
    DOWN_META = "down_meta"
    TOKENIZER = "tokenizer"
    MANIFEST = "manifest"
    LABELS = "labels"
    README = "readme"
    OTHER = "other"


EVERYTHING = frozenset(Part)

PRESETS: Mapping[str, frozenset[Part]] = MappingProxyType(
    {
        "client": frozenset(
            {Part.EMBED, Part.NORMS, Part.ATTN, Part.TOKENIZER, Part.MANIFEST, Part.LABELS}
        ),
        "attn": frozenset({Part.NORMS, Part.ATTN, Part.MANIFEST, Part.LABELS}),
        "embed": frozenset({Part.EMBED, Part.TOKENIZER, Part.LABELS}),
        "server": frozenset(
            {
                Part.EMBED,
                Part.NORMS,
                Part.GATE,
                Part.DOWN_META,
                Part.FFN,
                Part.TOKENIZER,
                Part.MANIFEST,
                Part.LABELS,
            }
        ),
        "browse": frozenset(
            {Part.EMBED, Part.GATE, Part.DOWN_META, Part.TOKENIZER, Part.LABELS, Part.README}
        ),
        "router": frozenset({Part.ROUTER, Part.TOKENIZER, Part.MANIFEST, Part.LABELS, Part.README}),
        "expert-server": frozenset(
            {
                Part.EMBED,
                Part.NORMS,
                Part.FFN,
                Part.EXPERT_LAYERS,
                Part.TOKENIZER,
                Part.MANIFEST,
            }
        ),
        "all": EVERYTHING,
    }
)
"""The presets by name, each with its parts."""


def file_part(name: str) -> Part | None:
    """Return the part that a file outside of weights, graph and manifest belongs to.

    None: every slice carries it, as licence texts are.
    """
    if name in LICENCE_FILES:
        return None
    if name == TOKENIZER or name in COMPANIONS:
        return Part.TOKENIZER
    if name == DOWN_META:
        return Part.DOWN_META
    if name in LABEL_FILES:
        return Part.LABELS
    return Part.README if name == "README.md" else Part.OTHER
