"""``larql run``: continue a prompt, or chat."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
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
from larql.cli.inputs import end_ids, read_text, room_for, tokenizer_of
from larql.cli.models import open_model, start_run
from larql.cli.options import (
    DRAFT_TOKENS,
    ActivationKind,
    Activations,
    Backend,
    BackendOption,
    Chunk,
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
    PromptFile,
    Speculate,
    Threads,
)
from larql.cli.output import Output, output_of
from larql.cli.run_options import run_options
from larql.cli.speculated import check_speculate, speculation_of, tell_speculation
from larql.errors import UsageError

if TYPE_CHECKING:
    from larql.format.container import Container
    from larql.format.graph import Component
    from larql.runtime.chat import ChatTemplate
    from larql.runtime.conversation import Conversation
    from larql.runtime.draft.drafter import Speculation
    from larql.runtime.run import Run, RunOptions
    from larql.runtime.sampling import Sampler
    from larql.runtime.text import TextTokenizer

__all__ = ["command"]

CHAT_CONTEXT = 4096

PromptText = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
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
    speculate: Speculate = None,
    draft_tokens: DraftTokens = DRAFT_TOKENS,
    draft_depth: DraftDepth = None,
    no_bos: NoBos = False,
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
    """Continue a prompt, or chat.

    The text appears as it is made. The prompt goes in as it is, unless --chat puts it into the
    model's own template. Generation ends at a token that the model declares to end a text, or
    where the context is full. Without a prompt each line of standard input is a message of a chat,
    which has room for 4096 positions unless --context says otherwise. --speculate has tokens
    guessed and verified in blocks: the text is the same, drawn with any temperature and seed.

    Examples
    --------
    larql run model.vindex3 "The capital of France is"

    larql run model.vindex3 --chat "Name three rivers." --temperature 0.7 --seed 1

    larql run model.vindex3 "def add(a, b):" --speculate ngram --draft-tokens 8

    larql run model.vindex3
    """
    output = output_of(ctx)
    check_speculate(speculate, generate)
    if prompt is not None and prompt_file is not None:
        raise UsageError("expected one of PROMPT and --prompt-file, found both")
    talks = prompt is None and prompt_file is None
    if talks and output.json:
        raise UsageError("--json answers once; give a prompt with it")
    if system is not None and not (chat or talks):
        raise UsageError("--system begins a chat; give --chat with it")
    if no_bos and (chat or talks):
        raise UsageError("--no-bos does not go with a chat, whose template begins the text")
    container = open_model(model, output)
    from larql.runtime.plan import make_plan
    from larql.runtime.slices import slice_of

    component = make_plan(container, "target", slice_of(draft_depth)).component
    template = None
    if chat or talks:
        from larql.runtime.chat import load_chat_template

        template = load_chat_template(container.text_files())
    text = prompt
    if prompt_file is not None or prompt == "-":
        text = read_text(prompt_file, "--prompt-file" if prompt is None else "PROMPT")
    from larql.runtime.sampling import Sampler, Sampling

    sampler = Sampler(Sampling(temperature, top_p, seed))
    tokenizer = tokenizer_of(container)
    options = run_options(
        backend, activations, kv, threads, chunk, profile, prefault=prefault,
        draft_depth=draft_depth, experts=expert_access(shard, experts, route), refusals=refusals,
    )  # fmt: skip
    asked = _Asked(
        container,
        component,
        options,
        tokenizer,
        end_ids(container, tokenizer),
        sampler,
        generate,
        context,
        speculate,
        draft_tokens,
    )
    if template is not None:
        _chat(asked, template, system, text, output)
    elif text is not None:
        _continue(asked, text, not no_bos, output)


@dataclass(frozen=True)
class _Asked:
    """What a user asked for, ready to run."""

    container: Container
    component: Component
    options: RunOptions
    tokenizer: TextTokenizer
    ends: tuple[int, ...]
    sampler: Sampler
    count: int
    context: int | None
    speculate: str | None
    draft_tokens: int


def _chat(
    asked: _Asked, template: ChatTemplate, system: str | None, text: str | None, output: Output
) -> None:
    from larql.runtime.conversation import Conversation

    room = asked.context or min(asked.component.context_length, CHAT_CONTEXT)
    room_for(asked.component, room, 0, None, output)
    run = start_run(asked.container, asked.options, output)
    speculation = speculation_of(asked.speculate, asked.draft_tokens, run, room)
    conversation = Conversation(
        run, asked.tokenizer, template, room, asked.ends, asked.sampler, speculation
    )
    if system is not None:
        conversation.messages.append({"role": "system", "content": system})
    if text is None:
        _talk(conversation, asked.count, output)
    else:
        _answer(conversation, text, asked.count, output)
    tell_speculation(output, speculation)


def _continue(asked: _Asked, text: str, add_bos: bool, output: Output) -> None:
    from larql.runtime.plan import check_tokens

    ids = asked.tokenizer.encode(text, add_bos=add_bos)
    if not ids:
        raise UsageError("the prompt is empty; give some text")
    check_tokens(ids, asked.component.embed.vocab)
    longest = asked.context or asked.component.context_length
    if asked.context is None and len(ids) > longest:
        raise UsageError(
            f"the prompt takes {len(ids)} positions, and the model was made for {longest}; give "
            f"--context to go beyond"
        )
    # What follows the prompt may be cut short by the context.
    count = max(0, min(asked.count, longest - len(ids) + 1))
    room = room_for(asked.component, len(ids), count, asked.context, output)
    run = start_run(asked.container, asked.options, output)
    speculation = speculation_of(asked.speculate, asked.draft_tokens, run, room)
    made: list[int] = []
    parts: list[str] = []
    for part in _continued(run, room, ids, count, asked, made, speculation):
        parts.append(part)
        _write(part, output)
    tell_left_out(run, output)
    ended = bool(made) and made[-1] in asked.ends
    if output.json:
        report: dict[str, object] = {
            "text": "".join(parts),
            "generated": made,
            "ended": ended,
            "end_of_text_ids": list(asked.ends),
            **({} if speculation is None else {"speculation": speculation.report()}),
            "provenance": run.provenance(ids, room),
        }
        render.document(output, report)
        return
    _write("\n", output)
    if ended:
        why = f"by the token {asked.tokenizer.token_text(made[-1])} ({made[-1]})"
    else:
        why = "by --generate" if len(made) == asked.count else "by the end of the context"
    render.notice(output, f"{len(made)} tokens, ended {why}")
    tell_speculation(output, speculation)


def _continued(
    run: Run,
    room: int,
    ids: list[int],
    count: int,
    asked: _Asked,
    made: list[int],
    speculation: Speculation | None,
) -> Iterator[str]:
    """Yield the text that continues ``ids`` piece by piece; ``made`` receives its tokens."""
    if not count:
        return
    from larql.runtime.generate import generate

    stream = asked.tokenizer.stream(continuing=True)
    session = run.session(room)
    carrier, row = run.timed_advance(session, ids)
    if speculation is not None:
        speculation.begin(session, ids, carrier, count)
    for token in generate(run, session, row, count, asked.sampler, asked.ends, ids, speculation):
        made.append(token)
        if token not in asked.ends:
            yield stream.push(token)
    yield stream.flush()


def _write(text: str, output: Output) -> None:
    if text and not output.json:
        sys.stdout.write(render.printable(text, keep="\n\t"))
        sys.stdout.flush()


def _answer(conversation: Conversation, text: str, count: int, output: Output) -> None:
    parts = []
    for part in conversation.reply(text, count):
        parts.append(part)
        _write(part, output)
    tell_left_out(conversation.run, output)
    if not output.json:
        _write("\n", output)
        return
    made = conversation.reply_ids
    render.document(
        output,
        {
            "text": "".join(parts),
            "generated": made,
            "ended": bool(made) and made[-1] in conversation.end_ids,
            "end_of_text_ids": list(conversation.end_ids),
            "messages": conversation.messages,
            **_speculated(conversation),
            "provenance": conversation.run.provenance(conversation.given_ids, conversation.context),
        },
    )


def _speculated(conversation: Conversation) -> dict[str, object]:
    found = conversation.speculation
    return {} if found is None else {"speculation": found.report()}


def _talk(conversation: Conversation, count: int, output: Output) -> None:
    """Read a message from each line of standard input until it ends."""
    if sys.stdin is None:
        raise UsageError("a chat reads standard input, which is closed; give a prompt")
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
