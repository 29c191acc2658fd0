"""A ladder as a picture, and as a page that holds it: how near each depth is, and what it costs."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from larql import __version__
from larql.errors import RecordError
from larql.format.untrusted import read_json_object
from larql.report.look import INK, line_colour
from larql.report.page import resource
from larql.report.paper import settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Ladder", "is_ladder", "ladder_page", "ladder_picture", "read_ladder"]

_BEGINS = b'{"kind": "ladder"'
_MOST_BYTES = 1 << 30
_DOTS_PER_INCH = 200
_COLUMNS = (
    "depth",
    "KL, nats",
    "same top token",
    "in top 5",
    "step, ms",
    "bytes a step",
    "speed-up",
)


@dataclass(frozen=True)
class Band:
    """A value for each depth with its interval."""

    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Ladder:
    """What is drawn of a ladder.

    Attributes
    ----------
    title : str
        The model's name.
    positions : int
    depths : tuple of int
    divergence, same_top, in_top_5 : Band
    step_ms : tuple of float
    step_bytes : tuple of int
    gains : mapping
        Draft length to the speed-up that it would give, for the depths below the whole model.
    facts : tuple of (str, str)
        Where it comes from.
    """

    title: str
    positions: int
    depths: tuple[int, ...]
    divergence: Band
    same_top: Band
    in_top_5: Band
    step_ms: tuple[float, ...]
    step_bytes: tuple[int, ...]
    gains: dict[str, tuple[float, ...]]
    facts: tuple[tuple[str, str], ...]

    def rows(self) -> list[list[str]]:
        """Return the table, a row for each depth."""
        found = []
        for i, depth in enumerate(self.depths):
            best = max((gain[i] for gain in self.gains.values() if i < len(gain)), default=None)
            found.append(
                [
                    str(depth),
                    f"{self.divergence.value[i]:.4f}",
                    f"{self.same_top.value[i]:.3f}",
                    f"{self.in_top_5.value[i]:.3f}",
                    f"{self.step_ms[i]:.2f}",
                    f"{self.step_bytes[i]:,}",
                    "" if best is None else f"{best:.2f}",
                ]
            )
        return found


def is_ladder(path: Path) -> bool:
    """Return whether a file begins as a ladder does; one that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINS)) == _BEGINS
    except OSError:
        return False


def read_ladder(path: Path) -> Ladder:
    """Read what ``larql vindex3 ladder`` wrote.

    Raises
    ------
    RecordError
        If it is something else, or was changed so that it cannot be drawn.
    """
    document: Any = read_json_object(path, RecordError, limit=_MOST_BYTES)
    try:
        rungs = sorted(document["rungs"], key=lambda rung: rung["depth"])
        said = document["provenance"]
        facts = (
            ("model", str(said["container"]["model"])),
            ("container", str(said["container"]["fingerprint"])),
            ("numerics", str(said["numerics"])),
            ("tokens", str(said["tokens_sha256"])),
            ("threads", str(said["threads"])),
            ("larql", str(said["environment"]["tool"])),
        )
        lengths = next((list(rung["gains"]) for rung in rungs if rung["gains"]), [])
        return Ladder(
            title=str(said["container"]["model"]),
            positions=int(rungs[0]["summary"]["positions"]),
            depths=tuple(int(rung["depth"]) for rung in rungs),
            divergence=_band(rungs, lambda summary: summary["divergence"]),
            same_top=_band(rungs, lambda summary: summary["same_top"]),
            in_top_5=_band(rungs, lambda summary: summary["contained"]["5"]),
            step_ms=tuple(_number(rung["step_ms"]) for rung in rungs),
            step_bytes=tuple(int(rung["cost"]["step_bytes"]) for rung in rungs),
            gains={
                length: tuple(
                    _number(rung["gains"][length]["speedup"]) for rung in rungs if rung["gains"]
                )
                for length in lengths
            },
            facts=facts,
        )
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise RecordError(
            f"{path}: is no whole ladder ({type(error).__name__}: {error}); make it again"
        ) from None


def _band(rungs: list[Any], of: Callable[[Any], Any]) -> Band:
    estimates = [of(rung["summary"]) for rung in rungs]
    return Band(
        *(tuple(_number(one[name]) for one in estimates) for name in ("value", "low", "high"))
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r:.40} is no number")
    return float(value)


def ladder_picture(ladder: Ladder, kind: Literal["png", "svg"]) -> bytes:
    """Return a picture: divergence, agreement, and what speculation would give, by depth.

    The same ladder gives the same bytes.
    """
    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with settings():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.0, 6.6), layout="constrained")
        figure.suptitle(f"{ladder.title}: {ladder.positions} positions", fontsize=9)
        top, middle, bottom = figure.subplots(3, 1, sharex=True)
        _draw_band(top, ladder.depths, ladder.divergence, 0, "")
        top.set_ylabel("KL(target‖draft), nats")
        top.set_yscale("symlog", linthresh=0.1)
        top.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # no text is read as formulas
        _draw_band(middle, ladder.depths, ladder.same_top, 0, "same top token")
        _draw_band(middle, ladder.depths, ladder.in_top_5, 1, "in the draft's top 5")
        middle.set_ylim(0, 1.02)
        middle.set_ylabel("share of positions")
        middle.legend(frameon=False)
        for number, (length, gain) in enumerate(ladder.gains.items()):
            bottom.plot(
                ladder.depths[: len(gain)], gain, color=line_colour(number),
                label=f"{length} drafted",
            )  # fmt: skip
        bottom.axhline(1.0, color=INK, linewidth=0.6)
        bottom.set_ylabel("speed-up, at most")
        bottom.set_xlabel("depth, layers")
        if ladder.gains:
            bottom.legend(frameon=False)
        figure.savefig(stream, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return stream.getvalue()


def _draw_band(axes: Axes, depths: tuple[int, ...], band: Band, colour: int, label: str) -> None:
    axes.plot(depths, band.value, color=line_colour(colour), marker=".", label=label)
    axes.fill_between(depths, band.low, band.high, color=line_colour(colour), alpha=0.2, lw=0)


def ladder_page(ladder: Ladder) -> str:
    """Return a page with the picture and the table; it holds all it needs and runs nothing."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    drawing = ladder_picture(ladder, "svg").decode("utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resource("ladder.html.jinja"))
    return template.render(
        ladder=ladder,
        columns=_COLUMNS,
        rows=ladder.rows(),
        style=Markup(resource("page.css")),
        drawing=Markup(drawing[drawing.index("<svg") :]),
        version=__version__,
    )
