"""``larql exec --component`` of a component that drafts: its logits beside its target's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from larql.cli import render
from larql.cli.inputs import Given
from larql.cli.models import start_run
from larql.cli.output import Output
from larql.cli.scored import print_summary
from larql.errors import UnsupportedRefusal
from larql.provenance import sidecar_path, write_sidecar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.format.container import Container
    from larql.runtime.draft.head_scores import HeadPiece
    from larql.runtime.draft.scores import Scores
    from larql.runtime.run import RunOptions

    Rows = npt.NDArray[np.float32]

__all__ = ["run_draft"]


def run_draft(
    container: Container,
    options: RunOptions,
    given: Given,
    logit_dump: Path | None,
    top_k: int,
    room: int,
    output: Output,
) -> None:
    """Run a target and what drafts for it over tokens, and report both.

    The dump has a row for each position but the last, made from the target's final norm there and
    the token behind it.

    Raises
    ------
    LarqlError
        If either cannot be run.
    """
    producer = _producer(container, options.component)
    run = start_run(container, dataclasses.replace(options, component=producer), output)
    from larql.runtime.draft.head import DraftHead
    from larql.runtime.draft.head_scores import score_head
    from larql.runtime.draft.scores import joined
    from larql.runtime.draft.summary import summarise
    from larql.runtime.dump import write_dump
    from larql.runtime.run import Run
    from larql.runtime.sampling import top_tokens

    head = DraftHead(run.prepared, options.component, room, options.chunk)
    pieces: list[HeadPiece] = []  # the last one, and the scores of all
    parts: list[Scores] = []

    def rows() -> Iterator[Rows]:
        for piece in score_head(head, run.session(room), given.ids):
            pieces[:] = [piece]
            parts.append(piece.scores)
            yield piece.rows

    report: dict[str, object] = {}
    shape = (len(given.ids) - 1, run.prepared.plan.component.vocab_size)
    if logit_dump is None:
        for _ in rows():
            pass
    else:
        hashes = dataclasses.asdict(write_dump(logit_dump, shape, rows()))
        report |= {
            "logit_dump": logit_dump.absolute(),
            "sidecar": sidecar_path(logit_dump).absolute(),
            **hashes,
        }
    drafting = Run(container, options, head.prepared)
    provenance = {
        **drafting.provenance(given.ids, room),
        "positions": len(given.ids) - 1,
        "tap": {"producer": producer, "name": "final_norm"},
    }
    if logit_dump is not None:
        write_sidecar(logit_dump, {"kind": "logits", "shape": list(shape), **hashes, **provenance})
    scores = joined(parts)
    summary = summarise(scores)
    tops = {}
    for name, row in (("draft", pieces[0].rows[-1]), ("target", pieces[0].target_rows[-1])):
        tops[name] = [
            {"token": token, "logit": logit, "text": _text(given, token)}
            for token, logit in top_tokens(row, top_k)
        ]
    report |= {
        "top": tops["draft"],
        "target_top": tops["target"],
        "summary": summary,
        "per_position": scores.document(),
        "provenance": provenance,
    }
    if output.json:
        render.document(output, report)
        return
    operands = render.bytes_text(head.prepared.bytes_read)
    render.key_values(
        [
            ("component", f"{options.component}, drafting for {producer}"),
            ("tap", f"final_norm of {producer}"),
            ("operands of its own", f"{head.prepared.reads} read, {operands}"),
            ("logit dump", report.get("logit_dump")),
            ("payload sha256", report.get("payload_sha256")),
        ]
    )
    print_summary(summary)
    render.line()
    columns = ["draft", "logit", "text", "target", "logit ", "text "]
    render.table(
        columns,
        [(*_cells(a), *_cells(b)) for a, b in zip(tops["draft"], tops["target"], strict=True)],
        right=["draft", "logit", "target", "logit "],
    )


def _producer(container: Container, component: str) -> str:
    for edge in container.graph.edges:
        if edge.consumer == component:
            return edge.producer
    raise UnsupportedRefusal(
        f"{container.path}: component {component!r} drafts, but no edge of the graph says for which"
    )


def _cells(top: Mapping[str, object]) -> Iterator[object]:
    text = top["text"]
    yield from (top["token"], f"{top['logit']:.6f}", None if text is None else repr(text))


def _text(given: Given, token: int) -> str | None:
    return None if given.tokenizer is None else given.tokenizer.token_text(token)
