"""The page: its plots hold the record's numbers, it is always the same, and tokens stay text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from larql.report.contents import read_contents
from larql.report.figures import figures_of, moving_values
from larql.report.page import page
from tests.builders.records import (
    LAYERS,
    TEXTS,
    likeliest,
    log_probability,
    norm,
    rank,
    write_record,
)

POSITIONS = range(4)


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text in each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def figures(path: Path) -> dict[str, Any]:
    """Return the plots as plain JSON."""
    made = figures_of(read_contents(path))
    return {place: json.loads(figure.to_json()) for place, figure in made.items()}


def test_the_heatmap_holds_the_log_probabilities_of_the_record(tmp_path: Path) -> None:
    (trace,) = figures(write_record(tmp_path / "r.jsonl"))["lens"]["data"]
    assert trace["z"] == [
        [log_probability(p, layer, likeliest(p, layer)) for p in POSITIONS]
        for layer in range(LAYERS)
    ]
    cell = trace["hovertext"][2][3]
    first = likeliest(3, 2)
    assert f"(token {first}): log p {log_probability(3, 2, first):.4f}" in cell
    assert f"rank {rank(3, 2, 2)}, log p {log_probability(3, 2, 2):.4f}" in cell
    assert f"rank {rank(3, 2, 4)}, log p {log_probability(3, 2, 4):.4f}" in cell
    assert "after 2.ffn, position 3" in cell


def test_the_heatmap_can_be_coloured_by_declared_tokens(tmp_path: Path) -> None:
    layout = figures(write_record(tmp_path / "r.jsonl"))["lens"]["layout"]
    buttons = layout["updatemenus"][0]["buttons"]
    cells = [(layer, p) for layer in range(LAYERS) for p in POSITIONS]
    assert len(buttons) == 5
    for number, token in enumerate((2, 4)):
        (log_p,), (log_rank,) = (buttons[1 + 2 * number + k]["args"][0]["z"] for k in (0, 1))
        for layer, p in cells:
            assert log_p[layer][p] == log_probability(p, layer, token)
            assert log_rank[layer][p] == pytest.approx(math.log10(rank(p, layer, token)))
    assert buttons[0]["args"][0]["reversescale"] is False
    assert buttons[2]["args"][0]["reversescale"] is True


def test_curves_are_those_of_the_last_position_at_first(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.jsonl")
    found = figures(path)
    layers = range(LAYERS)
    curves = [trace["y"] for trace in found["log-probabilities"]["data"]]
    assert curves[0] == [log_probability(3, k, likeliest(3, k)) for k in layers]
    assert curves[1:] == [[log_probability(3, k, token) for k in layers] for token in (2, 4)]
    ranks = [trace["y"] for trace in found["ranks"]["data"]]
    assert ranks == [[rank(3, k, token) for k in layers] for token in (2, 4)]
    carrier, delta = (trace["y"] for trace in found["norms"]["data"])
    assert carrier == [norm(3, write) for write in range(1 + 2 * LAYERS)]
    assert delta == [norm(3, 0), *(norm(3, write) / 2 for write in range(1, 1 + 2 * LAYERS))]


def test_curves_of_every_position_are_in_the_page(tmp_path: Path) -> None:
    moving = moving_values(read_contents(write_record(tmp_path / "r.jsonl")))
    for p in POSITIONS:
        assert moving["log-probabilities"][p][1] == [
            log_probability(p, k, 2) for k in range(LAYERS)
        ]
        assert moving["ranks"][p][1] == [rank(p, k, 4) for k in range(LAYERS)]
        assert moving["norms"][p][0] == [norm(p, write) for write in range(1 + 2 * LAYERS)]


def test_what_was_not_read_is_left_out(tmp_path: Path) -> None:
    path = write_record(tmp_path / "r.jsonl", unread=(3, 2))
    found = figures(path)
    (trace,) = found["lens"]["data"]
    assert [row[3] is None for row in trace["z"]] == [False, False, True]
    assert "not read" in trace["hovertext"][2][3]
    assert found["ranks"]["data"][0]["y"][2] is None
    assert "The lens failed" in page(read_contents(path))


def test_routing_is_drawn_where_there_is_any(tmp_path: Path) -> None:
    (trace,) = figures(write_record(tmp_path / "r.jsonl", routed=True))["routing"]["data"]
    assert trace["z"] == [[0.5, 0.25, 0.25, 1.0]] * 2
    hover = trace["hovertext"][0][0]
    assert "chosen for 2 of 4 positions, mean weight 0.25" in hover
    assert "least margin at 1.ffn: 0.25" in hover
    assert "routing" not in figures(write_record(tmp_path / "plain.jsonl"))


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, ["lens", "log-probabilities", "ranks", "norms"]),
        ({"routed": True}, ["lens", "log-probabilities", "ranks", "norms", "routing"]),
        ({"declared": ()}, ["lens", "log-probabilities", "norms"]),
        ({"declared": None}, ["norms"]),
        ({"tokens": ()}, []),
        ({"tokens": (0,), "ending": "killed"}, []),
        ({"tokens": [n % 7 for n in range(200)]}, ["lens", "log-probabilities", "ranks", "norms"]),
    ],
    ids=["lens", "routed", "no declared tokens", "no lens", "empty", "killed at once", "long"],
)
def test_each_plot_has_its_place(
    options: dict[str, Any], places: list[str], tmp_path: Path
) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", **options))
    assert list(figures_of(contents)) == places
    text = page(contents)
    for place in ("lens", "log-probabilities", "ranks", "norms", "routing"):
        assert (f'<div id="{place}">' in text) is (place in places)


def test_cells_are_labelled_where_there_is_room(tmp_path: Path) -> None:
    (few,) = figures(write_record(tmp_path / "few.jsonl"))["lens"]["data"]
    long = [n % 7 for n in range(25)]
    (many,) = figures(write_record(tmp_path / "many.jsonl", tokens=long))["lens"]["data"]
    assert few["texttemplate"] == "%{text}"
    assert few["text"][0][:2] == ["'The'", "' cat'"]
    assert "text" not in many and "texttemplate" not in many


def test_the_same_record_gives_the_same_page(tmp_path: Path) -> None:
    paths = [write_record(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    first, second, again = (page(read_contents(path)) for path in (*paths, paths[0]))
    assert first == second == again


def test_tokens_and_names_stay_text(tmp_path: Path) -> None:
    text = page(read_contents(write_record(tmp_path / "r.jsonl", routed=True)))
    elements = Elements(text)
    names = {tag for tag, _ in elements.found}
    assert not names & {"b", "img", "i", "run"}
    assert [tag for tag, _ in elements.found].count("script") == 3
    data = json.loads(elements.scripts[0])
    (trace,) = data["figures"]["lens"]["data"]
    labels = str(data["figures"]["lens"]) + str(data["figures"]["ranks"])
    assert "'&lt;/script&gt;&lt;b&gt;bold&lt;/b&gt;'" in trace["hovertext"][0][2]
    assert "&lt;img" in labels
    assert "<img" not in labels and "<b>bold" not in labels and "</script" not in labels
    # What plotly is told to read as markup is what this program wrote.
    assert set(re.findall(r"<[^>]*>", labels)) <= {"<br>", "<b>", "</b>", "<extra>", "</extra>"}


def test_the_data_of_a_page_holds_no_markup(tmp_path: Path) -> None:
    text = page(read_contents(write_record(tmp_path / "r.jsonl")))
    (data,) = re.findall(r'id="report-data">(.*?)</script>', text)
    assert not set("<>&") & set(data)
    assert TEXTS["5"] not in data


def test_the_page_allows_its_own_scripts_only(tmp_path: Path) -> None:
    elements = Elements(page(read_contents(write_record(tmp_path / "r.jsonl"))))
    (policy,) = (
        str(attributes["content"])
        for tag, attributes in elements.found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    _, library, script = elements.scripts
    for text in (library, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    for _, attributes in elements.found:
        assert not {"src", "href", "srcset", "action"} & attributes.keys()


def test_scripts_are_hashed_as_a_browser_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "one();\r\ntwo();\rthree();")
    text = page(read_contents(write_record(tmp_path / "r.jsonl")))
    digest = base64.b64encode(hashlib.sha256(b"one();\ntwo();\nthree();").digest()).decode()
    assert f"sha256-{digest}" in text


def test_a_killed_run_says_so_on_the_page(tmp_path: Path) -> None:
    killed = page(read_contents(write_record(tmp_path / "r.jsonl", ending="killed")))
    assert '<p class="note" role="alert">This record has no receipt' in killed
    assert 'role="alert"' not in page(read_contents(write_record(tmp_path / "whole.jsonl")))
