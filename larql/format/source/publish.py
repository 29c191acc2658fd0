"""Uploading an artifact to a hub, so that whoever asks sees all of it or nothing of it.

Large files are brought one after the other into the repository's store, where nothing shows them;
one commit then makes all of them the content of the branch, and takes what the container there
before had and this one has not. Files that are in the store already are not sent again, which is
how an interrupted upload goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from larql.errors import CheckFailed, ContainerError, FetchError, UsageError
from larql.format.artifact import Artifact, ListedFile, artifact_of
from larql.format.index import INDEX_NAME
from larql.format.progress import Progress
from larql.format.source.hub_artifact import artifact_in
from larql.format.source.hub_client import endpoint, explained, is_offline, quiet_hub
from larql.format.source.hub_files import Remote, download, list_files
from larql.format.source.hub_name import HubName
from larql.format.source.model_card import CARD_NAME, model_card
from larql.format.source.modelfiles import is_about, terms_and_description

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

__all__ = ["Publication", "Published", "plan_publication", "publish"]

MAIN = "main"
_IGNORED = (".gitattributes", ".gitignore")


@dataclass(frozen=True)
class Publication:
    """What is to be uploaded of a directory.

    Attributes
    ----------
    path : Path
    artifact : Artifact
    files : mapping of str to ListedFile
        ``index.json``, what it lists, and what describes the model or states its terms beside it.
        Sizes are those of the files here.
    """

    path: Path
    artifact: Artifact
    files: Mapping[str, ListedFile]

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size or 0 for entry in self.files.values())


@dataclass(frozen=True)
class Published:
    """What has become of it.

    Attributes
    ----------
    revision : str
        The branch.
    commit : str
        On the hub; that of before, if it held the same files.
    created : bool
        Whether the repository was made for it.
    card : bool
        Whether a model card was written, because there was none.
    removed : tuple of str
        Files of the container that was there before.
    """

    revision: str
    commit: str
    created: bool
    card: bool
    removed: tuple[str, ...]


@dataclass(frozen=True)
class _Target:
    """A branch as it is before: its head, and what it holds.

    Where there is no such branch yet, they are those of the main one.
    """

    head: str
    exists: bool
    listing: Mapping[str, Remote]
    before: Artifact | None


def plan_publication(path: Path) -> Publication:
    """Return which files of a directory belong to what is published; the hub is not asked.

    Raises
    ------
    ContainerError
        If one of them is missing or no regular file, or as :func:`artifact_of`.
    """
    from larql.format.segment import hash_file

    artifact = artifact_of(path)
    names = [entry.name for entry in path.iterdir() if entry.is_file()]
    about = [name for name in terms_and_description(sorted(names)) if name not in artifact.files]
    files = {}
    for name in (INDEX_NAME, *artifact.files, *about):
        listed = artifact.files.get(name)
        try:
            size = (path / name).stat().st_size
        except OSError as error:
            raise ContainerError(f"{path / name}: cannot be read: {error.strerror}") from None
        if listed is not None and listed.size not in (None, size):
            raise ContainerError(f"{path / name}: is {size} bytes, expected {listed.size}")
        digest = hash_file(path / name).sha256 if listed is None else listed.sha256
        files[name] = ListedFile(digest, size)
    return Publication(path, artifact, files)


def check_target(name: HubName) -> str:
    """Return the branch that a repository's name means.

    Raises
    ------
    UsageError
        If it names a file, or a commit, of which there can be no other content.
    """
    if name.file is not None:
        raise UsageError(f"hf://{name.repo}/{name.file}: names a file; expected hf://owner/name")
    revision = name.revision or MAIN
    if re.fullmatch(r"[0-9a-f]{40}|refs/.+", revision):
        raise UsageError(f"hf://{name.repo}@{revision}: is no branch; name one to publish to")
    return revision


def publish(
    publication: Publication,
    name: HubName,
    *,
    message: str | None,
    private: bool,
    progress: Progress,
) -> Published:
    """Upload what was planned, as one commit.

    Parameters
    ----------
    publication : Publication
        Of an artifact that has been verified.
    name : HubName
        Repository and branch; either is made if there is none.
    message : str or None
        Of the commit; None: the model's name and fingerprint.
    private : bool
        Whether a repository that is made is hidden from others.
    progress : Progress
        Told of the bytes in the store, and in the commit.

    Raises
    ------
    FetchError
        If the hub cannot be reached or refuses; if the branch holds something else; if it changed
        meanwhile; if a repository that should be private is not.
    ContainerError
        If a file changed since it was read. Nothing is committed then.
    GenerationError
        If the branch holds a container that this build does not read.
    CheckFailed
        If what the hub lists afterwards is not what was sent.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    from larql import __version__

    revision, label = check_target(name), f"hf://{name.repo}"
    if is_offline():
        raise FetchError(f"{label}: HF_HUB_OFFLINE is set; unset it to publish")
    additions = _additions(publication)
    api = HfApi(endpoint=endpoint(), library_name="larql", library_version=__version__)
    with quiet_hub(), explained(name.repo, revision):
        created = _made(api, name, private)
        target = _target(api, name.repo, revision, progress)
        card = not any(is_about(file) for file in (*target.listing, *publication.files))
        if card:
            text = model_card(publication.artifact, name.repo)
            additions.append(CommitOperationAdd(CARD_NAME, text))
        gone = () if target.before is None else target.before.files.keys() - publication.files
        removed = tuple(sorted(file for file in gone if file in target.listing))
        _store(
            api, name.repo, publication, additions, revision if target.exists else None, progress
        )
        if not target.exists:
            api.create_branch(name.repo, branch=revision, revision=target.head)
        made = api.create_commit(
            name.repo,
            [*additions, *_deletions(removed)],
            commit_message=message or _message(publication.artifact),
            revision=revision,
            parent_commit=target.head,
            num_threads=1,
        )
        _check_listed(publication, HubName(name.repo, None, made.oid), removed)
    return Published(revision, made.oid, created, card, removed)


