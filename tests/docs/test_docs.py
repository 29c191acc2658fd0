"""Pages say what the code says: tables of fields, encodings, the example, links, paths."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from larql.format import graph as g
from larql.format.encoding import ENCODINGS
from larql.format.generation import Generation, SchemaVersion, readable_schemas, written_schema
from larql.format.graph_json import GRAPH_SCHEMA, graph_from_json, graph_to_json
from larql.format.index import (
    MAX_JSON_BYTES,
    FileEntry,
    Index,
    Representation,
    SourceBinding,
    index_from_json,
    index_to_json,
)
from larql.format.rows import RowSelection
from tests.naive import packed as naive_packed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FORMAT = DOCS / "format.md"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PAGES = [*sorted(DOCS.rglob("*.md")), *(p for p in (ROOT / "README.md",) if p.is_file())]
SCRIPT = ROOT / "scripts" / "docs" / "format_parts.py"

EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))

# Objects of the graph that carry no `op`, by the name of their table.
UNTAGGED = {
    "graph": g.Graph,
    "component": g.Component,
    "layer": g.Layer,
    "block": g.Block,
    "rope scaling": g.RopeScaling,
    "router": g.Router,
    "groups": g.ExpertGroups,
    "bank": g.ExpertBank,
    "shared": g.SharedExperts,
    "latent": g.LatentSpace,
    "edge": g.Edge,
}
TAGGED = {
    "embed": g.Embed,
    "norm": g.Norm,
    "linear": g.Linear,
    "rope": g.Rope,
    "softmax_attention": g.SoftmaxAttention,
    "latent_attention": g.LatentAttention,
    "dense_ffn": g.DenseFfn,
    "per_layer_table": g.PerLayerTable,
    "per_layer_embedding": g.PerLayerEmbedding,
    "gated_delta": g.GatedDelta,
    "kda": g.Kda,
    "ssm": g.Ssm,
    "short_convolution": g.ShortConvolution,
    "convolution": g.Convolution,
    "distance_bias": g.DistanceBias,
    "position_scale": g.PositionScale,
    "draft_input": g.DraftInput,
    "recurrent": g.Recurrent,
    "convolution_rows": g.ConvolutionRows,
    "routed_ffn": g.RoutedFfn,
    "head": g.Head,
    "kv_rows": g.KvRows,
    "latent_rows": g.LatentRows,
}
# What JSON has and the dataclass has not.
ONLY_IN_JSON = {"graph": ["schema"], "component": ["state"]}


@dataclasses.dataclass(frozen=True)
class Row:
    kind: str
    default: str
    meaning: str


def field_table(name: str) -> dict[str, Row]:
    """Read the table that follows the marker of ``name``; fields in order."""
    text = FORMAT.read_text(encoding="utf-8")
    marker = f"<!-- fields: {name} -->\n\n"
    assert text.count(marker) == 1, f"no table of fields for {name!r}"
    lines = text.split(marker)[1].split("\n\n", 1)[0].splitlines()
    assert lines[0].startswith("| Field | Type | Default |")
    rows = {}
    for line in lines[2:]:
        field, kind, default, meaning = (cell.strip() for cell in line.strip("|").split("|"))
        rows[field.strip("`")] = Row(kind, default, meaning)
    return rows


def marked_tables() -> set[str]:
    return set(re.findall(r"<!-- fields: (.+?) -->", FORMAT.read_text(encoding="utf-8")))


# The graph


def test_every_operation_of_the_graph_is_documented() -> None:
    described = {*UNTAGGED.values(), *TAGGED.values()}
    classes = {c for name in g.__all__ if dataclasses.is_dataclass(c := getattr(g, name))}
    assert described == classes


@pytest.mark.parametrize("name", [*UNTAGGED, *TAGGED])
def test_fields_of_the_graph_are_documented(name: str) -> None:
    cls = {**UNTAGGED, **TAGGED}[name]
    fields = [field.name for field in dataclasses.fields(cls)]
    extra = ["op"] if name in TAGGED else ONLY_IN_JSON.get(name, [])
    assert sorted(field_table(name)) == sorted([*fields, *extra])


@pytest.mark.parametrize("name", [*UNTAGGED, *TAGGED])
def test_defaults_of_the_graph_are_documented(name: str) -> None:
    table = field_table(name)
    for field in dataclasses.fields({**UNTAGGED, **TAGGED}[name]):
        if field.default is dataclasses.MISSING:
            expected = ""
        elif field.default is None:
            expected = "absent"
        else:
            expected = "`[]`" if field.default == () else f"`{field.default!r}`"
        assert table[field.name].default == expected, field.name


@pytest.mark.parametrize("name", [*UNTAGGED, *TAGGED])
def test_kinds_of_the_graph_are_documented(name: str) -> None:
    """Every value of a closed choice stands in the row of its field."""
    table = field_table(name)
    for field, hint in typing.get_type_hints({**UNTAGGED, **TAGGED}[name]).items():
        if typing.get_origin(hint) is typing.Literal:
            for value in typing.get_args(hint):
                assert f"`{value}`" in table[field].meaning, f"{field}: {value}"


def every_operation() -> g.Graph:
    """Make a graph in which each field has a value."""
    norm = g.Norm("rms", 8, 1e-6, 1.0, "o/n", "o/nb")
    linear = g.Linear("o/w", 8, 8, "o/b")
    scaling = g.RopeScaling(
        "yarn", 8.0, 1.0, 4.0, 64, beta_fast=32.0, beta_slow=1.0, truncate=True, magnitude=1.2,
        divisors=(1.0, 2.0), long_divisors=(3.0, 4.0),
    )  # fmt: skip
    rope = g.Rope("half", 4, 1e4, scaling, "o/f", turning=1, long_factors="o/lf")
    conv = g.Convolution("o/k", 8, 4, "silu", "o/kb", True)
    attention = g.SoftmaxAttention(
        heads=2, kv_heads=1, key_dim=4, value_dim=4, scale=0.5, q=linear, k=linear, v=linear,
        o=linear, window=3, softcap=5.0, q_norm=norm, k_norm=norm, v_norm=norm, clip=8.0, rope=rope,
        sinks="o/s", gate=linear, k_conv=conv, v_conv=conv,
        distance=g.DistanceBias(linear, "o/p", 2, 4), position_scale=g.PositionScale(4, 0.1),
    )  # fmt: skip
    latent = g.LatentAttention(
        heads=2, nope_dim=4, rope_dim=4, value_dim=4, latent_dim=8, scale=0.5, q_down=linear,
        q_norm=norm, q_nope=linear, q_rope=linear, latent=linear, latent_norm=norm, k_rope=linear,
        k_up=linear, v_up=linear, o=linear, rope=rope, k_up_rows="latent",
    )  # fmt: skip
    own = g.PerLayerEmbedding(8, "silu", linear, norm, linear, linear, 0.1, 0.7)
    ffn = g.DenseFfn("silu", linear, linear, linear, "o/fs")
    routed = g.RoutedFfn(
        g.Router(
            linear, "softmax", 2, True, 1e-9, g.ExpertGroups(2, 1, "max"), "o/c", 2.0, "o/s",
            norm, 0.5, 2, "o/gs",
        ),
        g.ExpertBank(
            "gpt-oss-expert-v1", 4, 8, 8, "silu", "o/d", "o/g", "o/u", "o/gu", "interleaved",
            "o/gub", "o/db", 7.0, 1.7, 1.0,
        ),
        g.SharedExperts(ffn, linear, norm, norm),
        "weighted_sum",
        norm,
        norm,
        (ffn, ffn),
        g.LatentSpace(linear, linear),
    )  # fmt: skip
    convs = (conv, conv, conv)
    recurrent = (
        g.GatedDelta(
            2, 2, 4, 4, 0.5, 1e-6, *(linear,) * 6, *convs, "o/a", "o/d", norm, "silu", linear,
            "negated", "tiled",
        ),
        g.Kda(
            2, 4, 4, 0.5, 1e-6, *(linear,) * 8, *convs, "o/a", "o/d", norm, "sigmoid", linear,
            "negated",
        ),
        g.Ssm(
            2, 4, 1, 4, *(linear,) * 5, *convs, "o/a", "o/d", "o/s", norm, "silu", linear, 0.1, 2.0,
            "negated",
        ),
        g.ShortConvolution(linear, linear, linear, conv, linear),
    )  # fmt: skip
    blocks = (
        g.Block("attention", attention, norm, norm, 0.5),
        g.Block("attention", dataclasses.replace(attention, shared=1), norm, norm, 0.5),
        g.Block("attention", latent, norm, norm, 0.5),
        g.Block("per_layer", own, norm, norm, 0.5),
        g.Block("ffn", ffn, norm, norm, 0.5),
        g.Block("ffn", routed, norm, norm, 0.5),
        *(g.Block("attention", mixer, norm, norm, 0.5) for mixer in recurrent),
        g.Block("ffn", ffn, norm, norm, 0.5, "o/cs", conv),
    )
    component = g.Component(
        id="target",
        role="decoder",
        hidden_size=8,
        vocab_size=16,
        context_length=32,
        embed=g.Embed("o/e", 16, 8, 2.0, norm),
        layers=(g.Layer(0, blocks),),
        head=g.Head(norm, "o/e", 16, 8, True, 0.5, 30.0, 24),
        per_layer=g.PerLayerTable("o/t", 16, 1, 8, 2.0),
        draft_input=g.DraftInput("embedding", norm, norm, linear),
    )
    return g.Graph((component,), (g.Edge("target", "final", "target"),))


def test_tables_of_the_graph_are_the_keys_of_its_json() -> None:
    document = graph_to_json(every_operation())
    assert graph_from_json(document, "graph") == every_operation()
    seen = dict(objects_of(document, "graph"))
    assert set(seen) == {*UNTAGGED, *TAGGED}
    for name, keys in seen.items():
        assert keys == set(field_table(name)), name


def objects_of(value: object, name: str) -> Iterator[tuple[str, set[str]]]:
    """Give each kind of object in a graph's document with its keys."""
    inner = {
        "components": "component",
        "edges": "edge",
        "layers": "layer",
        "blocks": "block",
        "scaling": "rope scaling",
    }
    if isinstance(value, list):
        for item in value:
            yield from objects_of(item, name)
    elif isinstance(value, dict):
        yield str(value.get("op", name)), set(value)
        for key, item in value.items():
            yield from objects_of(item, inner.get(key, key))


