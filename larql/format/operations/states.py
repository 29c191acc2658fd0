"""Continuation state: what an operation keeps between positions, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Site

__all__ = ["KvRows", "StateSpec"]


@dataclass(frozen=True)
class KvRows:
    """Continuation state of one attention layer: one key and one value row per position.

    ``span`` is ``full``, or ``window`` with ``window`` positions visible to a query.
    """

    site: ClassVar[Site] = "attention"

    layer: int
    heads: int
    key_dim: int
    value_dim: int
    span: Literal["full", "window"]
    window: int | None = None


StateSpec = KvRows
