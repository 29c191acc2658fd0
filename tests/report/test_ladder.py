"""A ladder as a picture and a page: its own numbers, the same bytes, nothing fetched or run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from larql.errors import RecordError
from larql.report.ladder import is_ladder, ladder_page, ladder_picture, read_ladder


def document(title: str = "Tiny") -> dict[str, Any]:
    def estimate(value: float) -> dict[str, float]:
        return {"value": value, "low": value * 0.9, "high": value * 1.1}

    def rung(depth: int, whole: bool) -> dict[str, Any]:
        speed = {"speedup": 0.5 + depth / 10}
        return {
            "depth": depth,
            "summary": {
                "positions": 7,
                "divergence": estimate(0.0 if whole else 3.0 / depth),
                "same_top": estimate(1.0 if whole else 0.25 * depth),
                "contained": {"5": estimate(1.0 if whole else 0.3 * depth)},
            },
            "cost": {"step_bytes": 1000 * depth},
            "step_ms": 1.5 * depth,
            "gains": {} if whole else {"1": speed, "4": speed},
        }

    return {
        "kind": "ladder",
        "rungs": [rung(2, False), rung(1, False), rung(3, True)],
        "provenance": {
            "container": {"model": title, "fingerprint": "f" * 64},
            "numerics": "n",
            "tokens_sha256": "a",
            "threads": 2,
            "environment": {"tool": "larql 0"},
        },
    }


def written(at: Path, content: object) -> Path:
    at.write_text(json.dumps(content))
    return at


def test_what_is_drawn_is_the_ladder_s(tmp_path: Path) -> None:
    path = written(tmp_path / "l.json", document())
    assert is_ladder(path)
    ladder = read_ladder(path)
    assert ladder.depths == (1, 2, 3) and ladder.positions == 7
    assert ladder.divergence.value == (3.0, 1.5, 0.0)
    assert ladder.same_top.low == (0.225, 0.45, 0.9)
    assert ladder.gains == {"1": (0.6, 0.7), "4": (0.6, 0.7)}
    assert ladder.rows()[1] == ["2", "1.5000", "0.500", "0.600", "3.00", "2,000", "0.70"]
    assert ladder.rows()[2][-1] == ""


def test_the_same_ladder_gives_the_same_bytes(tmp_path: Path) -> None:
    ladder = read_ladder(written(tmp_path / "l.json", document()))
    for kind in ("png", "svg"):
        assert ladder_picture(ladder, kind) == ladder_picture(ladder, kind)  # type: ignore[arg-type]
    assert ladder_picture(ladder, "png").startswith(b"\x89PNG")


def test_the_page_fetches_and_runs_nothing_and_takes_no_text_for_markup(tmp_path: Path) -> None:
    path = written(tmp_path / "l.json", document("<script>alert(1)</script> & $x$"))
    page = ladder_page(read_ladder(path))
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x$" in page
    assert "default-src 'none'" in page and page.count("<svg") == 1
    assert re.findall(r"(?:src|href)=\"(?!#)([^\"]*)", page) == []
    assert '<td class="number">1.5000</td>' in page


@pytest.mark.parametrize("key", ["rungs", "provenance"])
def test_what_is_no_ladder_is_refused(tmp_path: Path, key: str) -> None:
    wrong = document()
    del wrong[key]
    with pytest.raises(RecordError, match="is no whole ladder"):
        read_ladder(written(tmp_path / "l.json", wrong))
    wrong = document()
    wrong["rungs"][0]["step_ms"] = None
    with pytest.raises(RecordError, match="None is no number"):
        read_ladder(written(tmp_path / "l.json", wrong))
    wrong["rungs"] = []
    with pytest.raises(RecordError, match="is no whole ladder"):
        read_ladder(written(tmp_path / "l.json", wrong))
    assert not is_ladder(written(tmp_path / "r.jsonl", {"record": 1}))
    (tmp_path / "e").write_text("")
    assert not is_ladder(tmp_path / "e")
