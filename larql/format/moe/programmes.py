"""The programmes that a bank of experts can run, and the regions that each needs.

Ids and names are frozen: a programme that computes something else gets a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from larql.format.lyrw.codes import Role

__all__ = ["PROGRAMMES", "Closest", "InputSpace", "Programme", "programme_by_id"]

InputSpace = Literal["hidden", "latent"]
Layout = tuple[Role, ...]

_SEPARATE: Layout = (Role.GATE, Role.UP, Role.DOWN)
_FUSED: Layout = (Role.GATE_UP_FUSED, Role.DOWN)


@dataclass(frozen=True)
class Closest:
    """The layout that a bank which satisfies none comes nearest to.

    Attributes
    ----------
    layout, missing : tuple of Role
        In declaration order.
    """

    layout: Layout
    missing: Layout

    def text(self) -> str:
        """Return the sentence for a message."""
        accepted = " + ".join(role.name.lower() for role in self.layout)
        lacking = ", ".join(role.name.lower() for role in self.missing)
        return f"closest accepted layout: {accepted}; missing {lacking}"


@dataclass(frozen=True)
class Programme:
    """What a bank computes.

    Attributes
    ----------
    number : int
        Frozen id.
    name : str
        Frozen name, as written in a manifest.
    layouts : tuple of tuple of Role
        Alternatives, in declaration order: the roles of any one of them are enough.
    input_space : str
        ``hidden`` where experts read the carrier's width, ``latent`` where a transform comes
        before and after them.
    """

    number: int
    name: str
    layouts: tuple[Layout, ...]
    input_space: InputSpace = "hidden"

    def satisfied(self, roles: Collection[int]) -> tuple[Layout, ...]:
        """Return every layout whose roles are all present, in declaration order."""
        return tuple(layout for layout in self.layouts if set(layout) <= set(roles))

    def closest(self, roles: Collection[int]) -> Closest | None:
        """Return the layout that lacks the fewest roles, None if one is satisfied.

        Among layouts that lack equally many the first declared is returned.
        """
        if self.satisfied(roles):
            return None
        options = [
            Closest(layout, tuple(role for role in layout if role not in roles))
            for layout in self.layouts
        ]
        return min(options, key=lambda option: len(option.missing))


PROGRAMMES: Mapping[str, Programme] = MappingProxyType(
    {
        programme.name: programme
        for programme in (
            Programme(0, "gated-mlp-v1", (_SEPARATE, _FUSED)),
            Programme(1, "gated-mlp-fused-fc1-v1", (_FUSED,)),
            Programme(2, "gpt-oss-expert-v1", ((*_FUSED, Role.BIAS),)),
            Programme(3, "shared-routed-mlp-v1", (_SEPARATE, _FUSED)),
            Programme(4, "latent-moe-v1", (_SEPARATE, _FUSED), "latent"),
        )
    }
)
"""Every programme, by name, in the order of the ids."""


def programme_by_id(number: int) -> Programme | None:
    """Return the programme of a frozen id, None if there is none."""
    for programme in PROGRAMMES.values():
        if programme.number == number:
            return programme
    return None
