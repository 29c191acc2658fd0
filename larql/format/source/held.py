"""Which families this build compiles, and what they have been held to.

``oracles.json`` beside this module says how far this build's logits are from those of another
program, for each recorded checkpoint; ``scripts/oracles/results.py`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from larql.format.source.builder import Family
from larql.format.source.families import FAMILIES

__all__ = ["BACKENDS", "FamilyReport", "OracleResult", "reports"]

RESULTS = "oracles.json"
BACKENDS = ("reference", "production")
CLOSE = 2e-4
"""What logits may be off at most, as a share of the largest, where a backend executes a family."""


@dataclass(frozen=True)
class OracleResult:
    """One recorded checkpoint.

    Attributes
    ----------
    oracle : str
        Its name: the family, and the variant behind a dash.
    family : str
    dtype : str
        How its weights are stored.
    transformers : str
        Version of the program that was recorded.
    recorded_sha256 : str
        Hash of what was recorded.
    operations : tuple of str
        Kinds of operations in its layers, and of its ropes.
    errors : mapping
        Backend to its largest difference from the recorded logits, as a share of the largest of
        them, rounded up to one digit. A backend that refuses what the checkpoint compiles to has
        none.
    """

    oracle: str
    family: str
    dtype: str
    transformers: str
    recorded_sha256: str
    operations: tuple[str, ...]
    errors: Mapping[str, float]


@dataclass(frozen=True)
class FamilyReport:
    """A family of the registry.

    Attributes
    ----------
    name : str
    model_types : tuple of str
        ``model_type`` values of ``config.json``.
    architectures : tuple of str
        ``general.architecture`` values of GGUF files.
    compiles : tuple of str
        Kinds of checkpoints that this build compiles, ``safetensors`` and ``gguf``, and ``mtp``
        where it makes a component of a draft head that one carries.
    oracles : tuple of OracleResult
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    compiles: tuple[str, ...]
    oracles: tuple[OracleResult, ...]

    @property
    def executes(self) -> tuple[str, ...]:
        """Backends that computed every oracle of the family, and none further off than allowed."""
        return tuple(
            backend
            for backend in BACKENDS
            if self.oracles
            and all(oracle.errors.get(backend, 1.0) <= CLOSE for oracle in self.oracles)
        )

    @property
    def operations(self) -> tuple[str, ...]:
        """Kinds of operations that its oracles' layers are made of."""
        return tuple(dict.fromkeys(op for oracle in self.oracles for op in oracle.operations))

    def error(self, backend: str) -> float | None:
        """Return the largest error of a backend over all oracles; None without oracles."""
        found = (oracle.errors[backend] for oracle in self.oracles if backend in oracle.errors)
        return max(found, default=None)


def _compiles(family: Family) -> tuple[str, ...]:
    forms = {"safetensors": True, "gguf": family.gguf is not None, "mtp": family.drafts is not None}
    return tuple(form for form, found in forms.items() if found)


def reports() -> tuple[FamilyReport, ...]:
    """Return a report on every family of the registry, by name."""
    stored = json.loads(files(__package__).joinpath(RESULTS).read_text(encoding="utf-8"))
    results = [
        OracleResult(**{**entry, "operations": tuple(entry["operations"])}) for entry in stored
    ]
    return tuple(
        FamilyReport(
            family.name,
            family.model_types,
            family.architectures,
            _compiles(family),
            tuple(result for result in results if result.family == family.name),
        )
        for family in sorted(FAMILIES, key=lambda family: family.name)
    )
