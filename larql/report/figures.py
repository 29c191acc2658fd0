"""The plots of a page, as plotly figures: data and layout, nothing of the page around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from larql.report.contents import Contents, shortened, site_ticks
from larql.report.look import INK, MOST_LABELLED, MUTED, PALE, SCALE, line_colour
from larql.runtime.observe.view import LensView

__all__ = ["figures_of", "moving_values"]

_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MOST_TICKS = 32
_LABEL_LENGTH = 12
_DEPTH = "after layer"


def figures_of(contents: Contents) -> dict[str, go.Figure]:
    """Return the plots that a record has numbers for, by the name of their place on the page."""
    if not contents.positions:
        return {}
    found = {}
    if contents.lens is not None:
        found["lens"] = _lens(contents, contents.lens)
        found["log-probabilities"] = _log_probabilities(contents, contents.lens)
        if len(contents.lens.tokens):
            found["ranks"] = _ranks(contents, contents.lens)
    found["norms"] = _norms(contents)
    if contents.routing is not None:
        found["routing"] = _routing(contents)
    return found


def moving_values(contents: Contents) -> dict[str, list[list[list[float | None]]]]:
    """Return the values of the lines of each plot, for every position: ``[P][lines][depth]``."""
    if not contents.positions:
        return {}
    view, lens = contents.view, contents.lens
    found = {"norms": _numbers(np.stack([view.carrier_norms, view.delta_norms], axis=1))}
    if lens is not None:
        likeliest = lens.top_log_probabilities[:, :, 0][:, :, None]
        rows = np.concatenate([likeliest, lens.log_probabilities], axis=2)
        found["log-probabilities"] = _numbers(rows.transpose(0, 2, 1))
        if len(lens.tokens):
            found["ranks"] = _numbers(_known(lens.ranks).transpose(0, 2, 1))
    return found


def _numbers(values: npt.NDArray[Any]) -> Any:
    """Return nested lists in which what is not finite is None."""
    shown = values.astype(object)
    shown[~np.isfinite(values)] = None
    return shown.tolist()


def _known(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.where(ranks >= 1, ranks.astype(np.float64), np.nan)


def _plain(text: str) -> str:
    """Keep a text from being read as markup, which plotly does in every label."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _figure(traces: Sequence[Any], height: int, **layout: Any) -> go.Figure:
    return go.Figure(
        data=traces,
        layout={
            "template": "plotly_white",
            "height": height,
            "margin": {"l": 70, "r": 24, "t": 24, "b": 56},
            "font": {"family": _FONT, "size": 13, "color": INK},
            "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 13}},
            **layout,
        },
    )


