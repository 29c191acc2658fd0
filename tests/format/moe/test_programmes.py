"""The registry: frozen ids and names, alternatives, and the closest layout."""

from __future__ import annotations

import pytest

from larql.format.lyrw.codes import Role
from larql.format.moe.programmes import PROGRAMMES, programme_by_id

G, U, F, D, B = Role.GATE, Role.UP, Role.GATE_UP_FUSED, Role.DOWN, Role.BIAS


def test_ids_and_names_are_frozen() -> None:
    assert {p.number: name for name, p in PROGRAMMES.items()} == {
        0: "gated-mlp-v1",
        1: "gated-mlp-fused-fc1-v1",
        2: "gpt-oss-expert-v1",
        3: "shared-routed-mlp-v1",
        4: "latent-moe-v1",
    }
    assert [p.number for p in PROGRAMMES.values()] == list(range(5))
    for programme in PROGRAMMES.values():
        assert programme_by_id(programme.number) is programme
    assert programme_by_id(5) is None
    assert [n for n, p in PROGRAMMES.items() if p.input_space == "latent"] == ["latent-moe-v1"]


def test_every_satisfied_layout_is_kept_in_order() -> None:
    gated = PROGRAMMES["gated-mlp-v1"]
    assert gated.satisfied({F, D, G, U}) == ((G, U, D), (F, D))
    assert gated.satisfied({F, D}) == ((F, D),)
    assert gated.satisfied({G, U, D, 99}) == ((G, U, D),)
    assert gated.satisfied({G, U}) == ()
    assert PROGRAMMES["gated-mlp-fused-fc1-v1"].satisfied({G, U, D}) == ()
    assert PROGRAMMES["gpt-oss-expert-v1"].satisfied({F, D, B}) == ((F, D, B),)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ({F}, "closest accepted layout: gate_up_fused + down; missing down"),
        # Each lacks one: the first declared is named.
        ({G, U, F}, "closest accepted layout: gate + up + down; missing down"),
        ({D, G}, "closest accepted layout: gate + up + down; missing up"),
        ({D}, "closest accepted layout: gate_up_fused + down; missing gate_up_fused"),
        (set(), "closest accepted layout: gate_up_fused + down; missing gate_up_fused, down"),
    ],
)
def test_the_closest_layout_is_named_with_what_it_lacks(roles: set[int], words: str) -> None:
    closest = PROGRAMMES["gated-mlp-v1"].closest(roles)
    assert closest is not None
    assert closest.text() == words


def test_nothing_is_closest_where_a_layout_is_satisfied() -> None:
    assert PROGRAMMES["gated-mlp-v1"].closest({F, D}) is None
