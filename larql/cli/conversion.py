"""Plain conversion of what a user wrote; whatever is not plain is left to Typer, and to its words.

Newer versions of Typer import pydantic to convert anything at all, which is half of the time that a
short command takes, and 10 MB.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from typer.models import ParameterInfo

from larql.errors import UsageError

__all__ = ["spare_conversion"]

_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


def spare_conversion(parameter: Any, hint: object) -> None:
    """Keep a parameter from Typer's conversion where it would change nothing, or is plain.

    Parameters
    ----------
    parameter : typer.core.TyperOption or typer.core.TyperArgument
        Its ``process_value`` is replaced.
    hint : object
        The annotation of the function's parameter, with its ``Annotated``.
    """
    info: ParameterInfo | None = None
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        info = next((extra for extra in extras if isinstance(extra, ParameterInfo)), None)
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if parameter.callback is not None or any(get_origin(kind) is not None for kind in kinds):
        return
    convert = parameter.process_value

    def process_value(ctx: Any, value: Any) -> Any:
        # What the user wrote is a str, so any other type here is that of a default.
        if type(value) in kinds and (value is not None or not parameter.required):
            return value
        plain = _plain(value, kinds, info) if isinstance(value, str) else None
        if plain is None and isinstance(value, str) and (expected := _expected(kinds, info)):
            raise UsageError(f"{_name_of(parameter)}: {value!r:.60}: expected {expected}")
        return convert(ctx, value) if plain is None else plain

    parameter.process_value = process_value


def _name_of(parameter: Any) -> str:
    return str(next((o for o in parameter.opts if o.startswith("--")), parameter.opts[0]))


def _expected(kinds: tuple[object, ...], info: ParameterInfo | None) -> str | None:
    """Say what a number or a choice must be; None for anything else."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            return f"one of {', '.join(member.value for member in kind)}"
        if kind is int:
            low = None if info is None else info.min
            high = None if info is None else info.max
            if low is not None and high is not None:
                return f"a whole number from {low} to {high}"
            return "a whole number" if low is None else f"a whole number of at least {low}"
    return None


def _plain(text: str, kinds: tuple[object, ...], info: ParameterInfo | None) -> object:
    """Return what ``text`` plainly is, None where that is for Typer to say."""
    for kind in kinds:
        if kind is int and _WHOLE.fullmatch(text):
            number = int(text)
            low = None if info is None else info.min
            high = None if info is None else info.max
            if (low is None or low <= number) and (high is None or number <= high):
                return number
        elif kind is float and _DECIMAL.fullmatch(text):
            return float(text)
        elif kind is Path and text:
            return Path(text)
        elif isinstance(kind, type) and issubclass(kind, StrEnum):
            found = next((member for member in kind if member.value == text), None)
            if found is not None:
                return found
    return None
