"""Still pictures: the record's numbers, the same bytes, no glyph missing."""

from __future__ import annotations

import struct
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from larql.report.contents import read_contents
from larql.report.paper import draw, picture
from tests.builders.records import LAYERS, likeliest, log_probability, rank, write_record


def test_the_picture_holds_the_numbers_of_the_record(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", unread=(1, 0)))
    figure = draw(contents)
    lens, log_p, ranks, norms = (axes for axes in figure.axes if axes.get_label() != "<colorbar>")
    (mesh,) = lens.collections
    values = np.ma.filled(mesh.get_array().reshape(LAYERS, 4), np.nan)
    for layer in range(LAYERS):
        for p in range(4):
            expected = log_probability(p, layer, likeliest(p, layer))
            assert np.isnan(values[0, 1]) if (p, layer) == (1, 0) else values[layer, p] == expected
    layers = range(LAYERS)
    assert [list(line.get_ydata()) for line in log_p.lines[1:]] == [
        [log_probability(3, k, token) for k in layers] for token in (2, 4)
    ]
    assert [list(line.get_ydata()) for line in ranks.lines] == [
        [rank(3, k, token) for k in layers] for token in (2, 4)
    ]
    assert len(norms.lines[0].get_ydata()) == 1 + 2 * LAYERS
    assert len(lens.texts) == 4 * LAYERS - 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"routed": True},
        {"tokens": (4, 5, 6), "declared": (6,)},
        {"declared": ()},
        {"declared": None},
        {"tokens": ()},
        {"ending": "killed"},
        {"tokens": [n % 7 for n in range(200)]},
    ],
    ids=["lens", "routed", "glyphs", "no declared tokens", "no lens", "empty", "killed", "long"],
)
def test_pictures_of_all_kinds_of_records(options: dict[str, Any], tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", **options))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph, a layout that does not fit
        svg = picture(contents, "svg")
        png = picture(contents, "png")
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width >= 1000 and height >= 500
    # Not a blank sheet.
    pixels = matplotlib.image.imread(_file(tmp_path / "p.png", png))
    assert len(set(map(tuple, pixels[::4, ::4].reshape(-1, pixels.shape[-1]).tolist()))) > 20


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_record_gives_the_same_bytes(kind: Any, tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", routed=True))
    first = picture(contents, kind)
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "text.usetex": True}):
        assert picture(contents, kind) == first
        assert matplotlib.rcParams["font.size"] == 20
    assert b"<dc:date>" not in first and b"Software" not in first


def test_the_picture_of_a_killed_run_says_so(tmp_path: Path) -> None:
    contents = read_contents(write_record(tmp_path / "r.jsonl", ending="killed"))
    assert "no receipt" in draw(contents).get_suptitle()
