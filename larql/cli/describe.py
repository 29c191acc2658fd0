"""``larql describe``: the features that a token's embedding lights up, over all layers."""

from __future__ import annotations

from typing import Annotated

import typer

from larql.cli import render
from larql.cli.inputs import TextSource, read_input
from larql.cli.models import open_model
from larql.cli.options import Component, Model, Profile, Threads, half_open_range
from larql.cli.output import output_of
from larql.cli.walk import (
    LayersOption,
    PartialOption,
    Writes,
    hit_document,
    print_features,
    texts_of,
)
from larql.format.labels import read_labels

__all__ = ["command"]

Subject = Annotated[
    str,
    typer.Argument(
        metavar="TOKEN|TEXT",
        help="A token id, or text whose last token is meant; text:… for text that is a number.",
        show_default=False,
    ),
]
Most = Annotated[
    int, typer.Option("--top-k", metavar="K", min=1, help="Features to list, over all layers.")
]


def command(
    ctx: typer.Context,
    model: Model,
    subject: Subject,
    top_k: Most = 20,
    writes: Writes = 5,
    layers: LayersOption = None,
    partial: PartialOption = False,
    component: Component = "target",
    profile: Profile = None,
    threads: Threads = None,
) -> None:
    """Tell which features a token or text lights up.

    The embedding of the token, or of the text's last one, is searched for in every bank, as larql
    walk does, and the features of the largest products are listed over all layers, each with its
    layer and the tokens that it writes.

    Examples
    --------
    larql describe model.vindex3 " France"

    larql describe model.vindex3 4649 --layers 10:20 --json
    """
    output = output_of(ctx)
    span = None if layers is None else half_open_range(layers, "--layers")
    container = open_model(model, output)
    is_id = subject.isascii() and subject.isdigit()
    source = (
        TextSource(tokens=subject) if is_id else TextSource(prompt=subject.removeprefix("text:"))
    )
    given = read_input(container, source, add_bos=False)
    from larql.runtime.walk.answer import WalkOptions
    from larql.runtime.walk.run import walk

    found = walk(
        container,
        WalkOptions(top_k, writes, span, partial, threads, component, profile),
        tokens=given.ids,
    )
    tokenizer = given.tokenizer or texts_of(container, found)
    hits = sorted(
        ((bank, hit) for bank in found.banks for hit in bank.hits),
        key=lambda pair: (-pair[1].score, pair[0].layer, pair[0].bank, pair[1].feature),
    )[:top_k]
    labels = read_labels(container)
    token = given.ids[-1]
    text = None if tokenizer is None else tokenizer.token_text(token)
    if output.json:
        render.document(
            output,
            {
                "container": container.path.absolute(),
                "fingerprint": container.fingerprint,
                "profile": found.profile,
                "token": token,
                "text": text,
                "authority": found.authority.document(),
                "features": [
                    {
                        "bank": bank.bank,
                        "layer": bank.layer,
                        **hit_document(bank, hit, tokenizer, labels),
                    }
                    for bank, hit in hits
                ],
                **({} if labels is None else {"relations": list(labels.relations)}),
                "dropped": list(found.dropped),
                "notes": list(found.notes),
            },
        )
        return
    render.line(render.printable(f"token {token}" + ("" if text is None else f" {text!r}")))
    print_features(output, found, hits, tokenizer, labels)
    if labels is not None and labels.relations:
        named = (n if c is None else f"{n} ({c})" for n, c in labels.relations)
        render.line(render.printable(f"relations: {', '.join(named)}"))
