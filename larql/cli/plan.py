"""``larql vindex3 plan``: the compiler's verdict on a checkpoint, without writing anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import typer

from larql.cli import render
from larql.cli.models import tell
from larql.cli.options import Source
from larql.cli.output import output_of
from larql.errors import CheckFailed
from larql.format.graph import Component
from larql.format.source.problems import Problem
from larql.format.source.verdict import Headers, Verdict, headers_of, judge
from larql.runtime.listing import Operation, operations
from larql.runtime.plan import Plan
from larql.runtime.slices import Full

__all__ = ["command"]

_FEW = 12  # tensors that are listed by name


def command(ctx: typer.Context, source: Source) -> None:
    """Judge a checkpoint without writing anything.

    Says from headers and configuration alone whether the checkpoint can be compiled: what each
    layer would compute, what became of each configuration key, and which tensors would be left. Of
    a model on a hub only headers and configuration are fetched, some megabytes whatever its size.
    Exit status 1 means that it would be refused: all problems are listed, of keys and of tensors,
    and the first one stands at the end.

    Examples
    --------
    larql vindex3 plan model.gguf

    larql vindex3 plan hf://owner/name --json | jq .admissible
    """
    output = output_of(ctx)
    with render.progress(output) as progress, headers_of(source, progress) as headers:
        verdict = judge(headers.path)
    tell(output, headers.notes)
    if output.json:
        render.document(output, _document(source, headers, verdict))
    else:
        _print(source, headers, verdict)
    if not verdict.admissible:
        first, *others = verdict.problems
        more = f" (and {len(others)} more)" if others else ""
        raise CheckFailed(f"{source}: inadmissible: {_text(source, headers, first)}{more}")


def _text(source: str, headers: Headers, problem: Problem) -> str:
    """Return a problem without the place to which headers were fetched."""
    if headers.place is None:
        return problem.text
    return problem.text.replace(f"{headers.place}/", "").replace(str(headers.place), source)


def _operations(component: Component) -> Sequence[Operation]:
    return tuple(operations(Plan(component, Full(), component.layers)))


def _print(source: str, headers: Headers, verdict: Verdict) -> None:
    counts = Counter(key.verdict for key in verdict.keys)
    fetched = None if headers.fetched is None else render.bytes_text(headers.fetched)
    render.key_values(
        [
            ("verdict", "admissible" if verdict.admissible else "inadmissible"),
            ("family", verdict.family),
            ("format", verdict.format),
            ("revision", headers.revision),
            ("tensors", f"{verdict.tensors}, {render.bytes_text(verdict.nbytes)}"),
            ("headers fetched", fetched),
            ("keys", ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or None),
        ]
    )
    for component in verdict.components:
        _print_component(component)
    if verdict.keys:
        render.line()
        render.table(["key", "verdict"], [(key.key, key.verdict) for key in verdict.keys])
    if verdict.problems:
        _print_problems(source, headers, verdict)
    _print_tensors("left behind", [f"{n}  ({why})" for n, why in (verdict.left or {}).items()])
    _print_tensors("read by nothing", verdict.unread)
    for note in verdict.notes:
        render.line(render.printable(note if note.startswith("warning: ") else f"note: {note}"))


def _print_problems(source: str, headers: Headers, verdict: Verdict) -> None:
    found = verdict.problems
    render.line()
    render.line(f"{len(found)} problem{'s' if len(found) > 1 else ''}:")
    for kind in dict.fromkeys(problem.kind for problem in found):
        texts = [_text(source, headers, problem) for problem in found if problem.kind == kind]
        for text in texts[:_FEW]:
            render.line(f"    {render.printable(text)}")
        if len(texts) > _FEW:
            render.line(f"    and {len(texts) - _FEW} more of {kind}s; --json lists all")
    if verdict.assumed is not None:
        render.line(
            f"    what follows from `{render.printable(verdict.assumed)}` is open: no tensor was "
            f"held against it, and layers are shown as if it were usual"
        )


def _print_component(component: Component) -> None:
    render.line()
    render.line(
        f"component {render.printable(component.id)}: {len(component.layers)} layers, hidden "
        f"{component.hidden_size}, vocabulary {component.vocab_size}, context "
        f"{component.context_length}"
    )
    rows: list[tuple[str, str, str, str]] = []
    layers = groupby(_operations(component), key=lambda operation: operation.layer)
    before: tuple[int, int, list[tuple[str, str, str]]] | None = None
    for layer, listed in layers:
        facts = [(op.site, op.op, op.detail) for op in listed]
        if layer is not None and before is not None and before[2] == facts:
            before = (before[0], layer, facts)
            continue
        rows += _folded(before)
        before = None if layer is None else (layer, layer, facts)
        if layer is None:
            rows += [("", *fact) for fact in facts]
    rows += _folded(before)
    render.table(["layers", "site", "operation", "detail"], rows)


def _folded(
    run: tuple[int, int, list[tuple[str, str, str]]] | None,
) -> list[tuple[str, str, str, str]]:
    """Return the rows of a run of equal layers, which name their half-open range once."""
    if run is None:
        return []
    first, last, facts = run
    return [(f"{first}:{last + 1}" if i == 0 else "", *fact) for i, fact in enumerate(facts)]


def _print_tensors(what: str, names: Sequence[str]) -> None:
    if not names:
        return
    render.line()
    render.line(f"{len(names)} tensors {what}:")
    for name in names[:_FEW]:
        render.line(f"    {render.printable(name)}")
    if len(names) > _FEW:
        render.line(f"    and {len(names) - _FEW} more; --json lists all")


def _document(source: str, headers: Headers, verdict: Verdict) -> dict[str, object]:
    texts = [_text(source, headers, problem) for problem in verdict.problems]
    return {
        "source": source,
        "revision": headers.revision,
        "admissible": verdict.admissible,
        "reason": texts[0] if texts else None,
        "problems": [
            {"kind": problem.kind, "name": problem.name, "text": text}
            for problem, text in zip(verdict.problems, texts, strict=True)
        ],
        "assumed": verdict.assumed,
        "family": verdict.family,
        "format": verdict.format,
        "tensors": verdict.tensors,
        "bytes": verdict.nbytes,
        "headers_fetched": headers.fetched,
        "components": [
            {
                "id": component.id,
                "layers": len(component.layers),
                "hidden_size": component.hidden_size,
                "vocab_size": component.vocab_size,
                "context_length": component.context_length,
                "operations": [
                    {"layer": op.layer, "site": op.site, "op": op.op, "detail": op.detail}
                    for op in _operations(component)
                ],
            }
            for component in verdict.components
        ],
        "keys": {key.key: key.verdict for key in verdict.keys},
        "left": dict(verdict.left or {}),
        "unread": list(verdict.unread),
        "notes": list(verdict.notes),
    }
