"""Rotary settings of the two checkpoint formats, judged into :class:`larql.format.graph.Rope`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from larql.errors import CompileError
from larql.format.graph import Rope, RopeScaling
from larql.format.source.config import ConfigReader
from larql.format.source.stretching import gguf_scaling, hugging_face_scaling

__all__ = ["RopeSettings", "gguf_rope", "hugging_face_rope", "hugging_face_rope_by_layer_type"]

_NONE: Mapping[str, str] = {}


@dataclass(frozen=True)
class RopeSettings:
    """Base of the rotary frequencies, how they are stretched, and the share of dims that turn."""

    theta: float
    scaling: RopeScaling | None
    share: float = 1.0

    def rope(self, head_dim: int, layout: Literal["half", "adjacent"] = "half") -> Rope:
        """Return the rope of heads of ``head_dim``, of which the leading share turns."""
        dims = int(head_dim * self.share)
        return Rope(layout=layout, dims=dims, theta=self.theta, scaling=self.scaling)


def hugging_face_rope(
    config: ConfigReader,
    default_theta: float,
    default_share: float | None = None,
    aliases: Mapping[str, str] = _NONE,
) -> RopeSettings:
    """Read rotary settings that hold for all layers.

    Both styles are read: ``rope_parameters``, and the older ``rope_theta`` with ``rope_scaling``.

    Parameters
    ----------
    config : ConfigReader
    default_theta : float
    default_share : float or None
        Share of a head's dimensions that turn where ``partial_rotary_factor`` says nothing; None:
        all of them, and a key that says otherwise is refused.
    aliases : mapping
        Names of rope types that mean another one in this family.

    Raises
    ------
    CompileError
        If the two styles contradict each other, or the rope type is unknown.
    """
    share = None if default_share is None else _stated_once(config, "partial_rotary_factor")
    if share is not None and share > 1.0:
        raise config.failure("partial_rotary_factor", f"is {share!r}, expected at most 1")
    theta = _stated_once(config, "rope_theta")
    scaling = hugging_face_scaling(config.child("rope_scaling"), config, aliases)
    parameters = config.child("rope_parameters")
    if parameters is not None:
        inner_scaling = hugging_face_scaling(parameters, config, aliases)
        if config.has("rope_scaling") and scaling != inner_scaling:
            raise config.contradiction(
                "rope_scaling", "rope_parameters", _in_words(scaling), _in_words(inner_scaling)
            )
        scaling = inner_scaling
    if share is None:
        share = 1.0 if default_share is None else default_share
    return RopeSettings(default_theta if theta is None else theta, scaling, share)


def _stated_once(config: ConfigReader, key: str) -> float | None:
    """Take a number wherever it stands: outside, or in either object of rotary settings."""
    found: dict[str, float] = {}
    for prefix in ("", "rope_parameters", "rope_scaling"):
        reader = config.child(prefix) if prefix else config
        value = None if reader is None else reader.optional_number(key)
        if value is not None:
            found[f"{prefix}.{key}" if prefix else key] = value
    for place, value in found.items():
        first, stated = next(iter(found.items()))
        if value != stated:
            raise config.contradiction(first, place, stated, value)
    return next(iter(found.values()), None)


def hugging_face_rope_by_layer_type(
    config: ConfigReader, layer_types: tuple[str, ...]
) -> dict[str, RopeSettings] | None:
    """Read ``rope_parameters`` that are stated per layer type; None where they are not."""
    parameters = config.child("rope_parameters")
    if parameters is None:
        return None
    settings = {}
    for layer_type in layer_types:
        reader = parameters.child(layer_type)
        if reader is None:
            raise CompileError(
                f"{config.where}: `rope_parameters` says nothing of layer type {layer_type!r}"
            )
        scaling = hugging_face_scaling(reader, config)
        settings[layer_type] = RopeSettings(reader.number("rope_theta"), scaling)
    return settings


def _in_words(scaling: RopeScaling | None) -> str:
    return "no scaling" if scaling is None else f"{scaling.kind} by {scaling.factor:g}"


def gguf_rope(config: ConfigReader, default_theta: float) -> RopeSettings:
    """Read the ``rope.*`` keys of a GGUF file, relative to the architecture's prefix.

    Raises
    ------
    CompileError
        If the scaling type is unknown.
    """
    return RopeSettings(config.number("rope.freq_base", default_theta), gguf_scaling(config))
