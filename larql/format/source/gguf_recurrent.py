"""Metadata of layers that keep a recurrent state, which GGUF files name after state spaces."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.source.config import ConfigReader

__all__ = ["RecurrentKeys", "no_recurrent_layers", "one_count", "recurrent_keys"]

_KEYS = (
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
)


@dataclass(frozen=True)
class RecurrentKeys:
    """Taps of the convolutions, heads, groups that serve them, and their widths.

    Attributes
    ----------
    taps : int
    state : int
        Width of a group's row: of a key, or of B and C.
    groups, heads : int
    head_dim : int
        Width of a value, or of x.
    """

    taps: int
    state: int
    groups: int
    heads: int
    head_dim: int


def recurrent_keys(config: ConfigReader) -> RecurrentKeys:
    """Read the ``ssm.*`` keys.

    Raises
    ------
    CompileError
        Naming the key, if a number is missing or does not fit another.
    """
    heads, inner = config.count("ssm.time_step_rank"), config.count("ssm.inner_size")
    groups = config.count("ssm.group_count")
    if inner % heads:
        config.refuse(
            "ssm.inner_size", f"is {inner}, no multiple of {heads} heads", "ssm.time_step_rank"
        )
    if heads % groups:
        config.refuse(
            "ssm.group_count", f"is {groups}, which {heads} heads cannot share",
            "ssm.time_step_rank",
        )  # fmt: skip
    return RecurrentKeys(
        taps=config.count("ssm.conv_kernel"),
        state=config.count("ssm.state_size"),
        groups=groups,
        heads=heads,
        head_dim=inner // heads,
    )


def no_recurrent_layers(config: ConfigReader) -> None:
    """Judge the ``ssm.*`` keys of a model of which no layer has a recurrent state.

    Files of a hybrid's family keep them where all its layers are attention.
    """
    config.irrelevant(*_KEYS)


def one_count(config: ConfigReader, key: str, counts: tuple[int, ...], default: int) -> int:
    """Return the one number that layers have which have any, ``default`` if none has.

    Hybrids say by 0 key/value heads that a layer is not one of attention.

    Raises
    ------
    CompileError
        Naming the key, if they have several.
    """
    stated = sorted(set(counts) - {0})
    if len(stated) > 1:
        config.refuse(key, f"is {stated} on layers, expected one number, or 0")
    return stated[0] if stated else default