def _position_axis(contents: Contents) -> dict[str, Any]:
    tokens, count = contents.tokens(), len(contents.positions)
    step = -(-count // _MOST_TICKS)
    shown = range(0, count, step)
    return {
        "title": {"text": "position and its token (click a cell to see its position below)"},
        "tickvals": list(shown),
        "ticktext": [
            f"{_plain(shortened(tokens[i], _LABEL_LENGTH))}<br>{contents.positions[i]}"
            for i in shown
        ],
        "range": [-0.5, count - 0.5],
        "showgrid": False,
        "zeroline": False,
    }


def _lens(contents: Contents, lens: LensView) -> go.Figure:
    likeliest = lens.top_log_probabilities[:, :, 0].T
    names = [[contents.name(int(token)) for token in row] for row in lens.top_tokens[:, :, 0].T]
    ticks, texts = site_ticks(lens.sites, _MOST_TICKS + 8)
    labelled = len(contents.positions) <= MOST_LABELLED
    trace = go.Heatmap(
        z=_numbers(likeliest),
        hovertext=_lens_hovers(contents, lens),
        hovertemplate="%{hovertext}<extra></extra>",
        colorscale=list(SCALE),
        colorbar={"title": {"text": "log p", "side": "top"}, "thickness": 14},
        text=[[_plain(shortened(name, _LABEL_LENGTH)) for name in row] for row in names]
        if labelled
        else None,
        texttemplate="%{text}" if labelled else None,
        textfont={"size": 12, "color": INK},
        xgap=1 if labelled else 0,
        ygap=1 if labelled else 0,
    )
    return _figure(
        [trace],
        min(1500, 200 + 22 * len(lens.sites)),
        margin={"l": 76, "r": 24, "t": 64, "b": 76},
        plot_bgcolor=PALE,
        xaxis=_position_axis(contents),
        yaxis={
            "title": {"text": _DEPTH},
            "tickvals": ticks,
            "ticktext": texts,
            "range": [-0.5, len(lens.sites) - 0.5],
            "showgrid": False,
            "zeroline": False,
        },
        updatemenus=[
            {
                "buttons": list(_lens_colours(contents, lens)),
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yanchor": "bottom",
                "pad": {"b": 8},
                "bgcolor": "white",
                "showactive": True,
            }
        ],
    )


def _lens_colours(contents: Contents, lens: LensView) -> Any:
    """Yield what the cells of the lens can be coloured by, the likeliest token first."""
    yield _colour_button(
        "colour: log-probability of the likeliest token",
        lens.top_log_probabilities[:, :, 0].T,
        "log p",
    )
    for i, token in enumerate(lens.tokens):
        name = _plain(shortened(contents.name(int(token)), 2 * _LABEL_LENGTH))
        yield _colour_button(
            f"colour: log-probability of {name}", lens.log_probabilities[:, :, i].T, "log p"
        )
        yield _colour_button(
            f"colour: rank of {name}", np.log10(_known(lens.ranks[:, :, i].T)), "rank"
        )


def _colour_button(label: str, values: npt.NDArray[np.float64], title: str) -> dict[str, Any]:
    is_rank = title == "rank"
    decades = list(range(8))
    change = {
        "z": [_numbers(values)],
        "reversescale": is_rank,
        "colorbar.title.text": title,
        "colorbar.tickmode": "array" if is_rank else "auto",
        "colorbar.tickvals": [decades] if is_rank else None,
        "colorbar.ticktext": [[f"{10**k:,}" for k in decades]] if is_rank else None,
    }
    return {"label": label, "method": "restyle", "args": [change]}


def _lens_hovers(contents: Contents, lens: LensView) -> list[list[str]]:
    tokens = contents.tokens()
    declared = [_plain(contents.name(int(token))) for token in lens.tokens]
    hovers = []
    for s, site in enumerate(lens.sites):
        row = []
        for p, position in enumerate(contents.positions):
            lines = [f"after {site}, position {position}, token {_plain(tokens[p])}"]
            if lens.top_tokens[p, s, 0] < 0:
                lines.append("not read")
            for token, log_p in zip(
                lens.top_tokens[p, s], lens.top_log_probabilities[p, s], strict=True
            ):
                if token >= 0:
                    name = _plain(contents.name(int(token)))
                    lines.append(f"<b>{name}</b> (token {token}): log p {log_p:.4f}")
            for i, name in enumerate(declared):
                if lens.ranks[p, s, i] >= 0:
                    lines.append(
                        f"{name}: rank {lens.ranks[p, s, i]:,}, "
                        f"log p {lens.log_probabilities[p, s, i]:.4f}"
                    )
            row.append("<br>".join(lines))
        hovers.append(row)
    return hovers


def _depth_axis(sites: Sequence[Any], title: str) -> dict[str, Any]:
    ticks, texts = site_ticks(sites, 12)
    return {"title": {"text": title}, "tickvals": ticks, "ticktext": texts, "zeroline": False}


def _line(
    name: str, values: list[float | None], sites: Sequence[Any], colour: str, **more: Any
) -> go.Scatter:
    return go.Scatter(
        x=list(range(len(values))),
        y=values,
        name=_plain(name),
        text=[str(site) for site in sites],
        mode="lines+markers",
        line={"color": colour, "width": 2, **more},
        marker={"size": 5},
    )


_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}


