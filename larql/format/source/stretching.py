"""How checkpoints state that rotary frequencies are stretched, judged into a graph's numbers.

Logarithms are taken in decimal arithmetic, correctly rounded, so that a checkpoint gives the same
container everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Context, Decimal

from larql.format.graph import RopeScaling
from larql.format.source.config import ConfigReader

__all__ = [
    "gguf_scaling",
    "hugging_face_scaling",
    "linear_scaling",
    "rope_type",
    "yarn_magnitude",
]

_NONE: Mapping[str, str] = {}
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
_KNOWN = "default, linear, llama3, yarn, longrope"


def linear_scaling(factor: float) -> RopeScaling | None:
    """Return the division of all frequencies by a number; by 1 it is none."""
    return None if factor == 1.0 else RopeScaling(kind="linear", factor=factor)


def rope_type(reader: ConfigReader) -> str:
    """Take the type of rotary settings, which goes by two names.

    Raises
    ------
    CompileError
        If they contradict each other.
    """
    first = reader.text("rope_type") if reader.has("rope_type") else None
    second = reader.text("type") if reader.has("type") else None
    if first is None and second is None:
        for key in ("rope_type", "type"):
            reader.refuse_null(key, f"which is no rope type this build knows ({_KNOWN})")
    reader.irrelevant("rope_type", "type")
    if first is not None and second is not None and first != second:
        reader.contradiction("rope_type", "type", first, second)
    return first or second or "default"


def hugging_face_scaling(
    reader: ConfigReader | None, config: ConfigReader, aliases: Mapping[str, str] = _NONE
) -> RopeScaling | None:
    """Read a ``rope_scaling`` or ``rope_parameters`` object.

    Parameters
    ----------
    reader : ConfigReader or None
        The object; None: there is none.
    config : ConfigReader
        What it stands in, which states the model's context.
    aliases : mapping
        Names of rope types that mean another one in this family.

    Returns
    -------
    RopeScaling or None

    Raises
    ------
    CompileError
        If its type is unknown or depends on what a run has seen, or a number is missing, or is
        stated twice with two values.
    """
    if reader is None:
        return None
    stated = rope_type(reader)
    kind = aliases.get(stated, stated)
    if not reader.judged("partial_rotary_factor"):
        reader.neutral("partial_rotary_factor", 1.0)
    if kind == "default":
        return None
    if kind == "linear":
        return linear_scaling(reader.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=reader.number("factor"),
            low_freq_factor=reader.number("low_freq_factor"),
            high_freq_factor=reader.number("high_freq_factor"),
            original_context=_original_context(reader, config),
        )
    if kind == "yarn":
        return _yarn(reader, config)
    if kind == "longrope":
        return _longrope(reader, config)
    key = "rope_type" if reader.has("rope_type") else "type"
    if kind == "dynamic":
        reader.refuse(
            key,
            f"is {stated!r}: its frequencies change with the number of positions seen, so that a "
            f"prompt would not equal its single steps; this build does not compile it ({_KNOWN})",
        )
    reader.refuse(key, f"is {stated!r:.60}, a rope type this build does not know ({_KNOWN})")
    for name in ("rope_theta", "partial_rotary_factor"):
        reader.optional_number(name)
    reader.refuse_rest()
    return None


def _original_context(reader: ConfigReader, config: ConfigReader) -> int:
    """Take the context before stretching, which may stand inside, outside, or be the context."""
    key = "original_max_position_embeddings"
    inner, outer = reader.optional_count(key), config.optional_count(key)
    if inner is not None and outer is not None and inner != outer:
        reader.refuse(key, f"is {inner}, but `{key}` beside it is {outer}; they must agree")
    return inner or outer or config.count("max_position_embeddings")


def _factor(reader: ConfigReader, config: ConfigReader, original: int) -> float:
    stated = reader.optional_number("factor")
    return config.count("max_position_embeddings") / original if stated is None else stated


def _yarn(reader: ConfigReader, config: ConfigReader) -> RopeScaling:
    original = _original_context(reader, config)
    factor = _factor(reader, config, original)
    magnitude = reader.optional_number("attention_factor")
    over, under = reader.optional_number("mscale"), reader.optional_number("mscale_all_dim")
    if magnitude is None and over is not None and under is not None:
        magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=original,
        beta_fast=reader.number("beta_fast", _BETA_FAST),
        beta_slow=reader.number("beta_slow", _BETA_SLOW),
        truncate=reader.flag("truncate", True),
        magnitude=_unless_1(yarn_magnitude(factor, 1.0) if magnitude is None else magnitude),
    )


def _longrope(reader: ConfigReader, config: ConfigReader) -> RopeScaling:
    original = _original_context(reader, config)
    if original < 2:
        reader.refuse("original_max_position_embeddings", f"is {original}, expected more")
        original = 2
    factor = _factor(reader, config, original)
    magnitude = reader.optional_number("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1.0 else math.sqrt(1.0 + _ln(factor) / _ln(original))
    return RopeScaling(
        kind="longrope",
        factor=factor,
        original_context=original,
        magnitude=_unless_1(magnitude),
        divisors=reader.numbers("short_factor"),
        long_divisors=reader.numbers("long_factor"),
    )


def gguf_scaling(config: ConfigReader) -> RopeScaling | None:
    """Read the ``rope.scaling.*`` keys of a GGUF file.

    Raises
    ------
    CompileError
        If the type is unknown, or two keys contradict each other.
    """
    kind = config.text("rope.scaling.type", "none")
    old = config.optional_number("rope.scale_linear")
    factor = config.optional_number("rope.scaling.factor")
    config.irrelevant("rope.scaling.finetuned")
    if old is not None and factor is not None and old != factor:
        config.contradiction("rope.scaling.factor", "rope.scale_linear", factor, old)
    if kind == "none":
        if factor not in (None, 1.0):
            config.contradiction("rope.scaling.factor", "rope.scaling.type", factor, kind)
        return None if old is None else linear_scaling(old)
    if kind == "linear":
        config.irrelevant("rope.scaling.original_context_length")
        return linear_scaling(config.number("rope.scale_linear") if factor is None else factor)
    if kind == "yarn":
        factor = config.number("rope.scaling.factor")
        config.neutral("rope.scaling.yarn_ext_factor", 1.0)
        config.neutral("rope.scaling.yarn_attn_factor", 1.0)
        magnitude = yarn_magnitude(factor, 1.0) * config.number("rope.scaling.attn_factor", 1.0)
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context=config.count(
                "rope.scaling.original_context_length", config.count("context_length")
            ),
            beta_fast=config.number("rope.scaling.yarn_beta_fast", _BETA_FAST),
            beta_slow=config.number("rope.scaling.yarn_beta_slow", _BETA_SLOW),
            truncate=True,
            magnitude=_unless_1(magnitude),
        )
    config.refuse(
        "rope.scaling.type",
        f"is {kind!r}, a rope scaling type this build does not compile here (none, linear, yarn)",
    )
    return None


def yarn_magnitude(factor: float, share: float) -> float:
    """Return ``0.1 * share * ln(factor) + 1`` (arXiv:2309.00071, 3.4), 1 where nothing grows."""
    return 1.0 if factor <= 1.0 else 0.1 * share * _ln(factor) + 1.0


def _ln(number: float) -> float:
    context = Context(prec=40)
    return float(context.ln(Decimal(number)))


def _unless_1(magnitude: float) -> float | None:
    return None if magnitude == 1.0 else magnitude
