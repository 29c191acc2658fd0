"""``larql walk``: search the gates of a model's feed-forward networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from larql.cli import render
from larql.cli.inputs import TextSource, exactly_one, read_input
from larql.cli.models import open_model
from larql.cli.options import (
    Component,
    Model,
    NoBos,
    Profile,
    Prompt,
    PromptFile,
    Threads,
    TokenIds,
    TokensFile,
    half_open_range,
)
from larql.cli.output import Output, output_of
from larql.errors import TokenizerError, UsageError
from larql.format.container import Container
from larql.format.labels import Labels, read_labels
from larql.runtime.container_text import tokenizer_of

if TYPE_CHECKING:
    from larql.runtime.text import TextTokenizer
    from larql.runtime.walk.answer import BankFeatures, Feature, Walk

__all__ = [
    "LayersOption",
    "PartialOption",
    "Writes",
    "command",
    "hit_document",
    "print_features",
    "texts_of",
    "told",
]

VectorOption = Annotated[
    Path | None,
    typer.Option(
        "--vector",
        metavar="F.npy",
        help="A vector of the carrier's width to search with, as floats.",
        show_default=False,
    ),
]
Features = Annotated[
    int, typer.Option("--top-k", metavar="K", min=1, help="Features to list of each bank.")
]
Writes = Annotated[
    int,
    typer.Option(
        "--writes",
        metavar="N",
        min=0,
        help="Tokens to list of each feature; 0 reads no down projection.",
    ),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--layers", metavar="A:B", help="Layers to search, B not included.", show_default="all"
    ),
]
Residuals = Annotated[
    bool,
    typer.Option(
        "--residuals",
        help="Run the tokens, and search each bank with what it reads at the last one.",
        show_default=False,
    ),
]
PartialOption = Annotated[
    bool,
    typer.Option(
        "--partial",
        help="Search the banks that are here; those that are dropped are listed.",
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
    vector: VectorOption = None,
    top_k: Features = 10,
    writes: Writes = 3,
    layers: LayersOption = None,
    residuals: Residuals = False,
    partial: PartialOption = False,
    no_bos: NoBos = False,
    component: Component = "target",
    profile: Profile = None,
    threads: Threads = None,
) -> None:
    """Search a model's features, layer by layer.

    A feature is a row of a gate: it fires by the row's product with what the network reads. Each
    bank is searched for the features of the largest product with the query, and each comes with
    the tokens that it writes. The query is a vector, or the embedding of the last token as a run
    scales it; with --residuals, what each bank really reads there. Only rows that are searched are
    read, so a slice without the rest of the model serves. Every bank that is asked for is searched,
    or the command is refused and says what is missing.

    Examples
    --------
    larql walk model.vindex3 --prompt "The capital of France is" --top-k 5

    larql walk model.vindex3 --vector direction.npy --layers 8:12 --writes 0 --json
    """
    output = output_of(ctx)
    source = TextSource(tokens, tokens_file, prompt, prompt_file)
    if vector is not None:
        exactly_one(
            {
                "--tokens": tokens,
                "--tokens-file": tokens_file,
                "--prompt": prompt,
                "--prompt-file": prompt_file,
                "--vector": vector,
            }
        )
        if residuals:
            raise UsageError("--residuals runs tokens; it does not go with --vector")
    span = None if layers is None else half_open_range(layers, "--layers")
    container = open_model(model, output)
    from larql.runtime.walk.answer import WalkOptions
    from larql.runtime.walk.queries import read_vector
    from larql.runtime.walk.run import walk

    asked = None if vector is None else read_vector(vector)
    given = None if vector is not None else read_input(container, source, add_bos=not no_bos)
    found = walk(
        container,
        WalkOptions(top_k, writes, span, partial, threads, component, profile),
        vector=asked,
        tokens=() if given is None else given.ids,
        residuals=residuals,
    )
    tokenizer = texts_of(container, found) if given is None else given.tokenizer
    tokenizer = tokenizer or texts_of(container, found)
    labels = read_labels(container)
    if output.json:
        render.document(
            output,
            {
                "container": container.path.absolute(),
                "fingerprint": container.fingerprint,
                "profile": found.profile,
                "query": {"kind": found.query.kind, "tokens": list(found.query.tokens)},
                "authority": found.authority.document(),
                "banks": _bank_documents(found, tokenizer, labels),
                "dropped": list(found.dropped),
                "notes": list(found.notes),
                "seconds": found.seconds,
                "token_seconds": found.token_seconds,
            },
        )
        return
    print_features(
        output, found, [(bank, hit) for bank in found.banks for hit in bank.hits], tokenizer, labels
    )


def print_features(
    output: Output,
    found: Walk,
    hits: Sequence[tuple[BankFeatures, Feature]],
    tokenizer: TextTokenizer | None,
    labels: Labels | None,
) -> None:
    """Write features as a table, then what was dropped."""
    columns = ["layer", "bank", "feature", "score", "writes"]
    if labels is not None:
        columns.append("label")
    rows: list[tuple[object, ...]] = []
    for bank, hit in hits:
        kind = bank.bank.rsplit("/", 1)[-1]
        row = (bank.layer, kind, hit.feature, f"{hit.score:.6f}", told(hit, tokenizer))
        label = () if labels is None else (labels.of(bank.bank, bank.layer, hit.feature) or "",)
        rows.append((*row, *map(render.printable, label)))
    render.table(columns, rows, right=["layer", "feature", "score"])
    for note in found.notes:
        render.notice(output, note)
    for diagnosis in found.dropped:
        render.line(render.printable(f"dropped: {diagnosis.line()}"))


def texts_of(container: Container, found: Walk) -> TextTokenizer | None:
    """Return the tokenizer that spells the tokens of an answer, None where there is nothing to.

    Ids without text are an answer as well.
    """
    if not any(hit.tokens for bank in found.banks for hit in bank.hits):
        return None
    try:
        return tokenizer_of(container)
    except TokenizerError:
        return None


def told(hit: Feature, tokenizer: TextTokenizer | None) -> str:
    """Return the tokens that a feature writes, as text or as ids."""
    if tokenizer is None:
        return ", ".join(str(token) for token, _ in hit.tokens)
    return " ".join(repr(tokenizer.token_text(token)) for token, _ in hit.tokens)


def _bank_documents(
    found: Walk, tokenizer: TextTokenizer | None, labels: Labels | None
) -> list[dict[str, object]]:
    return [
        {
            "bank": bank.bank,
            "layer": bank.layer,
            "searched": bank.searched,
            "features": bank.features,
            "hits": [hit_document(bank, hit, tokenizer, labels) for hit in bank.hits],
        }
        for bank in found.banks
    ]


def hit_document(
    bank: BankFeatures, hit: Feature, tokenizer: TextTokenizer | None, labels: Labels | None
) -> dict[str, object]:
    """Return one feature as JSON; a label has a place where the container carries any."""
    label = {} if labels is None else {"label": labels.of(bank.bank, bank.layer, hit.feature)}
    return {
        "feature": hit.feature,
        "expert": hit.expert,
        "score": hit.score,
        "writes": [
            {
                "token": token,
                "score": score,
                "text": None if tokenizer is None else tokenizer.token_text(token),
            }
            for token, score in hit.tokens
        ],
        **label,
    }
