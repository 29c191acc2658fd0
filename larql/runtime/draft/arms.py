"""Two dumps that differ in one thing, and in nothing else that decides a number."""

from __future__ import annotations

from collections.abc import Mapping

from larql.errors import UsageError
from larql.runtime.dump_reader import LogitDump

__all__ = ["SUBJECTS", "check_arms", "subject_value"]

# What may be compared, and the fields of a sidecar that say which it was.
SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "depth": ("draft_depth", "executed_layers"),
    "container": ("container",),
    "backend": ("backend", "numerics"),
    "activations": ("activations", "numerics"),
    "kv": ("kv", "numerics"),
}
# Everything that decides a number. What is left out changes no bit: threads, chunks, room for
# positions, the instruction set, times, sizes.
_DECIDES = (
    "container",
    "component",
    "backend",
    "numerics",
    "activations",
    "kv",
    "draft_depth",
    "executed_layers",
    "rope_list",
    "max_format",
    "vocab",
    "tokens",
)
# The reference computes with NumPy, which may round otherwise in another version or machine.
_ENVIRONMENT = {"production": ("tool",), "reference": ("tool", "numpy", "machine")}


def check_arms(target: LogitDump, draft: LogitDump, subject: str) -> None:
    """Refuse two dumps that differ in anything but what is compared.

    Parameters
    ----------
    target, draft : LogitDump
    subject : str
        A key of ``SUBJECTS``.

    Raises
    ------
    UsageError
        Naming the first field that differs, and what the two sidecars say.
    """
    if target.shape != draft.shape:
        raise UsageError(
            f"{draft.path}: has the shape {list(draft.shape)}, and {target.path} has "
            f"{list(target.shape)}; dump both from the same tokens"
        )
    compared = SUBJECTS[subject]
    for field in _DECIDES:
        if field not in compared:
            _same(target, draft, field, _decisive(target, field), _decisive(draft, field), subject)
    names = {
        name
        for dump in (target, draft)
        for name in _ENVIRONMENT.get(str(dump.sidecar.get("backend")), _ENVIRONMENT["reference"])
    }
    for name in sorted(names):
        here, there = _environment(target, name), _environment(draft, name)
        _same(target, draft, f"environment.{name}", here, there, subject)


def subject_value(dump: LogitDump, subject: str) -> object:
    """Return what a dump is in what is compared, in a word."""
    if subject == "depth":
        layers = dump.sidecar.get("executed_layers")
        return len(layers) if isinstance(layers, list) else None
    return _decisive(dump, SUBJECTS[subject][0])


def _decisive(dump: LogitDump, field: str) -> object:
    value = dump.sidecar.get(field)
    if field != "container" or not isinstance(value, dict):
        return value
    # Two extractions of one checkpoint with the same options have the same fingerprint.
    fingerprint, profile = value.get("fingerprint"), value.get("profile")
    return fingerprint if profile in (None, "default") else f"{fingerprint} ({profile})"


def _environment(dump: LogitDump, name: str) -> object:
    found = dump.sidecar.get("environment")
    return found.get(name) if isinstance(found, dict) else None


def _same(
    target: LogitDump, draft: LogitDump, field: str, here: object, there: object, subject: str
) -> None:
    if here != there or type(here) is not type(there):
        raise UsageError(
            f"{draft.path}: its sidecar's {field} is {there!r:.60}, and that of {target.path} is "
            f"{here!r:.60}; arms that are compared by {subject} may differ in nothing else"
        )