def _message(artifact: Artifact) -> str:
    return f"Publish {artifact.model or 'a model'} as a container, {artifact.fingerprint[:16]}"


def _made(api: HfApi, name: HubName, private: bool) -> bool:
    """Make the repository if there is none; return whether there was."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        found = api.model_info(name.repo)
    except RepositoryNotFoundError:
        try:
            api.create_repo(name.repo, private=private or None, exist_ok=True)
        except HfHubHTTPError as error:
            if error.response.status_code not in (401, 403, 404):
                raise
            raise FetchError(
                f"hf://{name.repo}: {endpoint()} lets nobody make it without a token that may; set "
                "HF_TOKEN to one with write access, or log in with `hf auth login`"
            ) from error
        return True
    if private and not found.private:
        raise FetchError(
            f"hf://{name.repo}: is there already, and public; make it private on {endpoint()}, or "
            "publish without --private"
        )
    return False


def _target(api: HfApi, repo: str, revision: str, progress: Progress) -> _Target:
    refs = api.list_repo_refs(repo)
    heads = {branch.name: branch.target_commit for branch in refs.branches}
    if revision in {tag.name for tag in refs.tags}:
        raise FetchError(f"hf://{repo}: {revision} is a tag there; publish to a branch")
    head = heads.get(revision) or heads.get(MAIN)
    if head is None:
        raise FetchError(f"hf://{repo}: has neither a branch {revision} nor {MAIN}; make one there")
    at = HubName(repo, None, head)
    _, listing = list_files(at)
    before = artifact_in(at, listing, lambda: download(at, head, [INDEX_NAME], listing, progress))
    others = set(listing) - set(_IGNORED) - set(terms_and_description(listing))
    if before is None and others:
        raise FetchError(
            f"hf://{repo}: {revision} holds {min(others)}, which is of no container; publish to "
            "another repository, or remove it there"
        )
    return _Target(head, revision in heads, listing, before)


def _additions(publication: Publication) -> list[CommitOperationAdd]:
    from huggingface_hub import CommitOperationAdd

    try:
        return [CommitOperationAdd(file, publication.path / file) for file in publication.files]
    except ValueError as error:
        raise ContainerError(f"{publication.path}: the hub takes no such file: {error}") from None


def _deletions(names: tuple[str, ...]) -> list[CommitOperationDelete]:
    from huggingface_hub import CommitOperationDelete

    return [CommitOperationDelete(name, is_folder=False) for name in names]


def _store(
    api: HfApi,
    repo: str,
    publication: Publication,
    additions: list[CommitOperationAdd],
    revision: str | None,
    progress: Progress,
) -> None:
    """Bring large files into the repository's store, and hold all to the hashes that were read.

    One at a time: several at once are threads of the library's, which finish their file before an
    interruption takes effect.
    """
    progress.start(f"Publishing {repo}", sum(one.upload_info.size for one in additions))
    try:
        for addition in additions:
            # An empty text: what a repository's .gitignore names would be left out silently.
            api.preupload_lfs_files(
                repo,
                [addition],
                revision=revision,
                num_threads=1,
                free_memory=False,
                gitignore_content="",
            )
            entry = publication.files.get(addition.path_in_repo)
            if entry is not None and addition.upload_info.sha256.hex() != entry.sha256:
                raise ContainerError(
                    f"{publication.path / addition.path_in_repo}: has sha256 "
                    f"{addition.upload_info.sha256.hex()}, expected {entry.sha256}; it changed "
                    "while it was published, and nothing was committed"
                )
            progress.advance(addition.upload_info.size)
    finally:
        progress.finish()


def _check_listed(publication: Publication, at: HubName, removed: tuple[str, ...]) -> None:
    """Hold what the hub lists at a commit against what was sent."""
    _, listing = list_files(at)
    for file, entry in publication.files.items():
        remote = listing.get(file)
        if remote is None:
            found = "is not there"
        elif remote.size != entry.size:
            found = f"has {remote.size} bytes there, expected {entry.size}"
        elif remote.sha256 not in (None, entry.sha256):
            found = f"has sha256 {remote.sha256} there, expected {entry.sha256}"
        else:
            continue
        raise CheckFailed(f"hf://{at.repo}@{at.revision}: {file} {found}; publish again")
    for file in removed:
        if file in listing:
            raise CheckFailed(f"hf://{at.repo}@{at.revision}: {file} is still there, remove it")
