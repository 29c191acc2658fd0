"""``larql run``: continue a prompt, or chat."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import end_ids, read_text, tokenizer_of
from larql.cli.models import open_model
from larql.cli.options import (
    Backend,
    BackendOption,
    Chunk,
    Context,
    DraftDepth,
    Generate,
    Model,
    NoBos,
    PromptFile,
    Threads,
)
from larql.cli.output import Output, output_of
from larql.errors import UsageError

if TYPE_CHECKING:
    from larql.runtime.conversation import Conversation
    from larql.runtime.run import Run

__all__ = ["command"]

CHAT_CONTEXT = 4096

PromptText = Annotated[
    str | None,
    typer.Argument(
        metavar="[PROMPT]",
        help="Text to continue, or - for standard input. Without a prompt, a chat begins.",
        show_default=False,
    ),
]
Chat = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="Put the prompt into the model's chat template as a user's message.",
        show_default=False,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="A system message that begins the chat.",
        show_default=False,
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature", metavar="T", help="0 takes the likeliest token; above 0, tokens are drawn."
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p", metavar="P", help="Draw from the likeliest tokens that together reach P."
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="The same seed draws the same tokens.")
]


def command(
    ctx: typer.Context,
    model: Model,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    generate: Generate = 256,
    chat: Chat = False,
    system: System = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    draft_depth: DraftDepth = None,
    no_bos: NoBos = False,
    backend: BackendOption = Backend.PRODUCTION,
    threads: Threads = None,
    chunk: Chunk = None,
    context: Context = None,
) -> None:
    """Continue a prompt, or chat.

    The text appears as it is made. The prompt goes in as it is, unless --chat puts it into the
    model's own template. Generation ends at a token that the model declares to end a text.

    Examples
    --------
    larql run model.vindex3 "The capital of France is"

    larql run model.vindex3 --chat "Name three rivers." --temperature 0.7 --seed 1

    larql run model.vindex3
    """
    output = output_of(ctx)
    if prompt is not None and prompt_file is not None:
        raise UsageError("expected one of PROMPT and --prompt-file, found both")
    talks = prompt is None and prompt_file is None
    if talks and output.json:
        raise UsageError("--json answers once; give a prompt with it")
    if system is not None and not (chat or talks):
        raise UsageError("--system needs a chat; give --chat with it")
    container = open_model(model, output)
    from larql.runtime.sampling import Sampler, Sampling

    sampler = Sampler(Sampling(temperature, top_p, seed))
    tokenizer = tokenizer_of(container)
    ends = end_ids(container, tokenizer)
    text = read_text(prompt_file, "--prompt-file") if prompt is None and not talks else prompt
    text = read_text(None, "PROMPT") if text == "-" else text
    from larql.runtime.run import RunOptions, open_run

    def prepared() -> Run:
        return open_run(container, RunOptions("target", backend.value, draft_depth, threads, chunk))

    if chat or talks:
        from larql.runtime.chat import load_chat_template
        from larql.runtime.conversation import Conversation

        template = load_chat_template(container.text_files())
        longest = container.component("target").context_length
        room = context or min(longest, CHAT_CONTEXT)
        conversation = Conversation(prepared(), tokenizer, template, room, ends, sampler)
        if system is not None:
            conversation.messages.append({"role": "system", "content": system})
        if text is None:
            _talk(conversation, generate, output)
            return
        _answer(conversation, text, generate, output)
        return
    assert text is not None
    ids = tokenizer.encode(text, add_bos=not no_bos)
    if not ids:
        raise UsageError("the prompt is empty; give some text")
    run = prepared()
    room = context or len(ids) + generate
    session = run.session(room)
    stream = tokenizer.stream(continuing=True)
    made, parts = [], []
    if generate:
        from larql.runtime.generate import generate as continue_session

        row = run.timed_step(session, ids)
        for token in continue_session(run, session, row, generate, sampler, ends):
            made.append(token)
            if token not in ends:
                parts.append(stream.push(token))
                _write(parts[-1], output)
        parts.append(stream.flush())
        _write(parts[-1], output)
    ended = bool(made) and made[-1] in ends
    if output.json:
        render.document(
            output,
            {
                "text": "".join(parts),
                "generated": made,
                "ended": ended,
                "end_of_text_ids": list(ends),
                "provenance": run.provenance(ids, room),
            },
        )
        return
    _write("\n", output)
    why = f"ended by {tokenizer.token_text(made[-1])} ({made[-1]})" if ended else "ended by length"
    render.notice(output, f"{len(made)} tokens, {why}")


def _write(text: str, output: Output) -> None:
    if text and not output.json:
        sys.stdout.write(render.printable(text, keep="\n\t"))
        sys.stdout.flush()


def _answer(conversation: Conversation, text: str, count: int, output: Output) -> None:
    parts = []
    for piece in conversation.reply(text, count):
        parts.append(piece)
        _write(piece, output)
    if output.json:
        render.document(
            output,
            {
                "text": "".join(parts),
                "messages": conversation.messages,
                "end_of_text_ids": list(conversation.end_ids),
                "provenance": conversation.run.provenance(
                    conversation.prompt_ids, conversation.context
                ),
            },
        )
    else:
        _write("\n", output)


def _talk(conversation: Conversation, count: int, output: Output) -> None:
    """Read a message from each line of standard input until it ends."""
    interactive = sys.stdin.isatty()
    if interactive:
        render.notice(output, "chat: one message a line, Ctrl-D ends")
    while True:
        if interactive:
            sys.stderr.write("> ")
            sys.stderr.flush()
        message = sys.stdin.readline()
        if not message:
            break
        if message.strip():
            _answer(conversation, message.rstrip("\n"), count, output)
    if interactive:
        sys.stderr.write("\n")