def _log_probabilities(contents: Contents, lens: LensView) -> go.Figure:
    last = moving_values(contents)["log-probabilities"][-1]
    names = [
        "likeliest token of each layer", *(contents.name(int(token)) for token in lens.tokens)
    ]  # fmt: skip
    colours = [MUTED, *(line_colour(i) for i in range(len(lens.tokens)))]
    traces = []
    for i, (name, colour) in enumerate(zip(names, colours, strict=True)):
        trace = _line(name, last[i], lens.sites, colour, dash="solid" if i else "dot")
        trace.hovertemplate = "after %{text}: log p %{y:.4f}"
        traces.append(trace)
    return _figure(
        traces,
        380,
        margin={"l": 70, "r": 24, "t": 56, "b": 56},
        xaxis=_depth_axis(lens.sites, _DEPTH),
        yaxis={"title": {"text": "log-probability (natural)"}, "zeroline": False},
        legend=_LEGEND,
        showlegend=True,
    )


def _ranks(contents: Contents, lens: LensView) -> go.Figure:
    last = moving_values(contents)["ranks"][-1]
    traces = []
    for i, token in enumerate(lens.tokens):
        trace = _line(contents.name(int(token)), last[i], lens.sites, line_colour(i))
        trace.hovertemplate = "after %{text}: rank %{y:,}"
        traces.append(trace)
    return _figure(
        traces,
        380,
        margin={"l": 70, "r": 24, "t": 56, "b": 56},
        xaxis=_depth_axis(lens.sites, _DEPTH),
        yaxis={
            "title": {"text": "rank (1 is the likeliest)"},
            "type": "log",
            "range": [float(np.log10(max(lens.ranks.max(), 9))) + 0.1, -0.1],
            "dtick": 1,
            "tickformat": ",",
            "zeroline": False,
        },
        legend=_LEGEND,
        showlegend=True,
    )


def _norms(contents: Contents) -> go.Figure:
    last, sites = moving_values(contents)["norms"][-1], contents.view.sites
    names = ("carrier after the write", "what the write added")
    traces = []
    for i, name in enumerate(names):
        trace = _line(name, last[i], sites, line_colour(i))
        trace.hovertemplate = "%{text}: %{y:.5g}"
        traces.append(trace)
    return _figure(
        traces,
        380,
        margin={"l": 70, "r": 24, "t": 56, "b": 56},
        xaxis=_depth_axis(sites, "writes, up to the end of layer"),
        yaxis={"title": {"text": "Euclidean norm"}, "type": "log", "dtick": 1},
        legend=_LEGEND,
        showlegend=True,
    )


def _routing(contents: Contents) -> go.Figure:
    routing = contents.routing
    if routing is None:
        raise ValueError("nothing was routed")
    shares = routing.counts / routing.positions[:, None]
    hovers = []
    for r, site in enumerate(routing.sites):
        margin = routing.margins[r]
        least = "" if np.isnan(margin) else f"<br>least margin at {site}: {margin:.5g}"
        row = []
        for expert, count in enumerate(routing.counts[r]):
            weight = routing.weights[r, expert]
            mean = "" if np.isnan(weight) else f", mean weight {weight:.5g}"
            row.append(
                f"{site}, expert {expert}<br>chosen for {count} of {routing.positions[r]} "
                f"positions{mean}{least}"
            )
        hovers.append(row)
    ticks, texts = site_ticks(routing.sites, _MOST_TICKS)
    trace = go.Heatmap(
        z=_numbers(shares),
        hovertext=hovers,
        hovertemplate="%{hovertext}<extra></extra>",
        colorscale="Cividis",
        zmin=0,
        colorbar={"title": {"text": "share", "side": "top"}, "thickness": 14},
    )
    return _figure(
        [trace],
        min(1200, 200 + 22 * len(routing.sites)),
        xaxis={"title": {"text": "expert"}, "showgrid": False, "zeroline": False},
        yaxis={
            "title": {"text": "routed layer"},
            "tickvals": ticks,
            "ticktext": texts,
            "showgrid": False,
            "zeroline": False,
        },
    )
