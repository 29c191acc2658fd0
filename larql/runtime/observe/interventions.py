"""Interventions: declared changes of the carrier at a site and positions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.untrusted import read_json_object
from larql.runtime.observe.capture import read_capture
from larql.runtime.observe.sites import WriteSite, parse_positions, parse_site

__all__ = ["Intervention", "Kind", "Target", "interventions_sha256", "load_interventions"]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Kind = Literal["zero", "add", "replace", "scale"]
Target = Literal["write", "carrier"]

_FIELDS = {"site", "positions", "do", "target", "factor", "vector", "capture"}
_DEFAULT_TARGET: Mapping[str, Target] = {
    "zero": "write",
    "scale": "write",
    "add": "carrier",
    "replace": "carrier",
}


@dataclass(frozen=True, eq=False)
class Intervention:
    """One change, made in float64 and rounded once to the carrier's float32.

    Attributes
    ----------
    site : WriteSite
    positions : range or None
        None: all.
    do : {"zero", "add", "replace", "scale"}
    target : {"write", "carrier"}
        What is changed: what the block adds to the carrier, or the carrier after it.
    factor : float or None
        Of ``scale``.
    vector : float64 ``[hidden]`` or None
        Of ``add`` and ``replace``.
    """

    site: WriteSite
    positions: range | None
    do: Kind
    target: Target
    factor: float | None = None
    vector: Float64 | None = None

    def rows(self, start: int, count: int) -> range:
        """Return which of the positions ``start .. start + count`` are changed, from 0."""
        if self.positions is None:
            return range(count)
        first, last = self.positions.start - start, self.positions.stop - start
        return range(max(0, first), min(count, last))

    def apply(self, before: Float32, after: Float32) -> None:
        """Change carriers after the site's write, ``[n, hidden]``, in place."""
        with np.errstate(all="ignore"):
            if self.target == "carrier":
                after[...] = self._changed(after.astype(np.float64))
            else:
                base = before.astype(np.float64)
                after[...] = base + self._changed(after.astype(np.float64) - base)

    def _changed(self, value: Float64) -> Float64:
        if self.do == "zero":
            return np.zeros_like(value)
        if self.factor is not None:
            return value * self.factor
        assert self.vector is not None
        if self.do == "add":
            return value + self.vector
        return np.broadcast_to(self.vector, value.shape)

    def declaration(self) -> dict[str, object]:
        """Return it as JSON, with a hash in place of the vector."""
        positions = self.positions
        digest = None
        if self.vector is not None:
            digest = hashlib.sha256(self.vector.astype("<f8").tobytes()).hexdigest()
        return {
            "site": str(self.site),
            "positions": "all" if positions is None else f"{positions.start}:{positions.stop}",
            "do": self.do,
            "target": self.target,
            "factor": self.factor,
            "vector_sha256": digest,
        }


def interventions_sha256(interventions: Sequence[Intervention]) -> str:
    """Return the hash of declarations, vectors included."""
    text = json.dumps([made.declaration() for made in interventions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load_interventions(path: Path, hidden: int) -> tuple[Intervention, ...]:
    """Read a declaration file: ``{"interventions": [{…}, …]}``.

    Parameters
    ----------
    path : Path
        Captures that it names are looked for beside it.
    hidden : int
        Width of the carrier.

    Raises
    ------
    UsageError
        Naming the entry and what is wrong with it.
    """
    document = read_json_object(path, UsageError, infinity=False)
    if document.keys() != {"interventions"}:
        raise UsageError(f'{path}: expected {{"interventions": [...]}} and nothing else')
    entries = document["interventions"]
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: interventions: expected a list of at least one")
    return tuple(
        _intervention(entry, f"{path}: intervention {number}", path.parent, hidden)
        for number, entry in enumerate(entries)
    )


def _intervention(entry: object, where: str, directory: Path, hidden: int) -> Intervention:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected an object, found {entry!r:.40}")
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise UsageError(
            f"{where}: unknown field {min(unknown)!r}; known are {', '.join(sorted(_FIELDS))}"
        )
    do = _choice(entry, "do", get_args(Kind), None, where)
    target = _choice(entry, "target", get_args(Target), _DEFAULT_TARGET[do], where)
    site = parse_site(_text(entry, "site", None, where), where)
    positions = parse_positions(_text(entry, "positions", "all", where), where)
    given = entry.keys() & {"factor", "vector", "capture"}
    wanted = {"zero": set(), "scale": {"factor"}}.get(do, {"vector", "capture"})
    if len(given) != (1 if wanted else 0) or not given <= wanted:
        raise UsageError(
            f"{where}: {do} takes {' or '.join(sorted(wanted)) or 'no vector and no factor'}, "
            f"found {' and '.join(sorted(given)) or 'none'}"
        )
    factor, vector = None, None
    if "factor" in given:
        factor = _finite(entry["factor"], f"{where}: factor")
    elif "vector" in given:
        vector = _vector(entry["vector"], f"{where}: vector", hidden)
    elif "capture" in given:
        vector = _captured(entry["capture"], where, directory, hidden)
    return Intervention(site, positions, do, target, factor, vector)  # type: ignore[arg-type]


def _captured(named: object, where: str, directory: Path, hidden: int) -> Float64:
    fields = {"file", "tensor"}
    if not isinstance(named, dict) or named.keys() != fields:
        raise UsageError(f"{where}: capture: expected file and tensor, found {named!r:.40}")
    file, tensor = (_text(named, key, None, f"{where}: capture") for key in sorted(fields))
    vector = read_capture(directory / file, tensor)
    if vector.shape != (hidden,):
        raise UsageError(
            f"{where}: capture {tensor} has shape {list(vector.shape)}, expected [{hidden}]"
        )
    return vector


def _text(entry: Mapping[str, Any], name: str, default: str | None, where: str) -> str:
    value = entry.get(name, default)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {name}: expected a text, found {value!r:.40}")
    return value


def _choice(
    entry: Mapping[str, Any], name: str, among: Sequence[str], default: str | None, where: str
) -> str:
    value = _text(entry, name, default, where)
    if value not in among:
        raise UsageError(f"{where}: {name} is {value!r:.40}, expected one of {', '.join(among)}")
    return value


def _finite(value: object, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):  # type: ignore[arg-type]
        raise UsageError(f"{where}: expected a finite number, found {value!r:.40}")
    return float(value)  # type: ignore[arg-type]


def _vector(value: object, where: str, hidden: int) -> Float64:
    if not isinstance(value, list) or len(value) != hidden:
        size = len(value) if isinstance(value, list) else "no list"
        raise UsageError(f"{where}: expected {hidden} numbers, found {size}")
    return np.array([_finite(number, where) for number in value], np.float64)
