"""Rotary settings of the two checkpoint formats, judged into :class:`larql.format.graph.Rope`."""

from __future__ import annotations

from dataclasses import dataclass

from larql.errors import CompileError
from larql.format.graph import RopeScaling
from larql.format.source.config import ConfigReader

__all__ = ["RopeSettings", "gguf_rope", "hugging_face_rope", "hugging_face_rope_by_layer_type"]


@dataclass(frozen=True)
class RopeSettings:
    """Base of the rotary frequencies, how they are stretched, and the share of dims that turn."""

    theta: float
    scaling: RopeScaling | None
    share: float = 1.0


def hugging_face_rope(
    config: ConfigReader, default_theta: float, default_share: float | None = None
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

    Raises
    ------
    CompileError
        If the two styles contradict each other, or the rope type is unknown.
    """
    theta = config.optional_number("rope_theta")
    share = None if default_share is None else _share(config)
    scaling = _scaling(config.child("rope_scaling"))
    parameters = config.child("rope_parameters")
    if parameters is not None:
        inner_theta = parameters.optional_number("rope_theta")
        inner_scaling = _scaling(parameters)
        if theta is not None and inner_theta is not None and theta != inner_theta:
            raise config.contradiction(
                "rope_theta", "rope_parameters.rope_theta", theta, inner_theta
            )
        if config.has("rope_scaling") and scaling != inner_scaling:
            raise config.contradiction(
                "rope_scaling", "rope_parameters", _in_words(scaling), _in_words(inner_scaling)
            )
        theta = inner_theta if theta is None else theta
        scaling = inner_scaling
    if share is None:
        share = 1.0 if default_share is None else default_share
    return RopeSettings(default_theta if theta is None else theta, scaling, share)


def _share(config: ConfigReader) -> float | None:
    """Take ``partial_rotary_factor`` wherever it stands."""
    found: dict[str, float] = {}
    for prefix, reader in (
        ("", config),
        ("rope_parameters.", config.child("rope_parameters")),
        ("rope_scaling.", config.child("rope_scaling")),
    ):
        value = None if reader is None else reader.optional_number("partial_rotary_factor")
        if value is not None:
            found[f"{prefix}partial_rotary_factor"] = value
    for key, value in found.items():
        first, stated = next(iter(found.items()))
        if value != stated:
            raise config.contradiction(first, key, stated, value)
        if value > 1.0:
            raise config.failure(key, f"is {value!r}, expected at most 1")
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
        settings[layer_type] = RopeSettings(reader.number("rope_theta"), _scaling(reader))
    return settings


def _in_words(scaling: RopeScaling | None) -> str:
    return "no scaling" if scaling is None else f"{scaling.kind} by {scaling.factor:g}"


def _scaling(reader: ConfigReader | None) -> RopeScaling | None:
    if reader is None:
        return None
    first = reader.text("rope_type") if reader.has("rope_type") else None
    second = reader.text("type") if reader.has("type") else None
    reader.irrelevant("rope_type", "type")
    if first is not None and second is not None and first != second:
        raise reader.contradiction("rope_type", "type", first, second)
    kind = first or second or "default"
    if not reader.judged("partial_rotary_factor"):
        reader.neutral("partial_rotary_factor", 1.0)
    if kind == "default":
        return None
    if kind == "linear":
        return _linear(reader.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=reader.number("factor"),
            low_freq_factor=reader.number("low_freq_factor"),
            high_freq_factor=reader.number("high_freq_factor"),
            original_context=reader.count("original_max_position_embeddings"),
        )
    raise CompileError(
        f"{reader.where}: rope type {kind!r} is not one that this build compiles "
        f"(default, linear, llama3)"
    )


def _linear(factor: float) -> RopeScaling | None:
    return None if factor == 1.0 else RopeScaling(kind="linear", factor=factor)


def gguf_rope(config: ConfigReader, default_theta: float) -> RopeSettings:
    """Read the ``rope.*`` keys of a GGUF file, relative to the architecture's prefix.

    Raises
    ------
    CompileError
        If the scaling type is unknown.
    """
    theta = config.number("rope.freq_base", default_theta)
    kind = config.text("rope.scaling.type", "none")
    old = config.optional_number("rope.scale_linear")
    factor = config.optional_number("rope.scaling.factor")
    config.irrelevant("rope.scaling.finetuned")
    if old is not None and factor is not None and old != factor:
        raise config.contradiction("rope.scaling.factor", "rope.scale_linear", factor, old)
    if kind == "none":
        if factor not in (None, 1.0):
            raise config.contradiction("rope.scaling.factor", "rope.scaling.type", factor, kind)
        return RopeSettings(theta, None if old is None else _linear(old))
    if kind == "linear":
        config.irrelevant("rope.scaling.original_context_length")
        if factor is None:
            factor = config.number("rope.scale_linear")
        return RopeSettings(theta, _linear(factor))
    raise CompileError(
        f"{config.where}: rope scaling type {kind!r} is not one that this build compiles "
        f"(none, linear)"
    )
