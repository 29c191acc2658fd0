"""Tiles of several widths in one function: the widest that what is left fills is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from larql.kernels.jit import cgutils

__all__ = ["chosen_width"]

_WORD = ir.IntType(64)


def chosen_width(
    builder: Any, left: Any, widths: Sequence[int], tile: Callable[[int], None]
) -> Any:
    """Emit a tile of each width, descending, and the choice among them; return the one taken.

    The narrowest is taken where no other fits `left`, an int64.
    """
    taken = cgutils.alloca_once_value(builder, _WORD(widths[-1]))

    def choose(among: Sequence[int]) -> None:
        width, *narrower = among
        if not narrower:
            tile(width)
            return
        fits = builder.icmp_signed(">=", left, _WORD(width))
        with builder.if_else(fits) as (wide, narrow):
            with wide:
                tile(width)
                builder.store(_WORD(width), taken)
            with narrow:
                choose(narrower)

    choose(widths)
    return builder.load(taken)
