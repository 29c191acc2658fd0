"""``larql exec``: run a container over tokens, and report logits with their provenance."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import Given, TextSource, end_ids, read_input
from larql.cli.models import open_model
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Component,
    Context,
    DraftDepth,
    Generate,
    Model,
    NoBos,
    Prompt,
    PromptFile,
    Threads,
    TokenIds,
    TokensFile,
    TopK,
)
from larql.cli.output import Output, output_of
from larql.errors import UnsupportedRefusal, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.runtime.run import Run
    from larql.runtime.session import Session

__all__ = ["command"]

LogitDump = Annotated[
    Path | None,
    typer.Option(
        "--logit-dump",
        metavar="FILE",
        help=(
            "Write the logits of every given position, float32 [positions, vocab]; the suffix "
            "names the format: .npy, .f32 (raw) or .safetensors. A sidecar FILE.json says where "
            "they came from."
        ),
        show_default=False,
    ),
]
DumpLayers = Annotated[
    Path | None,
    typer.Option(
        "--dump-layers",
        metavar="DIR",
        help=(
            "Write the hidden states at every layer boundary, the final norm and the logits, one "
            "file each, as layers complete."
        ),
        show_default=False,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue an interrupted --dump-layers of the same run.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    tokens: TokenIds = None,
    tokens_file: TokensFile = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    no_bos: NoBos = False,
    component: Component = "target",
    draft_depth: DraftDepth = None,
    generate: Generate = 0,
    top_k: TopK = 5,
    logit_dump: LogitDump = None,
    dump_layers: DumpLayers = None,
    resume: Resume = False,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    context: Context = None,
) -> None:
    """Run a model over tokens or a prompt, and report logits.

    The logits of the last position are reported, the likeliest tokens first, with what was
    executed and read. The answer does not depend on threads, chunks or context, bit for bit.
    Generated tokens are the likeliest ones; `larql run` samples.

    Examples
    --------
    larql exec model.vindex3 --prompt "The capital of France is" --generate 8

    larql exec model.vindex3 --tokens 1,2,3 --logit-dump a.npy --json | jq .sha256

    larql exec model.vindex3 --tokens 1,2,3 --draft-depth 4
    """
    output = output_of(ctx)
    if activations is not ActivationKind.F32:
        raise UnsupportedRefusal(
            f"--activations {activations.value}: this build executes f32 activations only"
        )
    _check_dumps(logit_dump, dump_layers, resume, generate)
    container = open_model(model, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    given = read_input(container, source, add_bos=not no_bos)
    from larql.runtime.run import RunOptions, open_run
    from larql.runtime.session import check_tokens

    vocab = container.component(component).vocab_size
    check_tokens(given.ids, vocab)
    options = RunOptions(component, backend.value, draft_depth, threads, chunk)
    run = open_run(container, options)
    room = context or len(given.ids) + generate
    if dump_layers is not None:
        _dump_layers(run, given, dump_layers, resume, output)
        return
    session = run.session(room)
    ends = end_ids(container, given.tokenizer) if generate else ()
    report = _execute(run, session, given, logit_dump, generate, ends, top_k)
    report = {**report, "provenance": run.provenance(given.ids, room)}
    if output.json:
        render.document(output, report)
    else:
        _print(report, given)


def _check_dumps(
    logit_dump: Path | None, dump_layers: Path | None, resume: bool, generate: int
) -> None:
    if resume and dump_layers is None:
        raise UsageError("--resume continues a --dump-layers; give the directory with it")
    if dump_layers is not None and (logit_dump is not None or generate):
        raise UsageError(
            "--dump-layers writes the logits too; it does not go with --logit-dump or --generate"
        )
    if logit_dump is not None:
        from larql.runtime.dump import check_dump_path

        check_dump_path(logit_dump)


def _execute(
    run: Run,
    session: Session,
    given: Given,
    logit_dump: Path | None,
    count: int,
    ends: tuple[int, ...],
    top_k: int,
) -> dict[str, object]:
    """Advance over the given tokens, dump if asked, generate if asked; return the report."""
    from larql.runtime.generate import generate
    from larql.runtime.sampling import Sampler, Sampling, top_tokens

    report: dict[str, object] = {}
    if logit_dump is None:
        row = run.timed_step(session, given.ids)
    else:
        began = time.perf_counter()
        carrier = session.advance(given.ids)
        last: list[npt.NDArray[np.float32]] = []
        rows = _remember_last(session.logit_rows(carrier), last)
        hashes = _write_dump(run, session, given, logit_dump, rows)
        row = last[0]
        run.step_seconds += time.perf_counter() - began
        report |= {"logit_dump": logit_dump.absolute(), **hashes}
    report["top"] = [
        {"token": token, "logit": logit, "text": _text(given, token)}
        for token, logit in top_tokens(row, top_k)
    ]
    if count:
        sampler = Sampler(Sampling())
        made = list(generate(run, session, row, count, sampler, ends))
        report["generated"] = made
        report["end_of_text_ids"] = list(ends)
        report["ended"] = bool(made) and made[-1] in ends
        if given.tokenizer is not None:
            report["text"] = given.tokenizer.decode(made, continuing=True)
    return report


def _remember_last(
    pieces: Iterable[npt.NDArray[np.float32]], last: list[npt.NDArray[np.float32]]
) -> Iterator[npt.NDArray[np.float32]]:
    for piece in pieces:
        last[:] = [piece[-1]]
        yield piece


def _write_dump(
    run: Run,
    session: Session,
    given: Given,
    path: Path,
    rows: Iterable[npt.NDArray[np.float32]],
) -> dict[str, object]:
    from larql.provenance import write_sidecar
    from larql.runtime.dump import write_dump

    began = time.perf_counter()
    vocab = session.plan.component.vocab_size
    hashes = write_dump(path, (len(given.ids), vocab), rows)
    seconds = time.perf_counter() - began
    provenance = run.provenance(given.ids, session.context)
    provenance["step_seconds"] = run.step_seconds + seconds
    found = dataclasses.asdict(hashes)
    write_sidecar(path, {"kind": "logits", "shape": [len(given.ids), vocab], **found, **provenance})
    return found


def _text(given: Given, token: int) -> str | None:
    return None if given.tokenizer is None else given.tokenizer.token_text(token)


def _dump_layers(run: Run, given: Given, directory: Path, resume: bool, output: Output) -> None:
    from larql.runtime.layer_dump import MANIFEST_NAME, dump_layers

    with render.progress(output) as progress:
        made = dump_layers(run, given.ids, directory, resume=resume, progress=progress)
    if output.json:
        render.document(
            output,
            {
                "directory": directory.absolute(),
                "manifest": (directory / MANIFEST_NAME).absolute(),
                "resumed_at": made.resumed_at,
                "files": {name: dataclasses.asdict(h) for name, h in made.files.items()},
                "provenance": run.provenance(given.ids, len(given.ids)),
            },
        )
        return
    render.table(
        ["file", "payload sha256"],
        [(name, hashes.payload_sha256) for name, hashes in made.files.items()],
    )


def _print(report: dict[str, object], given: Given) -> None:
    provenance = report["provenance"]
    assert isinstance(provenance, dict)
    container = provenance["container"]
    layers = provenance["executed_layers"]
    render.key_values(
        [
            ("container", container["fingerprint"]),
            ("backend", f"{provenance['backend']} ({provenance['numerics']})"),
            ("layers", f"{len(layers)} executed, {layers[0]}:{layers[-1] + 1}"),
            ("tokens", ",".join(map(str, given.ids)) if len(given.ids) <= 64 else len(given.ids)),
            (
                "operands",
                f"{provenance['operand_reads']} read, "
                f"{render.bytes_text(provenance['operand_bytes'])}",
            ),
            (
                "seconds",
                f"prepare {provenance['prepare_seconds']:.3f}, "
                f"step {provenance['step_seconds']:.3f}, threads {provenance['threads']}",
            ),
            ("logit dump", report.get("logit_dump")),
            ("sha256", report.get("sha256")),
            ("payload sha256", report.get("payload_sha256")),
        ]
    )
    render.line()
    top = report["top"]
    assert isinstance(top, list)
    render.table(
        ["token", "logit", "text"],
        [
            (t["token"], f"{t['logit']:.6f}", None if t["text"] is None else repr(t["text"]))
            for t in top
        ],
        right=["token", "logit"],
    )
    if "generated" in report:
        made = report["generated"]
        assert isinstance(made, list)
        render.line()
        pairs = [
            ("generated", ",".join(map(str, made))),
            ("text", report.get("text")),
            ("ended", f"by token {made[-1]}" if report["ended"] else "by --generate"),
        ]
        render.key_values(pairs)
