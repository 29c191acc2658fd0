"""The files of a VINDEX2 directory, the part of a model that each is, and the level of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from larql.format.slicing.presets import DOWN_META, LABEL_FILES, Part, file_part
from larql.format.tokenizer.files import COMPANIONS, LICENCE_FILES, SOURCE_CONFIG, TOKENIZER

__all__ = [
    "ATTENTION",
    "DOWN",
    "DOWN_META",
    "EMBEDDINGS",
    "GATE",
    "HEAD",
    "MANIFEST",
    "NORMS",
    "ROUTER",
    "TENSOR_FILES",
    "TEXT_FILES",
    "UP",
    "FfnLayout",
    "Level",
    "is_data",
    "is_layer_file",
    "needed_level",
    "part_of",
    "parts_of",
]

MANIFEST = "weight_manifest.json"
GATE = "gate_vectors.bin"
EMBEDDINGS = "embeddings.bin"
ATTENTION = "attn_weights.bin"
NORMS = "norms.bin"
UP = "up_weights.bin"
DOWN = "down_weights.bin"
HEAD = "lm_head.bin"
ROUTER = "router_weights.bin"
TEXT_FILES = (TOKENIZER, *COMPANIONS, SOURCE_CONFIG, *LABEL_FILES, "README.md", *LICENCE_FILES)

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


_DATA: Mapping[str, Part] = {
    EMBEDDINGS: Part.EMBED,
    GATE: Part.GATE,
    DOWN_META: Part.DOWN_META,
    NORMS: Part.NORMS,
    ATTENTION: Part.ATTN,
    UP: Part.FFN,
    DOWN: Part.FFN,
    ROUTER: Part.ROUTER,
    HEAD: Part.HEAD,
}
_LEVELS: Mapping[Part, Level] = {
    Part.NORMS: Level.ATTENTION,
    Part.ATTN: Level.ATTENTION,
    Part.MANIFEST: Level.ATTENTION,
    Part.FFN: Level.INFERENCE,
    Part.EXPERT_LAYERS: Level.INFERENCE,
    Part.ROUTER: Level.INFERENCE,
    Part.HEAD: Level.ALL,
}


def is_layer_file(name: str) -> bool:
    """Return whether a name is one of ``layers/layer_NN.weights``."""
    return name.startswith("layers/") and name.endswith(".weights")


def is_data(name: str) -> bool:
    """Return whether a file holds numbers of the model, or which tokens features write."""
    return name in _DATA or is_layer_file(name)


def part_of(name: str, *, routed: bool) -> Part | None:
    """Return the part that a file belongs to; None: every slice carries it, as licence texts are.

    Parameters
    ----------
    name : str
        Relative to the directory.
    routed : bool
        Whether the layer, or the model where no layer is meant, has experts: then its file in
        ``layers/`` is theirs, else it is the dense network's.
    """
    if is_layer_file(name):
        return Part.EXPERT_LAYERS if routed else Part.FFN
    if name == MANIFEST:
        return Part.MANIFEST
    return _DATA.get(name) or file_part(name)


def parts_of(names: Iterable[str]) -> dict[Part, tuple[str, ...]]:
    """Return the files of each part, of the names that a directory's index lists.

    Parts of which there is no file are left out, and so are licence texts. A model has experts if
    and only if it has routers.
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
