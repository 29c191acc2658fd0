"""Continuation state: what an operation keeps between positions, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from larql.format.operations.contract import Site

__all__ = ["ConvolutionRows", "KvRows", "LatentRows", "Recurrent", "StateSpec"]


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


@dataclass(frozen=True)
class LatentRows:
    """Continuation state of one latent attention layer: one row for each position.

    A row is a latent of ``latent_dim``, and a rotated key of ``rope_dim`` that all heads share.
    """

    site: ClassVar[Site] = "attention"

    layer: int
    latent_dim: int
    rope_dim: int


@dataclass(frozen=True)
class Recurrent:
    """Continuation state of one recurrent layer: a matrix ``[key_dim, value_dim]`` for each head.

    Every position changes all of it; its size does not depend on how many there were.
    """

    site: ClassVar[Site] = "attention"

    layer: int
    heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class ConvolutionRows:
    """Continuation state of one causal convolution: the inputs of the last ``rows`` positions.

    They are inputs before convolution and activation, one row of ``channels`` for each position,
    zeros for those before the first. A block may have several at its site, in the order in which
    its operation names them.
    """

    layer: int
    site: Site
    channels: int
    rows: int


StateSpec = KvRows | LatentRows | Recurrent | ConvolutionRows
