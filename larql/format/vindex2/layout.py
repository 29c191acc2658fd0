"""The files of a VINDEX2 directory, the part of a model that each is, and the level of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from larql.format.index import INDEX_NAME
from larql.format.tokenizer.files import (
    COMPANIONS,
    LICENCE_FILES,
    SOURCE_CONFIG,
    TOKENIZER,
)

__all__ = [
    "ATTENTION",
    "DOWN",
    "DOWN_META",
    "EMBEDDINGS",
    "GATE",
    "HEAD",
    "LABELS",
    "MANIFEST",
    "NORMS",
    "README_FILES",
    "ROUTER",
    "TENSOR_FILES",
    "TEXT_FILES",
    "UP",
    "FfnLayout",
    "Level",
    "Part",
    "is_layer_file",
    "needed_level",
    "part_of",
    "parts_of",
]

MANIFEST = "weight_manifest.json"
GATE = "gate_vectors.bin"
EMBEDDINGS = "embeddings.bin"
DOWN_META = "down_meta.bin"
ATTENTION = "attn_weights.bin"
NORMS = "norms.bin"
UP = "up_weights.bin"
DOWN = "down_weights.bin"
HEAD = "lm_head.bin"
ROUTER = "router_weights.bin"
LABELS = ("feature_labels.json", "relation_clusters.json")
README_FILES = ("README.md", *LICENCE_FILES)
TEXT_FILES = (TOKENIZER, *COMPANIONS, SOURCE_CONFIG)

TENSOR_FILES = (ATTENTION, NORMS, ROUTER, UP, DOWN, HEAD)
"""Files whose tensors :data:`MANIFEST` lists, in the order in which they are written."""


class Level(StrEnum):
    """How much of a model a directory has; each level has all that the one before it has."""

    BROWSE = "browse"
    ATTENTION = "attention"
    INFERENCE = "inference"
    ALL = "all"

    def includes(self, other: Level) -> bool:
        """Return whether what belongs to another level is there at this one."""
        order = list(Level)
        return order.index(self) >= order.index(other)


class FfnLayout(StrEnum):
    """Where dense feed-forward networks lie, in place of ``up_weights`` and ``down_weights``."""

    PER_LAYER = "per_layer"


class Part(StrEnum):
    """Parts of a model by which slices are made; ``index`` belongs to every slice."""

    INDEX = "index"
    EMBED = "embed"
    GATE = "gate"
    DOWN_META = "down_meta"
    NORMS = "norms"
    ATTN = "attn"
    FFN = "ffn"
    EXPERT_LAYERS = "expert_layers"
    ROUTER = "router"
    LM_HEAD = "lm_head"
    TOKENIZER = "tokenizer"
    MANIFEST = "manifest"
    LABELS = "labels"
    README = "readme"


_PARTS: Mapping[str, Part] = {
    INDEX_NAME: Part.INDEX,
    EMBEDDINGS: Part.EMBED,
    GATE: Part.GATE,
    DOWN_META: Part.DOWN_META,
    NORMS: Part.NORMS,
    ATTENTION: Part.ATTN,
    UP: Part.FFN,
    DOWN: Part.FFN,
    ROUTER: Part.ROUTER,
    HEAD: Part.LM_HEAD,
    MANIFEST: Part.MANIFEST,
    **dict.fromkeys(LABELS, Part.LABELS),
    **dict.fromkeys(README_FILES, Part.README),
    **dict.fromkeys(TEXT_FILES, Part.TOKENIZER),
}
_LEVELS: Mapping[Part, Level] = {
    Part.NORMS: Level.ATTENTION,
    Part.ATTN: Level.ATTENTION,
    Part.MANIFEST: Level.ATTENTION,
    Part.FFN: Level.INFERENCE,
    Part.EXPERT_LAYERS: Level.INFERENCE,
    Part.ROUTER: Level.INFERENCE,
    Part.LM_HEAD: Level.ALL,
}


def is_layer_file(name: str) -> bool:
    """Return whether a name is one of ``layers/layer_NN.weights``."""
    return name.startswith("layers/") and name.endswith(".weights")


def part_of(name: str, *, routed: bool) -> Part | None:
    """Return the part that a file belongs to, None for a file that this build does not know.

    Parameters
    ----------
    name : str
        Relative to the directory.
    routed : bool
        Whether the model has experts: then ``layers/`` is theirs, else it is the dense networks'.
    """
    if is_layer_file(name):
        return Part.EXPERT_LAYERS if routed else Part.FFN
    return _PARTS.get(name)


def parts_of(names: Iterable[str]) -> dict[Part, tuple[str, ...]]:
    """Return the files of each part, of the names that a directory's index lists.

    Parts of which there is no file are left out, and so are files of no part. A model has experts
    if and only if it has routers.
    """
    listed = sorted(names)
    routed = ROUTER in listed
    found: dict[Part, list[str]] = {}
    for name in listed:
        part = part_of(name, routed=routed)
        if part is not None:
            found.setdefault(part, []).append(name)
    return {part: tuple(found[part]) for part in Part if part in found}


def needed_level(name: str) -> Level:
    """Return the lowest level that has a file."""
    part = part_of(name, routed=False)
    return Level.BROWSE if part is None else _LEVELS.get(part, Level.BROWSE)
