"""Sites: where the carrier is written, and how they are named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from larql.errors import UsageError
from larql.runtime.plan import Plan

__all__ = ["EMBED", "WriteSite", "find_site", "parse_positions", "parse_site", "write_sites"]

EMBED = "embed"
_NAME = re.compile(r"([0-9]{1,6})\.(attention|ffn|per_layer)")
_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


@dataclass(frozen=True)
class WriteSite:
    """Where one write goes.

    Attributes
    ----------
    layer : int or None
        Index of the layer; None for what enters the first executed layer.
    site : str
        ``embed``, ``attention``, ``ffn`` or ``per_layer``.
    """

    layer: int | None
    site: str

    def __str__(self) -> str:
        """Spell it: ``embed``, ``12.ffn``."""
        return self.site if self.layer is None else f"{self.layer}.{self.site}"


def write_sites(plan: Plan) -> tuple[WriteSite, ...]:
    """Return the sites of a plan's writes, in execution order; the first is ``embed``."""
    blocks = (WriteSite(layer.index, b.site) for layer in plan.layers for b in layer.blocks)
    return (WriteSite(None, EMBED), *blocks)


def parse_site(text: str, what: str) -> WriteSite:
    """Read a site's name.

    Raises
    ------
    UsageError
        If it is no name of a site; ``what`` begins the message.
    """
    if text == EMBED:
        return WriteSite(None, EMBED)
    found = _NAME.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{what}: {text!r} is no site; write embed, LAYER.attention, LAYER.ffn, or "
            f"LAYER.per_layer where layers have it, for example 12.ffn"
        )
    return WriteSite(int(found[1]), found[2])


def find_site(sites: Sequence[WriteSite], wanted: WriteSite, what: str) -> int:
    """Return the number of the write at a site.

    Raises
    ------
    UsageError
        If the run does not have it; ``what`` begins the message.
    """
    if wanted not in sites:
        raise UsageError(
            f"{what}: the run has no site {wanted}; its writes go from {sites[0]} to {sites[-1]}"
        )
    return sites.index(wanted)


def parse_positions(text: str, what: str) -> range | None:
    """Read ``all``, a position, or a half-open range ``a:b``; None is all.

    Raises
    ------
    UsageError
        If it is none of these; ``what`` begins the message.
    """
    if text == "all":
        return None
    found = _RANGE.fullmatch(text)
    if found is None or (found[2] is not None and int(found[1]) >= int(found[2])):
        raise UsageError(
            f"{what}: {text!r} names no positions; write all, a position, or a:b with a < b, where "
            f"b is not included"
        )
    first = int(found[1])
    return range(first, first + 1 if found[2] is None else int(found[2]))
