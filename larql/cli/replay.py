"""``larql vindex3 replay``: verify a run record and print it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.observed import document_of, print_summary
from larql.cli.output import output_of
from larql.errors import CheckFailed

__all__ = ["command"]

RecordFile = Annotated[
    Path,
    typer.Argument(
        metavar="RUN.jsonl", help="A record that larql observe wrote.", show_default=False
    ),
]


def command(ctx: typer.Context, record: RecordFile) -> None:
    """Verify a run record and print it again.

    Every line is read, counted and hashed, and must give its bytes again. What can be read is
    printed as larql observe prints it, also where something is wrong. Exit status 1 means that
    the record was changed, or that its run was killed and left no receipt.

    Examples
    --------
    larql vindex3 replay run.jsonl
    """
    output = output_of(ctx)
    from larql.runtime.observe.record import RecordReader
    from larql.runtime.observe.summary import FinalPosition, summarize

    reader, final = RecordReader(record), FinalPosition()
    for event in reader.events():
        final.take(event)
    summary = summarize(reader.header, final, reader.receipt, None)
    if output.json:
        found = document_of(reader.header, final, reader.receipt)
        render.document(output, {**found, "problems": reader.problems})
    else:
        print_summary(summary)
    if reader.problems:
        raise CheckFailed(f"{record}: {reader.problems[0]}")
