"""Names that people gave to features and to groups of them; a container carries them as text.

``feature_labels.json`` is an object: ``"L<layer>_F<feature>"`` to a label. What is shown of
``relation_clusters.json`` is ``labels``, the names of the groups, with ``counts``, how many
features each has, where there are as many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from larql.errors import ContainerError
from larql.format.container import Container
from larql.format.index import load_json
from larql.format.json_object import JsonObject
from larql.format.slicing.presets import LABEL_FILES

__all__ = ["Labels", "read_labels"]

_KEY = re.compile(r"L(\d{1,9})_F(\d{1,9})")
_FEATURES, _RELATIONS = LABEL_FILES


@dataclass(frozen=True)
class Labels:
    """What a container calls its features.

    Attributes
    ----------
    features : mapping
        Layer and dense feature to its label.
    relations : tuple of (str, int or None)
        Groups of features, and how many are in each.
    """

    features: Mapping[tuple[int, int], str] = field(default_factory=dict)
    relations: tuple[tuple[str, int | None], ...] = ()

    def of(self, bank: str, layer: int, feature: int) -> str | None:
        """Return the label of a feature; experts have none."""
        if bank.rsplit("/", 1)[-1] not in ("ffn", "shared"):
            return None
        return self.features.get((layer, feature))


def read_labels(container: Container) -> Labels | None:
    """Return the labels that a container carries, None where it carries none.

    Raises
    ------
    ContainerError
        If a file of them is damaged, or not what it is said to be.
    """
    files = container.text_files()
    if not {_FEATURES, _RELATIONS} & files.keys():
        return None
    features: dict[tuple[int, int], str] = {}
    if _FEATURES in files:
        where = str(files[_FEATURES])
        container.check_bytes(_FEATURES)
        for key, label in load_json(files[_FEATURES]).items():
            match = _KEY.fullmatch(key)
            if match is None or not isinstance(label, str):
                raise ContainerError(
                    f"{where}: {key!r:.60} is {label!r:.60}, expected L<layer>_F<feature> and a "
                    f"text; mend the file, or leave the part `labels` out"
                )
            features[int(match[1]), int(match[2])] = label
    if _RELATIONS not in files:
        return Labels(features)
    container.check_bytes(_RELATIONS)
    top = JsonObject(load_json(files[_RELATIONS]), "", str(files[_RELATIONS]))
    names = top.texts("labels")
    counts = top.document.get("counts")
    known = (
        counts
        if isinstance(counts, list) and len(counts) == len(names) and _are_counts(counts)
        else [None] * len(names)
    )
    return Labels(features, tuple(zip(names, known, strict=True)))


def _are_counts(values: list[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)
