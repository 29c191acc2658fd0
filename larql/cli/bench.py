"""``larql bench``: speed and memory of a model, alone and beside other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import tokenizer_of
from larql.cli.models import open_model
from larql.cli.options import (
    ActivationKind,
    Activations,
    Backend,
    Kv,
    KvKind,
    Model,
    Prefault,
    Profile,
    Threads,
)
from larql.cli.output import output_of
from larql.cli.run_options import run_options
from larql.errors import TokenizerError, UsageError

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.runtime.bench.report import ArmReport, Floor
    from larql.runtime.bench.run import Bench
    from larql.runtime.bench.summary import Summary

__all__ = ["command"]

_CHECK_TEXT = "The capital of France is"

Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="ENGINE",
        help=(
            "An engine to measure beside larql, with the same weights: llama.cpp, "
            "llama.cpp-flash, transformers or transformers-bf16. May be repeated."
        ),
        show_default=False,
    ),
]
PeerSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="SRC",
        help="What other engines load: the checkpoint that a container MODEL was made from.",
        show_default="MODEL",
    ),
]
DecodeTokens = Annotated[
    int,
    typer.Option(
        "--decode-tokens", metavar="N", min=0, help="Tokens decoded in a turn; 0 decodes none."
    ),
]
Prefill = Annotated[
    int,
    typer.Option(
        "--prefill", metavar="N", min=0, help="Tokens prefilled in a turn; 0 prefills none."
    ),
]
Depth = Annotated[
    int,
    typer.Option(
        "--context", metavar="N", min=1, help="Positions already held where decoding is measured."
    ),
]
Repeats = Annotated[
    int, typer.Option("--repeats", metavar="N", min=1, help="Counted turns of each engine.")
]


def command(
    ctx: typer.Context,
    model: Model,
    against: Against = None,
    source: PeerSource = None,
    decode_tokens: DecodeTokens = 64,
    prefill: Prefill = 512,
    context: Depth = 1,
    repeats: Repeats = 5,
    activations: Activations = ActivationKind.F32,
    kv: Kv = KvKind.F32,
    threads: Threads = None,
    prefault: Prefault = False,
    profile: Profile = None,
) -> None:
    """Measure speed and memory, alone or beside other engines.

    Each engine holds the model in a process of its own and computes in turn with the others, on
    the same token ids and as many threads; a first turn is not counted. Reported are medians and
    spreads of tokens per second, the ratio of larql to each engine turn by turn, and how far larql
    is from the floor: the bytes that a token must read by the read bandwidth, which is measured
    in the same turns.

    Other engines need their packages: pip install 'larql-vindex3[bench]', or an interpreter that
    has them, named by LARQL_BENCH_PYTHON.

    Examples
    --------
    larql bench model.vindex3

    larql bench model.gguf --against llama.cpp --against transformers --threads 2

    larql bench model.vindex3 --source model.gguf --against llama.cpp --context 4096 --prefill 0
    """
    output = output_of(ctx)
    peers = tuple(dict.fromkeys(against or ()))
    if source is not None and not peers:
        raise UsageError("--source names what other engines load; give --against with it")
    from larql.runtime.bench.peers import check_peers
    from larql.runtime.bench.run import BenchOptions, bench

    check_peers(peers)
    container = open_model(model, output)
    options = BenchOptions(
        peers=peers,
        source=source or model,
        check=_check_ids(container),
        decode_tokens=decode_tokens,
        prefill=prefill,
        context=context,
        repeats=repeats,
        run=run_options(
            Backend.PRODUCTION, activations, kv, threads, None, profile, prefault=prefault
        ),
    )
    with render.progress(output) as progress:
        found = bench(container, options, progress)
    for note in found.report.notes:
        render.warning(output, note)
    if output.json:
        render.document(output, {"model": container.index.model, **found.document()})
    else:
        _print(container, found)


def _check_ids(container: Container) -> tuple[int, ...]:
    try:
        return tuple(tokenizer_of(container).encode(_CHECK_TEXT, add_bos=True))
    except TokenizerError:
        return ()


def _print(container: Container, found: Bench) -> None:
    report, machine, work = found.report, found.machine, found.work
    load = (
        f"{report.load.others:.2f} cores busy with other work, {report.load.stolen:.2f} taken by "
        f"the host"
    )
    render.key_values(
        [
            ("model", container.index.model),
            ("container", container.fingerprint),
            ("processor", f"{machine['cpu']}, {machine['cores']} cores, {machine['isa']}"),
            ("threads", work["threads"]),
            ("turns", f"{work['repeats']}, after one that is not counted"),
            ("load", load),
            *(_floor_lines(report.floor) if report.floor is not None else ()),
        ]
    )
    for title, rates in (
        (
            f"decode, {work['decode_tokens']} tokens from context {work['context']}",
            [(arm.name, arm.decode, arm.decode_ratio) for arm in report.arms],
        ),
        (
            f"prefill, {work['prefill_tokens']} tokens",
            [(arm.name, arm.prefill, arm.prefill_ratio) for arm in report.arms],
        ),
    ):
        _print_rates(title, rates)
    _print_memory(report.arms)


def _floor_lines(floor: Floor) -> list[tuple[str, str]]:
    read = floor.bytes_per_second
    least = floor.seconds_per_token
    return [
        ("bandwidth", f"{_spread(read, 1e9)} GB/s"),
        (
            "bytes per token",
            f"{render.bytes_text(floor.weight_bytes)} of weights, "
            f"{render.bytes_text(round(floor.state_bytes))} of keys and values",
        ),
        ("floor", f"{1e3 * least.median:.3f} ms per token, {1 / least.median:.1f} tokens/s"),
        (
            "larql",
            f"{_spread(floor.ratio)} times the floor, {100 / floor.ratio.median:.0f} % of its "
            f"speed",
        ),
    ]


def _spread(summary: Summary, unit: float = 1.0) -> str:
    low, high = summary.minimum / unit, summary.maximum / unit
    return f"{summary.median / unit:.2f} ({low:.2f} to {high:.2f})"


def _print_rates(title: str, rates: list[tuple[str, Summary | None, Summary | None]]) -> None:
    columns = ["engine", "tokens/s", "min", "max", "larql is", "from", "to"]
    rows = [
        (
            name,
            *(f"{v:.1f}" for v in (rate.median, rate.minimum, rate.maximum)),
            *(
                ("", "", "")
                if ratio is None
                else (f"{v:.2f} ×" for v in (ratio.median, ratio.minimum, ratio.maximum))
            ),
        )
        for name, rate, ratio in rates
        if rate is not None
    ]
    if rows:
        render.line()
        render.line(title)
        shown = len(columns) if len(rows) > 1 else 4
        render.table(columns[:shown], [row[:shown] for row in rows], right=columns[1:shown])


def _print_memory(arms: tuple[ArmReport, ...]) -> None:
    columns = ["engine", "ready s", "load s", "resident MB", "of files", "peak MB", "greedy"]
    rows = [
        (
            arm.name,
            f"{arm.start_seconds:.2f}",
            f"{arm.load_seconds:.3f}",
            *(
                f"{v / 1e6:.0f}"
                for v in (arm.decode_memory.resident, arm.decode_memory.mapped, arm.memory.peak)
            ),
            "same" if arm.differs_at is None else f"differs at {arm.differs_at}",
        )
        for arm in arms
    ]
    render.line()
    render.line("process: ready after start, load of the model, memory after decoding, peak of all")
    shown = len(columns) if len(rows) > 1 else len(columns) - 1
    render.table(columns[:shown], [row[:shown] for row in rows], right=columns[1:6])
