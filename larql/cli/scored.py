"""How scores of a draft are shown: as lines for people, as a document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from larql.cli import render

if TYPE_CHECKING:
    from larql.runtime.draft.scores import Scores
    from larql.runtime.draft.summary import Estimate, ScoreSummary, Spread

__all__ = ["estimate_text", "print_positions", "print_summary"]

_SHOWN = ("50", "90", "99")


def print_summary(summary: ScoreSummary) -> None:
    """Write a summary, one quantity a line."""
    following = summary.next_token
    lines: list[tuple[str, object]] = [
        ("positions", summary.positions),
        ("KL(target‖draft), nats", estimate_text(summary.divergence)),
        ("", _spread_text(summary.divergence_spread)),
        ("same top token", estimate_text(summary.same_top)),
        *(
            (f"in the draft's top {k}", estimate_text(found))
            for k, found in summary.contained.items()
            if k != "1"
        ),
        ("rank in the draft", _spread_text(summary.rank_spread)),
    ]
    if following is not None:
        lines += [
            ("target's nats per token", estimate_text(following.target_nll)),
            ("draft's nats per token", estimate_text(following.draft_nll)),
            ("more by", estimate_text(following.nll_difference)),
            ("target's perplexity", estimate_text(following.target_perplexity)),
            ("draft's perplexity", estimate_text(following.draft_perplexity)),
            ("ratio", estimate_text(following.perplexity_ratio)),
            ("mean Δp", estimate_text(following.delta_p)),
            ("RMS Δp", estimate_text(following.rms_delta_p)),
            ("", _spread_text(following.delta_p_spread)),
        ]
    render.key_values(lines)


def print_positions(scores: Scores) -> None:
    """Write a table with a line for each position."""
    rows = zip(
        range(len(scores.divergence)), scores.divergence, scores.target_top, scores.draft_top,
        scores.rank, scores.target_nll, scores.draft_nll, strict=True,
    )  # fmt: skip
    columns = ["position", "KL", "target's top", "draft's top", "rank", "target nll", "draft nll"]
    render.table(
        columns,
        [
            (at, f"{kl:.6f}", top, ours, rank, _nll_text(target), _nll_text(draft))
            for at, kl, top, ours, rank, target, draft in rows
        ],
        right=columns,
    )


def estimate_text(found: Estimate) -> str:
    """Return a value with its interval."""
    return f"{found.value:.6g} ({found.low:.6g} to {found.high:.6g})"


def _spread_text(found: Spread) -> str:
    parts = (f"{p} % ≤ {found.percentiles[p]:.6g}" for p in _SHOWN)
    return f"least {found.minimum:.6g}, {', '.join(parts)}, most {found.maximum:.6g}"


def _nll_text(value: float) -> str | None:
    return None if value != value else f"{value:.6f}"
