"""``larql exec``: run a container over tokens, and report logits with their provenance."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.exec_draft import run_draft
from larql.cli.expert_options import (
    Experts,
    RefusalPolicy,
    Refusals,
    Route,
    RouteKind,
    Shard,
    expert_access,
    tell_left_out,
)
from larql.cli.inputs import Given, TextSource, end_ids, read_input, room_for
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    DRAFT_TOKENS,
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
    Component,
    Context,
    DraftDepth,
    DraftTokens,
    Generate,
    Kv,
    KvKind,
    Model,
    NoBos,
    Prefault,
    Profile,
    Prompt,
    PromptFile,
    Speculate,
    Threads,
    TokenIds,
    TokensFile,
    TopK,
)
from larql.cli.output import Output, output_of
from larql.cli.run_options import run_options
from larql.cli.speculated import check_speculate, speculation_of, tell_speculation
from larql.errors import UsageError
from larql.provenance import sidecar_path

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from larql.runtime.draft.drafter import Speculation
    from larql.runtime.run import Run
    from larql.runtime.session import Session

    Rows = npt.NDArray[np.float32]

__all__ = ["command"]

_WIDTH = 80  # characters of a value before it goes on in the next line
_SHOWN = 64  # given tokens that are listed; --json has all

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
Sites = Annotated[
    bool,
    typer.Option(
        "--sites",
        help="With --dump-layers: write the hidden states after each layer's attention too.",
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
    speculate: Speculate = None,
    draft_tokens: DraftTokens = DRAFT_TOKENS,
    top_k: TopK = 5,
    logit_dump: LogitDump = None,
    dump_layers: DumpLayers = None,
    sites: Sites = False,
    resume: Resume = False,
    backend: BackendOption = Backend.PRODUCTION,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    chunk: Chunk = None,
    prefault: Prefault = False,
    profile: Profile = None,
    shard: Shard = None,
    experts: Experts = None,
    route: Route = RouteKind.BOUND,
    refusals: Refusals = RefusalPolicy.STRICT,
    context: Context = None,
) -> None:
    """Run a model over tokens or a prompt, and report logits.

    The logits of the last position are reported, the likeliest tokens first, with what was
    executed and read. The answer does not depend on threads, chunks or context, bit for bit; only
    where a model has two lists of rotary frequencies does --context decide which one is used.
    Generated tokens are the likeliest ones; `larql run` samples. --speculate has tokens guessed and
    verified in blocks, which changes how long it takes and nothing else. A --component that drafts
    for another one runs beside it, and both are compared.

    Examples
    --------
    larql exec model.vindex3 --prompt "The capital of France is" --generate 8

    larql exec model.vindex3 --tokens 1,2,3 --logit-dump a.npy --json | jq .sha256

    larql exec model.vindex3 --tokens 1,2,3 --draft-depth 4

    larql exec model.vindex3 --prompt-file list.txt --generate 200 --speculate ngram
    """
    output = output_of(ctx)
    check_speculate(speculate, generate)
    _check_dumps(logit_dump, dump_layers, resume or sites, generate)
    container = open_model(model, output)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    from larql.runtime.plan import check_tokens, make_plan
    from larql.runtime.slices import Head, slice_of

    drafts = container.component(component).role == "draft"
    if drafts and (generate or dump_layers is not None or draft_depth is not None):
        raise UsageError(
            f"--component {component} drafts for another one: it does not go with --generate, "
            f"--dump-layers or --draft-depth"
        )
    plan = make_plan(container, component, Head() if drafts else slice_of(draft_depth))
    given = read_input(container, source, add_bos=not no_bos)
    check_tokens(given.ids, plan.component.embed.vocab, given.option)
    room = room_for(plan.component, len(given.ids), generate, context, output)
    options = run_options(
        backend, activations, kv, threads, chunk, profile, prefault=prefault, component=component,
        draft_depth=draft_depth, experts=expert_access(shard, experts, route), refusals=refusals,
    )  # fmt: skip
    if drafts:
        run_draft(container, options, given, logit_dump, top_k, room, output)
        return
    run = start_run(container, options, output)
    if dump_layers is not None:
        _dump_layers(run, given, dump_layers, resume, sites, output)
        tell_left_out(run, output)
        return
    session = run.session(room)
    ends = end_ids(container, given.tokenizer) if generate else ()
    speculation = speculation_of(speculate, draft_tokens, run, room)
    report = _execute(run, session, given, logit_dump, generate, ends, top_k, speculation)
    tell_left_out(run, output)
    if report["nan_logits"]:
        render.warning(output, f"{report['nan_logits']} of the logits are not numbers")
    report = {**report, "provenance": run.provenance(given.ids, room)}
    if output.json:
        render.document(output, report)
    else:
        _print(report, given)
    tell_speculation(output, speculation)


def _check_dumps(
    logit_dump: Path | None,
    dump_layers: Path | None,
    of_layers: bool,
    generate: int,
) -> None:
    if of_layers and dump_layers is None:
        raise UsageError("--resume and --sites belong to --dump-layers; give the directory with it")
    if dump_layers is not None and (logit_dump is not None or generate):
        raise UsageError(
            "--dump-layers writes the logits too; it does not go with --logit-dump or --generate"
        )
    if logit_dump is not None:
        from larql.format.atomic import check_output_file
        from larql.runtime.dump import check_dump_path

        check_dump_path(logit_dump)
        for path in (logit_dump, sidecar_path(logit_dump)):
            # A dump that is made again replaces the one before, both files of it.
            check_output_file(path, force=True)


def _execute(
    run: Run,
    session: Session,
    given: Given,
    logit_dump: Path | None,
    count: int,
    ends: tuple[int, ...],
    top_k: int,
    speculation: Speculation | None,
) -> dict[str, object]:
    """Advance over the given tokens, dump if asked, generate if asked; return the report."""
    from larql.runtime.generate import generate
    from larql.runtime.sampling import Sampler, Sampling, top_tokens

    report: dict[str, object] = {}
    watch = _Watch()
    if logit_dump is None:
        carrier, row = run.timed_advance(session, given.ids)
        watch.see(row)
    else:
        began = time.perf_counter()
        carrier = session.advance(given.ids)
        run.step_seconds += time.perf_counter() - began
        rows = watch.over(session.logit_rows(carrier))
        hashes = _write_dump(run, session, given, logit_dump, rows)
        row = watch.last
        report |= {
            "logit_dump": logit_dump.absolute(),
            "sidecar": sidecar_path(logit_dump).absolute(),
            **hashes,
        }
    report["nan_logits"] = watch.nan
    report["top"] = [
        {"token": token, "logit": logit, "text": _text(given, token)}
        for token, logit in top_tokens(row, top_k)
    ]
    if count:
        sampler = Sampler(Sampling())
        if speculation is not None:
            speculation.begin(session, given.ids, carrier, count)
        continued = generate(run, session, row, count, sampler, ends, given.ids, speculation)
        made = list(continued)
        report["generated"] = made
        report["end_of_text_ids"] = list(ends)
        report["ended"] = made[-1] in ends
        if speculation is not None:
            report["speculation"] = speculation.report()
        if given.tokenizer is not None:
            report["text"] = given.tokenizer.decode(made, continuing=True)
    return report


class _Watch:
    """Sees logits go by: keeps the last row and counts what is not a number."""

    def __init__(self) -> None:
        self.nan = 0
        self.last: Rows

    def see(self, row: Rows) -> None:
        import numpy as np

        self.nan += int(np.isnan(row).sum())

    def over(self, pieces: Iterable[Rows]) -> Iterator[Rows]:
        for piece in pieces:
            self.see(piece)
            self.last = piece[-1]
            yield piece


def _write_dump(
    run: Run, session: Session, given: Given, path: Path, rows: Iterable[Rows]
) -> dict[str, object]:
    from larql.provenance import write_sidecar
    from larql.runtime.dump import write_dump

    began = time.perf_counter()
    vocab = session.plan.component.vocab_size
    hashes = dataclasses.asdict(write_dump(path, (len(given.ids), vocab), rows))
    run.step_seconds += time.perf_counter() - began
    provenance = run.provenance(given.ids, session.context)
    shape = [len(given.ids), vocab]
    write_sidecar(path, {"kind": "logits", "shape": shape, **hashes, **provenance})
    return hashes


def _text(given: Given, token: int) -> str | None:
    return None if given.tokenizer is None else given.tokenizer.token_text(token)


def _dump_layers(
    run: Run, given: Given, directory: Path, resume: bool, sites: bool, output: Output
) -> None:
    from larql.runtime.layer_dump import MANIFEST_NAME, dump_layers

    with render.progress(output) as progress:
        made = dump_layers(run, given.ids, directory, resume=resume, progress=progress, sites=sites)
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
    if resume:
        render.notice(output, f"resumed at layer {made.resumed_at}")
    render.table(
        ["file", "payload sha256"],
        [(name, hashes.payload_sha256) for name, hashes in made.files.items()],
    )


def _print(report: dict[str, object], given: Given) -> None:
    provenance = report["provenance"]
    assert isinstance(provenance, dict)
    container = provenance["container"]
    layers = provenance["executed_layers"]
    operands = (
        f"{provenance['operand_reads']} read, {render.bytes_text(provenance['operand_bytes'])}"
    )
    resident = provenance.get("resident_bytes")
    mapped = provenance.get("resident_file_bytes")
    seconds = f"prepare {provenance['prepare_seconds']:.3f}, step {provenance['step_seconds']:.3f}"
    render.key_values(
        [
            ("container", container["fingerprint"]),
            ("profile", container["profile"]),
            ("backend", f"{provenance['backend']}, {provenance['threads']} threads"),
            ("numerics", provenance["numerics"]),
            ("layers", f"{len(layers)} executed, {layers[0]}:{layers[-1] + 1}"),
            *_folded("tokens", _given_text(given.ids)),
            ("operands", operands),
            ("seconds", seconds),
            ("resident", _resident_text(resident, mapped)),
            ("logit dump", report.get("logit_dump")),
            ("sha256", report.get("sha256")),
            ("payload sha256", report.get("payload_sha256")),
        ]
    )
    render.line()
    top = report["top"]
    assert isinstance(top, list)
    columns = ["token", "logit"] if given.tokenizer is None else ["token", "logit", "text"]
    render.table(
        columns,
        [(t["token"], f"{t['logit']:.6f}", repr(t["text"]))[: len(columns)] for t in top],
        right=["token", "logit"],
    )
    if "generated" in report:
        made, text = report["generated"], report.get("text")
        assert isinstance(made, list)
        render.line()
        render.key_values(
            [
                *_folded("generated", ",".join(map(str, made))),
                *(_folded("text", repr(text)) if text is not None else ()),
                ("ended", f"by token {made[-1]}" if report["ended"] else "by --generate"),
            ]
        )


def _resident_text(resident: object, mapped: object) -> str | None:
    if not isinstance(resident, int) or not isinstance(mapped, int):
        return None
    return f"{render.bytes_text(resident)}, {render.bytes_text(mapped)} of it mapped from files"


def _given_text(ids: Sequence[int]) -> str:
    more = f",… ({len(ids)})" if len(ids) > _SHOWN else ""
    return ",".join(map(str, ids[:_SHOWN])) + more


def _folded(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield a long value as several lines, the first of them named."""
    for first in range(0, max(1, len(text)), _WIDTH):
        yield "" if first else name, render.printable(text[first : first + _WIDTH])
