from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.cli.expert_options import RefusalPolicy
from larql.cli.options import ActivationKind, Backend, KvKind, half_open_range, token_ids
from larql.cli.run_options import run_options
from larql.errors import UsageError
from larql.runtime.expert_access import EVERYTHING, ExpertAccess
from larql.runtime.run import RunOptions


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_ranges_are_half_open(first: int, length: int) -> None:
    assert half_open_range(f"{first}:{first + length}", "--layers") == (first, first + length)


@pytest.mark.parametrize("text", ["", "3", "3:3", "4:3", ":3", "3:", "-1:2", "a:b", "1:2:3", "²:3"])
def test_other_ranges_are_refused_by_option(text: str) -> None:
    with pytest.raises(UsageError, match="--layers: "):
        half_open_range(text, "--layers")


@pytest.mark.parametrize("text", ["1,2,3", "1 2 3", " 1,\n2 ,3\t", "1,2,3,\n"])
def test_token_ids_by_comma_or_space(text: str) -> None:
    assert token_ids(text, "--tokens") == (1, 2, 3)


@pytest.mark.parametrize("text", ["1,x", "1,-2", "1.5", "1,,2", ",1", "1,2,,", "٣", "1" * 30])
def test_other_token_ids_are_refused_by_position(text: str) -> None:
    with pytest.raises(UsageError, match=r"--tokens: entry \d is "):
        token_ids(text, "--tokens")


@pytest.mark.parametrize("text", ["", " ", ","])
def test_no_token_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no token id"):
        token_ids(text, "--tokens")


def test_shared_options_become_the_run_that_they_ask_for() -> None:
    backend, activations, kv = Backend.REFERENCE, ActivationKind.Q8, KvKind.F16
    plain = RunOptions("target", "reference", None, 3, 5, "q8", "f16", False, "small", EVERYTHING)
    assert run_options(backend, activations, kv, 3, 5, "small") == plain
    part = ExpertAccess((0, 2))
    whole = run_options(
        backend, activations, kv, 3, 5, "small", prefault=True, component="draft",
        draft_depth=2, experts=part, refusals=RefusalPolicy.BEST_EFFORT,
    )  # fmt: skip
    assert whole == RunOptions(
        "draft", "reference", 2, 3, 5, "q8", "f16", True, "small", part, True
    )  # fmt: skip
    assert type(whole.backend) is type(whole.activations) is type(whole.kv) is str
