"""How long work tells of its progress; what is drawn, if anything, is the caller's business."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "SilentProgress"]


class Progress(Protocol):
    """One stage of work at a time: ``start``, any number of ``advance``, ``finish``.

    Amounts are bytes. ``total`` is None where it is not known beforehand. ``advance`` may be
    negative when work has to be done again, and the sum need not reach the total.
    """

    def start(self, label: str, total: int | None) -> None:
        """Begin a stage."""

    def advance(self, n: int) -> None:
        """Tell that ``n`` more bytes are done."""

    def finish(self) -> None:
        """End the stage, completed or not."""


class SilentProgress:
    """A progress that shows nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Show nothing."""

    def advance(self, n: int) -> None:
        """Show nothing."""

    def finish(self) -> None:
        """Show nothing."""
