"""Telling of an observed run, as it ends or from its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from larql.cli import render

if TYPE_CHECKING:
    from larql.runtime.observe.record import Receipt
    from larql.runtime.observe.summary import FinalPosition, Summary

__all__ = ["document_of", "print_summary"]


def print_summary(summary: Summary) -> None:
    """Write a summary that has been built whole."""
    render.key_values(summary.facts)
    for table in (summary.depths, summary.top):
        if table.rows:
            render.line()
            render.table(table.columns, table.rows, right=table.right)


def document_of(
    header: Mapping[str, Any], final: FinalPosition, receipt: Receipt | None
) -> dict[str, object]:
    """Return what ``--json`` says of a run: header, receipt, last position, end."""
    from larql.runtime.observe.lines import line_of

    last = [line_of(0, event) for event in final.events]
    return {
        **header,
        "receipt": None if receipt is None else dataclasses.asdict(receipt),
        "last_position": {
            "position": None if final.done is None else final.done.position,
            "token": None if final.done is None else final.done.token,
            "events": [{k: v for k, v in line.items() if k != "seq"} for line in last],
        },
        "generated": None if final.end is None else final.end.generated,
        "top": None
        if final.end is None
        else [
            {
                "token": token,
                "logit": logit,
                "log_probability": log_probability,
                "text": final.end.texts.get(str(token)),
            }
            for token, logit, log_probability in final.end.top
        ],
    }