def test_the_schema_of_the_graph_is_documented() -> None:
    assert field_table("graph")["schema"].meaning.startswith(f"`{GRAPH_SCHEMA}`.")


# The index


def index_example() -> Index:
    entry = FileEntry(1, "0" * 64)
    source = SourceBinding("w", "f32", "0" * 64, RowSelection.span(0, 1), (1,), "columns", "s", "b")
    representation = Representation(
        "o/w",
        "o/w",
        ENCODINGS["f32"],
        "source-exact",
        (1,),
        "segments/o",
        "w",
        source,
        "q8_0",
        "o",
        2,
    )
    return Index(
        schema=SchemaVersion(3),
        model="m",
        family="f",
        hidden_size=1,
        num_layers=1,
        components=("target",),
        system_graph="system_graph.json",
        moe_manifest="moe_manifest.json",
        source={},
        text={},
        objects={},
        representations={"o/w": representation},
        precision_map={},
        authority="canonical",
        notes=(),
        segments={"segments/o": FileEntry(1, "0" * 64, {"schema": "lyrw"})},
        files={"segments/o": entry},
    )


def index_objects(document: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Give one object of each kind in an index's document, by the name of its table."""
    found = {"index": document}
    for name, key in (("segment", "segments"), ("file", "files"), ("object", "objects")):
        values = document[key]
        assert isinstance(values, dict)
        for value in values.values():
            found[name] = value
    representations = document["representations"]
    assert isinstance(representations, dict)
    for value in representations.values():
        found["representation"] = value
        found["representation source"] = value["source"]
    return found


def test_fields_of_the_index_are_documented() -> None:
    for name, value in index_objects(index_to_json(index_example())).items():
        assert list(value) == list(field_table(name)), name


def test_optional_fields_of_the_index_are_those_that_may_be_absent() -> None:
    document = index_to_json(index_example())
    for field, row in field_table("index").items():
        without = {key: value for key, value in document.items() if key != field}
        if row.default:
            index_from_json(without, "index")
        else:
            with pytest.raises(Exception, match=field):
                index_from_json(without, "index")


def test_the_limit_on_documents_is_documented() -> None:
    assert f"above\n{MAX_JSON_BYTES >> 20} MiB" in FORMAT.read_text(encoding="utf-8")


def test_schema_versions_are_documented() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    table = text.split("| `version` | Generation | |\n| --- | --- | --- |\n")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines():
        number, generation, _ = (cell.strip() for cell in line.strip("|").split("|"))
        found[int(number)] = Generation(generation)
    expected = {schema.number: kind for kind in Generation for schema in readable_schemas(kind)}
    assert found == expected
    assert f"| {written_schema(Generation.VINDEX3).number} | VINDEX3 | this specification;" in text


# The generated parts


@pytest.fixture
def format_parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("format_parts")


def test_generated_parts_are_what_would_be_written() -> None:
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_encodings_are_documented(format_parts: ModuleType) -> None:
    table = format_parts.encoding_table()
    assert f"\n{table}\n" in FORMAT.read_text(encoding="utf-8")
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert names == list(ENCODINGS)


def test_block_layouts_are_documented() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    table = text.split("| Encoding | Bytes | Value |\n| --- | --- | --- |\n")[1].split("\n\n")[0]
    for name, enc in ENCODINGS.items():
        if not enc.is_block or enc.unpacked is not None:
            continue
        (line,) = (row for row in table.splitlines() if row.startswith(f"| `{name}` |"))
        ranges = [tuple(map(int, pair)) for pair in re.findall(r"`\[(\d+):(\d+)\]`", line)]
        assert ranges[0][0] == 0
        assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
        assert ranges[-1][1] == enc.block_bytes, name


def test_packed_layouts_are_documented() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    table = text.split("| Encoding | float16 | Words, in order |\n| --- | --- | --- |\n")[1]
    table = table.split("\n\n")[0]
    for name, enc in ENCODINGS.items():
        if enc.unpacked is None:
            continue
        (line,) = (row for row in table.splitlines() if row.startswith(f"| `{name}` |"))
        cells = line.split("|")[2:4]
        found = [
            [at for pair in re.findall(r"`\[(\d+):(\d+)\]`", cell) for at in range(*map(int, pair))]
            for cell in cells
        ]
        halves, words = naive_packed.LAYOUTS[enc.unpacked]
        assert found[0] == [at + i for at in halves for i in range(2)], name
        size = 1 if enc.unpacked == "q8_0" else 4
        assert found[1] == [at + i for at in words for i in range(size)], name
        assert sorted(found[0] + found[1]) == list(range(enc.block_bytes)), name


def test_the_example_has_documented_fields_only(format_parts: ModuleType, tmp_path: Path) -> None:
    example = format_parts.make_example(tmp_path)
    for name, value in index_objects(example.index).items():
        assert set(value) <= set(field_table(name)), name
    assert set(example.index["source"]) <= set(field_table("source"))
    for name, keys in objects_of(example.graph, "graph"):
        assert keys <= set(field_table(name)), name
    assert example.data_start % 64 == 0


def test_the_example_is_the_same_wherever_it_is_made(
    format_parts: ModuleType, tmp_path: Path
) -> None:
    first, second = tmp_path / "a", tmp_path / "b" / "c"
    for path in (first, second):
        path.mkdir(parents=True)
    assert format_parts.make_example(first) == format_parts.make_example(second)


def test_a_part_without_markers_is_refused(format_parts: ModuleType) -> None:
    with pytest.raises(ValueError, match="markers of 'nowhere'"):
        format_parts.replace_part("text", "nowhere", "new")


def test_every_table_of_fields_is_held_against_something() -> None:
    held = {*UNTAGGED, *TAGGED, "source", *index_objects(index_to_json(index_example())), "object"}
    assert marked_tables() == held


# All pages


@pytest.mark.parametrize("page", DECISIONS, ids=lambda p: p.stem)
def test_a_decision_has_its_three_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number = page.name[:4]
    assert text.startswith(f"# {number}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= 60, "longer than a page"


def test_decisions_are_numbered_and_listed() -> None:
    # Numbers are given out before pages land, so one may be missing for a while.
    numbers = [int(page.name[:4]) for page in DECISIONS]
    assert len(set(numbers)) == len(numbers)
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", index) == [page.name for page in DECISIONS]


def anchors(page: Path) -> set[str]:
    """Give the anchors that GitHub makes of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
        found.add(words.replace(" ", "-"))
    return found


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(path), f"{target}: no such heading"


@EACH_PAGE
def test_files_of_the_project_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:larql|tests|scripts|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{name} does not exist"


def test_every_page_is_listed() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, f"{page.name} is not listed"


FORBIDDEN = {
    r"pip3? install (?:-\S+ )*[\"']?larql(?![-\w])": "that name belongs to another project",
    r"pipx install [\"']?larql(?![-\w])": "that name belongs to another project",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "unfinished",
    r"(?<![\w.])/work/|(?<![\w.])/root/|/home/\w": "a path of one machine",
    r"\b(?:blazing|seamless|leverag\w+|state-of-the-art|cutting-edge)\b": "advertising",
}


@EACH_PAGE
def test_pages_hold_no_forbidden_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for pattern, reason in FORBIDDEN.items():
        found = re.search(pattern, text, re.IGNORECASE)
        assert found is None, f"{found and found[0]!r}: {reason}"


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("pip install larql", True),
        ("pip install 'larql[test]'", True),
        ("python -m pip install --quiet larql\n", True),
        ("pip install larql-vindex3", False),
        ("pip install -e .", False),
        ("see /work/main", True),
        ("a network/work/flow", False),
    ],
)
def test_forbidden_words_are_found(text: str, bad: bool) -> None:
    assert any(re.search(pattern, text, re.IGNORECASE) for pattern in FORBIDDEN) is bad
