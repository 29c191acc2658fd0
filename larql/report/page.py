"""One self-contained HTML page: the plots, the library that draws them, and the provenance.

The page fetches nothing, and says so to the browser: its policy allows the two scripts that it
holds, by their hashes, and forbids everything else. A token of a model is text everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from larql import __version__
from larql.report.contents import Contents

__all__ = ["page", "resource"]

_CURVES = (
    ("log-probabilities", "Log-probability over depth"),
    ("ranks", "Rank over depth"),
    ("norms", "Norms over depth"),
)
# Named one by one: a library may bring buttons that send data somewhere.
_BUTTONS = [["toImage", "zoom2d", "pan2d", "resetScale2d"]]
_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "typesetMath": False,
    "modeBarButtons": _BUTTONS,
}


def page(contents: Contents) -> str:
    """Return the page of a record: the same record gives the same text.

    Parameters
    ----------
    contents : Contents

    Returns
    -------
    str
        A complete HTML document.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    from larql.report.figures import figures_of, moving_values

    figures = figures_of(contents)
    data = {
        "config": _CONFIG,
        "figures": {place: figure.to_plotly_json() for place, figure in figures.items()},
        "moving": moving_values(contents),
    }
    library, script = _lines(get_plotlyjs()), _lines(resource("page.js"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resource("page.html.jinja"))
    return template.render(
        contents=contents,
        run=contents.view.header["run_id"],
        leads=dict(contents.summary.facts).get("leads"),
        labels=_labels(contents),
        places=list(figures),
        curves=_CURVES,
        policy=_policy(library, script),
        style=Markup(resource("page.css")),
        data=Markup(_json_text(data)),
        library=Markup(library),
        script=Markup(script),
        version=__version__,
        plotly_version=get_plotlyjs_version(),
    )


def _labels(contents: Contents) -> list[str]:
    return [
        f"{position}: {token}"
        for position, token in zip(contents.positions, contents.tokens(), strict=True)
    ]


def resource(name: str) -> str:
    """Return the text of a file beside this module."""
    return (resources.files("larql.report") / name).read_text(encoding="utf-8")


def _lines(text: str) -> str:
    """End lines as a browser does before it hashes a script."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _json_text(value: Any) -> str:
    """Return JSON in which no markup can begin or end."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
