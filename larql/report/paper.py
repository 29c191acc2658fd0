"""A still picture of a record, for papers: drawn by matplotlib, without a browser or a screen."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from larql.report.contents import Contents, shortened, site_ticks
from larql.report.look import INK, MOST_LABELLED, MUTED, PALE, SCALE, line_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from larql.runtime.observe.view import LensView

__all__ = ["draw", "picture", "settings"]

_LABEL_LENGTH = 12
_MOST_TICKS = 24
_DOTS_PER_INCH = 200


def picture(contents: Contents, kind: Literal["png", "svg"]) -> bytes:
    """Return a picture of a record: the same record gives the same bytes.

    Parameters
    ----------
    contents : Contents
    kind : str
        ``png``, of 200 dots an inch, or ``svg``.

    Returns
    -------
    bytes
    """
    stream = io.BytesIO()
    # Neither a time nor a version of the library.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with settings():
        draw(contents).savefig(stream, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata)
    return stream.getvalue()


@contextmanager
def settings() -> Iterator[None]:
    """Draw by settings of our own, whatever the user's file of settings says."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.size": 8,
                "text.color": INK,
                "axes.labelcolor": INK,
                "xtick.color": INK,
                "ytick.color": INK,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "text.parse_math": False,
                "svg.hashsalt": "larql",
                "svg.fonttype": "path",
            }
        )
        yield


def draw(contents: Contents) -> Figure:
    """Return the figure: the lens on the left, curves of the last position on the right.

    Parameters
    ----------
    contents : Contents

    Returns
    -------
    matplotlib.figure.Figure
    """
    from matplotlib.figure import Figure

    lens = contents.lens
    curves = _curves(contents)
    sites = 0 if lens is None else len(lens.sites)
    height = max(2.6 * max(1, len(curves)), min(9.0, 1.6 + 0.19 * sites))
    figure = Figure(figsize=(5.5 if lens is None else 10.0, height), layout="constrained")
    # Known before anything is drawn, so that the picture says it even where it has no curves.
    lines = [f"{contents.title}: {contents.prompt()}", *contents.notes]
    width = 60 if lens is None else 110
    figure.suptitle("\n".join(shortened(_drawable(line), width) for line in lines), fontsize=9)
    if not curves:
        return figure
    columns = 1 if lens is None else 2
    grid = figure.add_gridspec(len(curves), columns, width_ratios=[1.35, 1.0][-columns:])
    if lens is not None:
        _lens(figure, figure.add_subplot(grid[:, 0]), contents, lens)
    for number, curve in enumerate(curves):
        curve(figure, figure.add_subplot(grid[number, columns - 1]))
    return figure


def _curves(contents: Contents) -> list[Any]:
    if not contents.positions:
        return []
    found: list[Any] = []
    lens = contents.lens
    if lens is not None:
        found.append(lambda _, axes: _log_probabilities(axes, contents, lens))
        if len(lens.tokens):
            found.append(lambda _, axes: _ranks(axes, contents, lens))
    found.append(lambda _, axes: _norms(axes, contents))
    if contents.routing is not None:
        found.append(lambda figure, axes: _routing(figure, axes, contents))
    return found


def _drawable(text: str) -> str:
    """Spell out what the font has no glyph for."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    return "".join(
        character if ord(character) in known else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _name(contents: Contents, token: int) -> str:
    return shortened(_drawable(contents.name(token)), _LABEL_LENGTH)


def _lens(figure: Figure, axes: Axes, contents: Contents, lens: LensView) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("larql", list(SCALE)).with_extremes(bad=PALE)
    values = lens.top_log_probabilities[:, :, 0].T
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=scale, edgecolors="none")
    count = len(contents.positions)
    if count <= MOST_LABELLED:
        size = min(7.0, max(3.5, 40.0 / count))
        for p in range(count):
            for s in range(len(lens.sites)):
                token = int(lens.top_tokens[p, s, 0])
                if token >= 0:
                    axes.text(
                        p + 0.5, s + 0.5, _name(contents, token), ha="center", va="center",
                        fontsize=size, clip_on=True,
                    )  # fmt: skip
    ticks, texts = site_ticks(lens.sites, _MOST_TICKS + 8)
    axes.set_yticks([tick + 0.5 for tick in ticks], texts)
    step = -(-count // _MOST_TICKS)
    shown = range(0, count, step)
    tokens = contents.tokens()
    axes.set_xticks(
        [i + 0.5 for i in shown],
        [f"{contents.positions[i]}  {shortened(_drawable(tokens[i]), 9)}" for i in shown],
        rotation=0 if count <= 6 else 90,
    )
    axes.tick_params(length=2)
    axes.set_xlabel("position and its token")
    axes.set_ylabel("after layer")
    axes.set_title("likeliest token of the lens", fontsize=8)
    figure.colorbar(mesh, ax=axes, label="log-probability", pad=0.01, aspect=40)


def _line(axes: Axes, values: Any, name: str, colour: str, style: str = "-") -> None:
    axes.plot(
        range(len(values)), values, style, color=colour, label=name, marker=".", markersize=3,
        linewidth=1.2,
    )  # fmt: skip


def _finish(axes: Axes, sites: Sequence[Any], across: str, up: str) -> None:
    ticks, texts = site_ticks(sites, 10)
    axes.set_xticks(ticks, texts)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color=PALE, linewidth=0.5)
    axes.legend(frameon=False, fontsize=7)


def _log_probabilities(axes: Axes, contents: Contents, lens: LensView) -> None:
    _line(axes, lens.top_log_probabilities[-1, :, 0], "likeliest token", MUTED, ":")
    for i, token in enumerate(lens.tokens):
        name = _name(contents, int(token))
        _line(axes, lens.log_probabilities[-1, :, i], name, line_colour(i))
    _finish(axes, lens.sites, "after layer", "log-probability")
    axes.set_title(f"position {contents.positions[-1]}", fontsize=8)


def _ranks(axes: Axes, contents: Contents, lens: LensView) -> None:
    for i, token in enumerate(lens.tokens):
        ranks = np.where(lens.ranks[-1, :, i] >= 1, lens.ranks[-1, :, i].astype(float), np.nan)
        _line(axes, ranks, _name(contents, int(token)), line_colour(i))
    _decades(axes)
    axes.invert_yaxis()
    _finish(axes, lens.sites, "after layer", "rank")


def _norms(axes: Axes, contents: Contents) -> None:
    view = contents.view
    _line(axes, view.carrier_norms[-1], "carrier", line_colour(0))
    _line(axes, view.delta_norms[-1], "added by the write", line_colour(1))
    _decades(axes)
    _finish(axes, view.sites, "writes, up to the end of layer", "Euclidean norm")


def _decades(axes: Axes) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _routing(figure: Figure, axes: Axes, contents: Contents) -> None:
    routing = contents.routing
    if routing is None:
        raise ValueError("nothing was routed")
    mesh = axes.pcolormesh(routing.counts / routing.positions[:, None], cmap="cividis", vmin=0)
    ticks, texts = site_ticks(routing.sites, 12)
    axes.set_yticks([tick + 0.5 for tick in ticks], texts)
    axes.set_xlabel("expert")
    axes.set_ylabel("routed layer")
    figure.colorbar(mesh, ax=axes, label="share of positions")
