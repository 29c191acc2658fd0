"""larql: compile a language model once, then run, inspect and measure it on a CPU."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
