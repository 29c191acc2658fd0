"""How reports look: colours that stay apart for most eyes, and what is drawn when."""

from __future__ import annotations

__all__ = ["INK", "LINES", "MOST_LABELLED", "MUTED", "PALE", "SCALE", "line_colour"]

INK = "#1f2933"
MUTED = "#8792a0"
PALE = "#dfe3e8"
# The lens: pale where a token is unlikely, and never so dark that ink on it is hard to read.
SCALE = ("#fffaf2", "#fee8c8", "#fdd49e", "#fdbb84", "#fc8d59")
# After Okabe and Ito, without their yellow, which vanishes on white.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# Tokens are written into the cells of the lens up to so many positions.
MOST_LABELLED = 24


def line_colour(number: int) -> str:
    """Return the colour of a line, by its number."""
    return LINES[number % len(LINES)]
