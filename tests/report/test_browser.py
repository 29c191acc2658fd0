"""The page in a real browser without a network: it draws, hovers, moves, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from larql.report.contents import read_contents
from larql.report.page import page
from tests.builders.browser import Browser, browser
from tests.builders.records import LAYERS, TEXTS, likeliest, log_probability, norm, write_record

PLACES = ("lens", "log-probabilities", "ranks", "norms", "routing")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("report")
    contents = read_contents(write_record(at / "r.jsonl", routed=True))
    path = at / "report.html"
    path.write_text(page(contents), encoding="utf-8")
    return path


@pytest.fixture
def opened(chromium: Path, report: Path, tmp_path: Path) -> Iterator[Browser]:
    with browser(chromium, tmp_path) as tab:
        tab.open(report)
        yield tab


def middle(tab: Browser, position: int, layer: int) -> tuple[float, float]:
    """Return where on the screen a cell of the lens is."""
    found = tab.ask(
        """(() => {
        const area = document.querySelector("#lens .nsewdrag").getBoundingClientRect();
        return [area.left, area.top, area.width, area.height];
        })()"""
    )
    left, top, width, height = found
    return left + width * (position + 0.5) / 4, top + height * (1 - (layer + 0.5) / LAYERS)


def test_the_page_draws_and_answers_without_a_network(opened: Browser, report: Path) -> None:
    for place in PLACES:
        drawn = f"document.querySelectorAll('#{place} svg.main-svg').length"
        opened.wait_for(drawn, lambda count: count >= 2)
    # Cells, lines, and the labels on both.
    assert opened.ask("document.querySelectorAll('#lens .hm image').length") == 1
    for place, lines in {"log-probabilities": 3, "ranks": 2, "norms": 2}.items():
        assert (
            opened.ask(f"document.querySelectorAll('#{place} .scatterlayer path.js-line').length")
            == lines
        )
    assert repr(TEXTS["2"]) in opened.ask("document.querySelector('#ranks .legend').textContent")

    # A hover over the cell of position 1 after layer 1 tells its likeliest token.
    token = likeliest(1, 1)
    label = "document.querySelector('#lens .hoverlayer')?.textContent ?? ''"
    x, y = middle(opened, 1, 1)
    opened.mouse("mouseMoved", x - 3, y)
    opened.mouse("mouseMoved", x, y)
    hover = opened.wait_for(label, lambda text: "position 1" in text)
    assert f"after 1.ffn, position 1, token {TEXTS['1']!r}" in hover
    assert (
        f"{TEXTS[str(token)]!r} (token {token}): log p {log_probability(1, 1, token):.4f}" in hover
    )

    # A click moves the curves to that position, and so does the list.
    carrier = "document.getElementById('norms').data[0].y[0]"
    assert opened.ask(carrier) == norm(3, 0)
    opened.mouse("mousePressed", x, y)
    opened.mouse("mouseReleased", x, y)
    opened.wait_for(carrier, lambda value: value == norm(1, 0))
    assert opened.ask("document.getElementById('position').selectedIndex") == 1
    opened.ask(
        "const list = document.getElementById('position'); list.selectedIndex = 2;"
        "list.dispatchEvent(new Event('change'))"
    )
    opened.wait_for(carrier, lambda value: value == norm(2, 0))
    declared = "document.getElementById('log-probabilities').data[1].y"
    opened.wait_for(declared, lambda y: y == [log_probability(2, k, 2) for k in range(LAYERS)])

    # The buttons are those that are named in the page: none of them sends data anywhere.
    assert opened.ask("document.querySelectorAll('#norms .modebar-btn').length") == 4

    # No token has become an element, nothing was fetched, nothing failed.
    assert opened.ask("document.querySelectorAll('img, b, i, iframe, link').length") == 0
    assert opened.requests() == [report.as_uri()]
    assert opened.complaints() == []


def test_the_policy_stops_scripts_and_requests(
    chromium: Path, report: Path, tmp_path: Path
) -> None:
    """What the test above relies on: a page that did fetch something would be seen."""
    changed = tmp_path / "changed.html"
    text = report.read_text(encoding="utf-8")
    foreign = "<script>window.ran = 1</script><img src='http://192.0.2.1/x.png'>"
    changed.write_text(text.replace("</body>", f"{foreign}</body>"), encoding="utf-8")
    with browser(chromium, tmp_path) as tab:
        tab.open(changed)
        tab.wait_for("document.querySelectorAll('#lens svg.main-svg').length")
        assert tab.ask("typeof window.ran") == "undefined"
        complaints = "\n".join(tab.complaints())
        assert "script-src" in complaints and "img-src" in complaints


def test_a_request_would_be_seen(chromium: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.html"
    plain.write_text("<img src='http://192.0.2.1/x.png'>", encoding="utf-8")
    with browser(chromium, tmp_path) as tab:
        tab.open(plain)
        assert tab.requests() == [plain.as_uri(), "http://192.0.2.1/x.png"]
