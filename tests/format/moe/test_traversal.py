"""Traversal against its four sentences, and the cases that pairwise thinking gets wrong."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.format.moe.states import (
    Absent,
    Damaged,
    Executable,
    Mismatch,
    State,
    Unsupported,
    Why,
    is_defect,
    refusal_kind,
    repair,
    state_name,
)
from larql.format.moe.traversal import Segment, Tier, choose, fold_runs, traverse

GOOD = Executable("source-exact")
GONE = Absent(Why.NOWHERE, "no file")
LEFT = Absent(Why.OMITTED, "profile p leaves it out")
BAD = Unsupported("format 77")
U = tuple(Segment(i, i + 1, i) for i in range(3))


def role(*usable: int, otherwise: State = GONE) -> Mapping[Segment, State]:
    return {s: GOOD if s.index in usable else otherwise for s in U}


def naive(coverage: list[set[int]], required: set[int]) -> Tier:
    if any(not c for c in coverage):
        return Tier.ROLE_FAILURE
    if any(c != coverage[0] for c in coverage):
        return Tier.INCOMPATIBLE
    return Tier.EXECUTABLE if coverage[0] == required else Tier.PARTIAL


COVERAGE = st.sets(st.integers(0, 4))


@given(st.lists(COVERAGE, min_size=1, max_size=4), st.integers(1, 5))
def test_it_is_the_four_sentences(coverage: list[set[int]], size: int) -> None:
    segments = [Segment(2 * i, 2 * i + 2, i) for i in range(5)]
    required = set(range(size))
    roles = {
        str(number): {s: GOOD if s.index in c else GONE for s in segments}
        for number, c in enumerate(coverage)
    }
    found = traverse(segments[:size], roles)
    inside = [c & required for c in coverage]
    assert found.tier is naive(inside, required)
    assert {s.index for s in found.common} == set.intersection(*inside)
    for gap in found.gaps:
        missing = [s.index for s, _ in gap.missing]
        assert missing == sorted(required - inside[int(gap.role)])
    again = traverse(segments[:size], dict(reversed(roles.items())))
    assert (again.tier, again.common) == (found.tier, found.common)
    assert set(again.gaps) == set(found.gaps)


def test_agreeing_pair_by_pair_is_not_enough() -> None:
    found = traverse(U, {"gate": role(0, 1), "up": role(1, 2), "down": role(2, 0)})
    assert (found.tier, found.common) == (Tier.INCOMPATIBLE, ())
    assert [(gap.role, [s.index for s, _ in gap.missing]) for gap in found.gaps] == [
        ("gate", [2]),
        ("up", [0]),
        ("down", [1]),
    ]
    assert "no common coverage" in found.text


def test_unequal_consistent_and_whole() -> None:
    unequal = traverse(U, {"gate": role(0, 1, 2), "down": role(0, 1)})
    assert (unequal.tier, unequal.common) == (Tier.INCOMPATIBLE, U[:2])
    assert [gap.role for gap in unequal.gaps] == ["down"]
    assert "unequal coverage" in unequal.text
    partial = traverse(U, {"gate": role(0, 1), "down": role(0, 1)})
    assert (partial.tier, partial.common) == (Tier.PARTIAL, U[:2])
    whole = traverse(U, {"gate": role(0, 1, 2), "down": role(0, 1, 2)})
    assert (whole.tier, whole.gaps, len(whole.regions)) == (Tier.EXECUTABLE, (), 6)
    # What is not required is not asked about.
    assert traverse(U[:2], {"gate": role(0, 1), "down": role(0, 1)}).tier is Tier.EXECUTABLE


def test_a_role_that_is_usable_nowhere_fails_alone_and_names_its_codec() -> None:
    found = traverse(U, {"gate": role(0), "down": role(otherwise=BAD)})
    assert found.tier is Tier.ROLE_FAILURE
    assert [gap.role for gap in found.gaps] == ["down"]
    assert all(state == BAD for _, state in found.gaps[0].missing)
    assert "present but unsupported" in found.text


def test_display_folds_runs_and_tells_segment_0_from_a_bank_that_is_not_cut() -> None:
    items = [(U[0], GONE), (U[1], GONE), (U[2], BAD)]
    assert [text for text, _ in fold_runs(items)] == ["segments 0 to 1 [0:2]", "segment 2 [2:3]"]
    assert Segment(0, 3).text == "unsegmented [0:3]"
    assert Segment(0, 3, 0).text == "segment 0 [0:3]"
    assert Segment(0, 3) != Segment(0, 3, 0)


def test_alternatives_are_unusable_fixed_or_a_choice() -> None:
    good = traverse(U, {"a": role(0, 1, 2)})
    part = traverse(U, {"a": role(0)})
    assert choose("x", [("a", part)]).kind == "unusable"
    assert choose("x", [("a", part), ("b", good)]).kind == "fixed"
    found = choose("x", [("a", good), ("b", part), ("c", good)])
    assert (found.kind, [n for n, _ in found.usable]) == ("choice", ["a", "c"])
    assert [(n, t.tier) for n, t in found.failed] == [("b", Tier.PARTIAL)]
    assert choose("x", [("a", part)], partial=True).kind == "fixed"
    groups = [choose(str(layer), [("a", good), ("b", good)]) for layer in range(30)]
    assert sum(len(group.usable) for group in groups) == 60


STATES: list[tuple[State, str, str | None, bool]] = [
    (GONE, "absent: nowhere", "binding_defect", True),
    (Absent(Why.NOWHERE, "", remote=True), "absent: declared remote", "residency", False),
    (Absent(Why.OUTSIDE, ""), "absent: outside the required population", None, False),
    (LEFT, "absent: omitted by the active profile", "residency", False),
    (Mismatch("m"), "contract mismatch", "binding_defect", True),
    (BAD, "present but unsupported", "unsupported", True),
    (Damaged("d"), "damaged", "binding_defect", True),
    (GOOD, "reference-executable", None, False),
]


@pytest.mark.parametrize(("state", "name", "kind", "defect"), STATES)
def test_states_never_collapse(state: State, name: str, kind: str | None, defect: bool) -> None:
    found = refusal_kind(state)
    assert (state_name(state), found and found.value, is_defect(state)) == (name, kind, defect)
    assert bool(repair(state)) == (kind is not None)


def test_each_state_reads_otherwise() -> None:
    assert len({(state_name(s), repair(s)) for s, *_ in STATES}) == len(STATES)
