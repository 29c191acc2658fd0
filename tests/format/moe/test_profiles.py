"""Profiles select, inherit and leave out; they never convert, and what is not there is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from larql.errors import ContainerError, LarqlError, UsageError
from larql.format.container import Container
from larql.format.index import Index, index_from_json
from larql.format.moe.profiles import Selector, document_selection, select
from tests.builders.containers import make_container, read_json
from tests.builders.models import LlamaSpec, write_llama_safetensors

Q = "target.layer.000/attention.q.weight"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Any:
    at = tmp_path_factory.mktemp("profiles")
    source = write_llama_safetensors(at / "m", LlamaSpec(layers=1))
    return read_json(make_container(source, at / "a").path / "index.json")


def index_of(document: Any, profiles: Any, variants: Any = None) -> Index:
    values = document["representations"]
    small = {**values[Q], "fidelity": "numerically-approximate"}
    return index_from_json(
        {
            **document,
            "representations": {**values, f"{Q}#small": small, f"{Q}#other": small},
            "profiles": profiles,
            "variants": variants
            or {
                "small": {"representations": {Q: f"{Q}#small"}},
                "other": {"representations": {Q: f"{Q}#other"}},
            },
        },
        "index",
    )


def test_without_a_profile_the_first_in_the_index_serves(document: Any) -> None:
    index = index_of(document, {"p": {"variants": ["small"]}})
    found = select(index, None, "c")
    assert found == document_selection(index)
    assert (found.profile, found.bound[Q].id, found.chosen) == (None, Q, frozenset())


def test_a_profile_selects_and_default_is_active(document: Any) -> None:
    index = index_of(document, {"default": {"variants": ["small"]}, "whole": {}})
    assert select(index, None, "c").bound[Q].id == f"{Q}#small"
    assert select(index, "whole", "c").bound[Q].id == Q


def test_inheritance_the_nearest_decides_and_omissions_add_up(document: Any) -> None:
    index = index_of(
        document,
        {
            "base": {"variants": ["small"], "omits": ["target.output_head"]},
            "child": {"inherits": "base", "variants": ["other"], "omits": [Q]},
        },
    )
    found = select(index, "child", "c")
    assert found.chain == ("child", "base")
    assert found.bound[Q].id == f"{Q}#other"
    assert not found.contradictions
    assert found.omitted(Q)
    assert found.omitted("target.output_head/weight")
    assert not found.omitted("target.layer.000/attention.k.weight")


def test_two_variants_of_one_profile_contradict_each_other(document: Any) -> None:
    index = index_of(document, {"p": {"variants": ["small", "other"]}})
    assert select(index, "p", "c").contradictions == {Q: (f"{Q}#small", f"{Q}#other")}


REFUSED: list[tuple[Any, str, type[LarqlError], str]] = [
    ({}, "p", UsageError, "no profile 'p'; the container has none"),
    ({"a": {}}, "p", UsageError, "the container has a"),
    ({"p": {"inherits": "q"}}, "p", ContainerError, "inherits from 'q', which is not there"),
    ({"p": {"inherits": "p"}}, "p", ContainerError, "inherits from itself: p -> p"),
    (
        {"p": {"inherits": "q"}, "q": {"inherits": "r"}, "r": {"inherits": "q"}},
        "p",
        ContainerError,
        "from itself: q -> r -> q",
    ),
    ({"p": {"variants": ["x"]}}, "p", ContainerError, "the container has small, other"),
    ({"p": {"converts": "q4_0"}}, "p", ContainerError, "unknown field 'converts'"),
    ({"p": {"omits": "x"}}, "p", ContainerError, "`omits` is 'x'"),
    ({"p": {"omits": ["a[3:3]"]}}, "p", ContainerError, r"range of entries"),
    ({"p": 3}, "p", ContainerError, "expected an object"),
]


@pytest.mark.parametrize(("profiles", "name", "error", "words"), REFUSED)
def test_refused(
    document: Any, profiles: Any, name: str, error: type[LarqlError], words: str
) -> None:
    with pytest.raises(error, match=words):
        select(index_of(document, profiles), name, "c")


def test_a_variant_that_is_not_there_is_never_made(document: Any) -> None:
    variants = {"small": {"representations": {Q: f"{Q}#tiny"}}}
    index = index_of(document, {"p": {"variants": ["small"]}}, variants)
    with pytest.raises(ContainerError, match=r"it has .*#small.*nothing is converted"):
        select(index, "p", "c")


@pytest.mark.parametrize(
    ("name", "operand", "covers"),
    [
        ("target", "target.layer.000/x", True),
        ("target.layer.00", "target.layer.000/x", False),
        ("target.layer.000", "target.layer.000/x", True),
        ("target.layer.000/x", "target.layer.000/x", True),
        ("target.layer.000/x", "target.layer.000/xy", False),
        ("target.layer.000/x", "target.layer.000/x.weight", True),
        ("other", "target.layer.000/x", False),
    ],
)
def test_what_a_selector_covers(name: str, operand: str, covers: bool) -> None:
    assert Selector(name).covers(operand) is covers


def test_a_container_written_without_profiles_has_none(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1))
    assert (
        select(Container(make_container(source, tmp_path / "a").path).index, None, "c").chain == ()
    )
