"""``larql vindex3 score``: how near one dump of logits is to another."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from larql.cli import render
from larql.cli.output import output_of

__all__ = ["command"]


class Subject(StrEnum):
    """What the two dumps may differ in."""

    DEPTH = "depth"
    CONTAINER = "container"
    BACKEND = "backend"
    ACTIVATIONS = "activations"
    KV = "kv"


TargetDump = Annotated[
    Path,
    typer.Argument(
        metavar="TARGET", help="The dump to be near to, with its sidecar.", show_default=False
    ),
]
DraftDump = Annotated[
    Path,
    typer.Argument(
        metavar="DRAFT", help="The dump to score, of the same tokens.", show_default=False
    ),
]
Compare = Annotated[
    Subject,
    typer.Option(
        "--compare",
        metavar="WHAT",
        help=(
            "What the dumps may differ in, and in nothing else: depth, container (the same model "
            "encoded otherwise), backend, activations or kv."
        ),
    ),
]
PerPosition = Annotated[
    bool,
    typer.Option(
        "--per-position",
        help="List every position before the summary; --json always does.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    target: TargetDump,
    draft: DraftDump,
    compare: Compare = Subject.DEPTH,
    per_position: PerPosition = False,
) -> None:
    """Score one dump of logits against another.

    Both are dumps of `larql exec --logit-dump`, or the logits of --dump-layers, of the same
    tokens. Reported are the divergence KL(target‖draft) in nats, how often both have the same
    likeliest token, the rank of the target's likeliest token in the draft, how often it is among
    the draft's first k, the likelihood of the token that follows, and by how much its probability
    differs. Means have 95 % bootstrap intervals, as if positions were independent. Dumps whose
    sidecars differ in anything but what is compared are refused.

    Examples
    --------
    larql exec model.vindex3 --prompt-file text.txt --logit-dump full.npy

    larql exec model.vindex3 --prompt-file text.txt --draft-depth 8 --logit-dump d8.npy

    larql vindex3 score full.npy d8.npy
    """
    output = output_of(ctx)
    from larql.runtime.backends.registry import settle_kernels
    from larql.runtime.draft.arms import check_arms, subject_value
    from larql.runtime.dump_reader import open_dump

    arms = {"target": open_dump(target), "draft": open_dump(draft)}
    check_arms(arms["target"], arms["draft"], compare.value)
    settle_kernels(None)
    from larql.runtime.draft.compare import compare_dumps
    from larql.runtime.draft.summary import summarise

    with render.progress(output) as progress:
        scores = compare_dumps(arms["target"], arms["draft"], progress)
    summary = summarise(scores)
    if output.json:
        dumps = {
            name: {
                "path": dump.path.absolute(),
                "payload_sha256": dump.sidecar["payload_sha256"],
                compare.value: subject_value(dump, compare.value),
            }
            for name, dump in arms.items()
        }
        render.document(
            output,
            {**dumps, "compared": compare, "summary": summary, "per_position": scores.document()},
        )
        return
    if per_position:
        from larql.cli.scored import print_positions

        print_positions(scores)
        render.line()
    from larql.cli.scored import print_summary

    render.key_values(
        [
            (name, f"{dump.path} ({compare.value} {subject_value(dump, compare.value)})")
            for name, dump in arms.items()
        ]
    )
    print_summary(summary)
