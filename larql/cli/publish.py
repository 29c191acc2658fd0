"""``larql publish``: upload a container, or a part of one, to a hub."""

from __future__ import annotations

from typing import Annotated

import typer

from larql.cli import render
from larql.cli.checked import checked
from larql.cli.options import Model, Threads
from larql.cli.output import output_of
from larql.errors import UsageError
from larql.format.source.hub_name import HubName, parse_hub_name
from larql.format.source.publish import (
    Publication,
    Published,
    check_target,
    plan_publication,
    publish,
)

__all__ = ["command"]

Repository = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="The repository to publish to: owner/name, or hf://owner/name[@branch].",
        show_default=False,
    ),
]
RevisionOption = Annotated[
    str | None,
    typer.Option(
        "--revision",
        metavar="BRANCH",
        help="Branch to publish to, made if there is none of this name.",
        show_default="main",
    ),
]
MessageOption = Annotated[
    str | None,
    typer.Option(
        "--message",
        "-m",
        metavar="TEXT",
        help="What the commit says.",
        show_default="the model's name and fingerprint",
    ),
]
PrivateOption = Annotated[
    bool,
    typer.Option(
        "--private",
        help="Make the repository one that only its owner sees; refused if it is there and public.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Verify, list what would be uploaded, and stop; the hub is not asked.",
        show_default=False,
    ),
]


def command(
    ctx: typer.Context,
    model: Model,
    repository: Repository,
    revision: RevisionOption = None,
    message: MessageOption = None,
    private: PrivateOption = False,
    dry_run: DryRun = False,
    threads: Threads = None,
) -> None:
    """Upload a container or a slice to a hub.

    Every byte is verified first, as `larql verify` does, and defects end it with exit status 1.
    Then the index, each file that it lists, and the README.md and terms that lie beside it become
    the content of the branch in one commit: who asks meanwhile gets what was there before. What the
    container there before had and this one has not is removed by the same commit; what is no
    container's is left. A repository without a README.md is given one.

    What was uploaded before an interruption is not uploaded again. HF_ENDPOINT says which hub; the
    token is that of HF_TOKEN or of `hf auth login`, and is never printed.

    Examples
    --------
    larql publish model.vindex3 owner/name

    larql publish first4.vindex3 owner/name --revision first4 --private

    larql publish model.vindex3 owner/name --dry-run --json
    """
    output = output_of(ctx)
    name = _target(repository, revision)
    container = checked(model, output, threads)
    publication = plan_publication(container.path)
    published = None
    if not dry_run:
        with render.progress(output) as progress:
            published = publish(
                publication, name, message=message, private=private, progress=progress
            )
    if output.json:
        render.document(output, _document(publication, name, published))
    else:
        _print(publication, name, published)


def _target(repository: str, revision: str | None) -> HubName:
    name = parse_hub_name(f"hf://{repository.removeprefix('hf://')}")
    if revision is not None:
        if name.revision is not None:
            raise UsageError(f"{repository}: names a branch, and so does --revision; give one")
        check_target(name)
        name = parse_hub_name(f"hf://{name.repo}@{revision}")
    return HubName(name.repo, None, check_target(name))


def _document(
    publication: Publication, name: HubName, published: Published | None
) -> dict[str, object]:
    return {
        "path": publication.path.absolute(),
        "repository": name.repo,
        "revision": name.revision,
        "fingerprint": publication.artifact.fingerprint,
        "bytes": publication.nbytes,
        "files": [
            {"name": file, "size": entry.size, "sha256": entry.sha256}
            for file, entry in publication.files.items()
        ],
        "published": published,
    }


def _print(publication: Publication, name: HubName, published: Published | None) -> None:
    render.table(
        ["file", "bytes", "sha256"],
        [(file, entry.size, entry.sha256) for file, entry in publication.files.items()],
        right=["bytes"],
    )
    told = f"{len(publication.files)} files, {render.bytes_text(publication.nbytes)}"
    if published is None:
        render.line(f"{told}, would become the content of hf://{name.repo}@{name.revision}")
        return
    for file in published.removed:
        render.line(render.printable(f"removed {file}, of the container before"))
    if published.card:
        render.line("README.md was made")
    render.line(f"{told}, are hf://{name.repo}@{published.commit}")
    render.line(f"fingerprint {publication.artifact.fingerprint}")
