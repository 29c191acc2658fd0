"""The whole lattice of authority: five levels of bytes, five of each cap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.format.moe.authority import (
    ABSENT,
    PARTIAL,
    WHOLE,
    Achievable,
    Authority,
    Level,
    achievable,
    fold,
    level_of,
)

ORDER = (
    "source-exact",
    "source-equivalent",
    "numerically-approximate",
    "structurally-approximate",
    "analysis-only",
)
TRIPLES = list(itertools.product(range(5), repeat=3))


def test_the_levels_are_in_order() -> None:
    assert tuple(level.text for level in Level) == ORDER
    assert [level_of(text) for text in ORDER] == list(Level)
    assert (Level(0), Level(3), Level(4)) == (WHOLE, PARTIAL, ABSENT)


@pytest.mark.parametrize(("weakest", "complete", "omitted"), TRIPLES)
def test_the_weakest_of_bytes_and_caps_binds(weakest: int, complete: int, omitted: int) -> None:
    regions = [("a", ORDER[0]), ("b", ORDER[weakest])]
    found = fold(regions, completeness=Level(complete), omission=Level(omitted))
    bound = max(weakest, complete, omitted)
    assert found.level == ORDER[bound]
    if bound == 0:
        assert (found.cap, found.regions) == ("none", ())
    elif bound == weakest:
        assert (found.cap, found.regions) == ("fidelity", ("b",))
    else:
        assert (found.cap, found.regions) == (
            "completeness" if bound == complete else "omission",
            (),
        )


REGIONS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(ORDER)), min_size=1, max_size=6
)


@given(REGIONS, st.integers(0, 4), st.integers(0, 4))
def test_neither_order_nor_repetition_is_an_input(
    regions: list[tuple[str, str]], a: int, b: int
) -> None:
    caps = {"completeness": Level(a), "omission": Level(b)}
    assert fold(regions, **caps) == fold(list(reversed(regions)), **caps)
    assert fold(regions, **caps) == fold(regions + regions, **caps)


@given(REGIONS, st.integers(0, 5), st.integers(0, 4))
def test_replacing_by_weaker_never_raises_it(
    regions: list[tuple[str, str]], place: int, weaker: int
) -> None:
    place %= len(regions)
    name, fidelity = regions[place]
    lowered = max(level_of(fidelity), Level(weaker))
    changed = [*regions[:place], (name, lowered.text), *regions[place + 1 :]]
    assert level_of(fold(changed).level) >= level_of(fold(regions).level)
    assert level_of(fold([]).level) >= level_of(fold(regions).level)


def test_nothing_selected_is_for_analysis_only() -> None:
    assert fold([]) == Authority("analysis-only", "nothing selected")
    assert fold([], completeness=WHOLE).cap == "nothing selected"


def test_a_range_is_settled_or_not_and_no_route_has_none() -> None:
    exact, rough = fold([("a", ORDER[0])]), fold([("a", ORDER[2])])
    assert achievable([rough, exact]) == Achievable(ORDER[0], ORDER[2])
    assert not Achievable(ORDER[0], ORDER[2]).settled
    assert Achievable(ORDER[2], ORDER[2]).settled
    assert achievable([]) is None
