"""Rotary settings of the two checkpoint formats, judged into :class:`larql.format.graph.Rope`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from larql.format.graph import Rope, RopeScaling
from larql.format.source.config import ConfigReader
from larql.format.source.stretching import gguf_scaling, hugging_face_scaling

__all__ = ["RopeSettings", "gguf_rope", "hugging_face_rope", "hugging_face_rope_by_layer_type"]

_NONE: Mapping[str, str] = {}
_WIDTHS = ("hidden_size", "num_attention_heads", "head_dim")  # what a head's width may rest on


@dataclass(frozen=True)
class RopeSettings:
    """Base of the rotary frequencies, how they are stretched, and the share of dims that turn.

    Attributes
    ----------
    theta : float
    scaling : RopeScaling or None
    share : float
    places : tuple of ConfigReader
        Where the settings may stand, for error texts; the first one is around the others.
    widths : tuple of str
        Keys that state how wide heads are; the last is there where the others are not.
    """

    theta: float
    scaling: RopeScaling | None
    places: tuple[ConfigReader, ...] = field(repr=False, compare=False)
    share: float = 1.0
    widths: tuple[str, ...] = ("head_dim", "num_attention_heads")

    def rope(
        self, width: int, layout: Literal["half", "adjacent"] = "half", key: str | None = None
    ) -> Rope:
        """Return the rope of heads of a width, of which the leading share turns.

        Parameters
        ----------
        width : int
        layout : {"half", "adjacent"}
        key : str or None
            The key that states the width, where it is none of ``widths``.

        Where no whole pairs turn, or not as many as are stretched by numbers of their own, that is
        recorded as a problem of a key.
        """
        dims = int(width * self.share)
        if dims % 2 or dims == 0:
            widths = self.widths if key is None else (key,)
            self._refuse(
                widths if self.share == 1.0 else ("partial_rotary_factor", *widths),
                f"leaves {dims} of a head's {width} numbers to turn, expected an even count",
            )
            dims = 2
        if self.scaling is not None:
            lists = (self.scaling.divisors, self.scaling.long_divisors)
            for name, found in zip(("short_factor", "long_factor"), lists, strict=True):
                if found is not None and len(found) != dims // 2:
                    self._refuse(
                        (name,), f"has {len(found)} entries, expected {dims // 2}, one for a pair"
                    )
        return Rope(layout=layout, dims=dims, theta=self.theta, scaling=self.scaling)

    def _refuse(self, keys: tuple[str, ...], problem: str) -> None:
        """Refuse the first of some keys that is stated, or the last of them."""
        for key in keys:
            for place in self.places:
                if place.has(key):
                    place.refuse(key, problem, *_WIDTHS)
                    return
        self.places[0].refuse(keys[-1], problem, *_WIDTHS)


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
        config.refuse("partial_rotary_factor", f"is {share!r}, expected at most 1")
        share = None
    theta = _stated_once(config, "rope_theta")
    scaling = hugging_face_scaling(config.child("rope_scaling"), config, aliases)
    parameters = config.child("rope_parameters")
    if parameters is not None:
        inner_scaling = hugging_face_scaling(parameters, config, aliases)
        if config.has("rope_scaling") and scaling != inner_scaling:
            config.contradiction(
                "rope_scaling", "rope_parameters", _in_words(scaling), _in_words(inner_scaling)
            )
        scaling = inner_scaling
    if share is None:
        share = 1.0 if default_share is None else default_share
    places = tuple(_places(config).values())
    return RopeSettings(default_theta if theta is None else theta, scaling, places, share)


def _places(config: ConfigReader) -> dict[str, ConfigReader]:
    """Return where rotary settings may stand, by what goes before a key there."""
    inner = {f"{name}.": config.child(name) for name in ("rope_parameters", "rope_scaling")}
    return {"": config, **{name: reader for name, reader in inner.items() if reader is not None}}


def _stated_once(config: ConfigReader, key: str) -> float | None:
    """Take a number wherever it stands: outside, or in either object of rotary settings."""
    found: dict[str, float] = {}
    for prefix, reader in _places(config).items():
        value = reader.optional_number(key)
        if value is not None:
            found[f"{prefix}{key}"] = value
    for place, value in found.items():
        first, stated = next(iter(found.items()))
        if value != stated:
            config.contradiction(first, place, stated, value)
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
            config.refuse("rope_parameters", f"says nothing of layer type {layer_type!r}")
            settings[layer_type] = RopeSettings(1.0, None, (config,))
            continue
        scaling = hugging_face_scaling(reader, config)
        theta = reader.number("rope_theta")
        settings[layer_type] = RopeSettings(theta, scaling, (config, reader))
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
    return RopeSettings(
        config.number("rope.freq_base", default_theta),
        gguf_scaling(config),
        (config,),
        widths=("rope.dimension_count", "attention.key_length", "attention.head_count"),
    )
