"""Models on a hub: ``hf://owner/name[/path/file.gguf][@revision]``.

Everything goes through ``huggingface_hub`` and its own cache, so what other programs have fetched
is used and ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE`` mean what they always
mean. Files are fetched one after the other, in the thread that asks: its own worker threads would
finish their file before an interruption (Ctrl-C) takes effect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from larql.errors import FetchError, SourceError
from larql.format.artifact import Artifact
from larql.format.cache import sha256_of
from larql.format.index import INDEX_NAME as ARTIFACT_INDEX
from larql.format.progress import Progress
from larql.format.source.hub_artifact import artifact_files, artifact_in
from larql.format.source.hub_client import UnreachableError, is_offline, quiet_hub
from larql.format.source.hub_files import Remote, download, list_files
from larql.format.source.hub_name import HubName
from larql.format.source.modelfiles import (
    INDEX_NAME,
    Fetched,
    GgufSet,
    gguf_sets,
    indexed_safetensors,
    is_gguf,
    is_safetensors,
    safetensors_of,
    side_files,
)

__all__ = ["choose_files", "fetch_cached", "fetch_hub"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch_hub(name: HubName, *, progress: Progress, refresh: bool) -> Fetched:
    """Bring a model from the hub, or find it in the hub's cache.

    Parameters
    ----------
    name : HubName
        What to fetch.
    progress : Progress
        Told of the bytes fetched and checked.
    refresh : bool
        Whether a hub that cannot be asked is an error even if the model is cached.

    Returns
    -------
    Fetched
        ``revision`` is the commit.

    Raises
    ------
    FetchError
        If it cannot be had: unknown, gated, no such revision or file, nothing that is a model,
        unreachable and not cached, no space.
    """
    label = f"hf://{name.repo}"
    with quiet_hub():
        if is_offline():
            if refresh:
                raise FetchError(f"{label}: HF_HUB_OFFLINE is set; unset it to ask the hub again")
            return fetch_cached(name, f"{label}: HF_HUB_OFFLINE is set", progress)
        try:
            commit, listing = list_files(name)
        except UnreachableError as error:
            if refresh:
                raise
            return fetch_cached(name, str(error).removesuffix("; try again later"), progress)
        return _from_hub(name, commit, listing, progress)


def _from_hub(
    name: HubName, commit: str, listing: Mapping[str, Remote], progress: Progress
) -> Fetched:
    artifact = artifact_in(
        name, listing, lambda: download(name, commit, [ARTIFACT_INDEX], listing, progress)
    )
    if artifact is not None:
        files = artifact_files(name, listing, artifact)
        root = download(name, commit, files, listing, progress)
        return _checked_artifact(root, artifact, files, (), progress)
    indexed: list[str] = []
    if name.file is None and INDEX_NAME in listing:
        # Which safetensors files make the model is only known from the index.
        root = download(name, commit, [INDEX_NAME], listing, progress)
        indexed = indexed_safetensors(root / INDEX_NAME, listing, FetchError)
    weights, others = choose_files(name, listing, indexed)
    root = download(name, commit, [*others, *weights], listing, progress)
    return _checked(root, weights, others, listing, (), progress)


def _checked_artifact(
    root: Path,
    artifact: Artifact,
    files: Sequence[str],
    notes: tuple[str, ...],
    progress: Progress,
) -> Fetched:
    sums = {file: entry.sha256 for file, entry in artifact.files.items()}
    _check_sums(root, sums, ARTIFACT_INDEX, progress)
    return Fetched(root, root.name, sums, tuple(sorted(files)), notes)


def fetch_cached(name: HubName, reason: str, progress: Progress) -> Fetched:
    """Find a model among what has been fetched before."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # No pattern: only the place of the snapshot is asked for.
        snapshot = snapshot_download(
            name.repo, revision=name.revision, local_files_only=True, allow_patterns=[]
        )
    except LocalEntryNotFoundError:
        raise FetchError(
            f"{reason}, and it is not in the hub's cache; fetch it with a connection first"
        ) from None
    root = Path(snapshot)
    listing = {
        str(PurePosixPath(file.relative_to(root))): Remote(file.stat().st_size, _blob_sha256(file))
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }
    note = f"{reason}; using the cached commit {root.name}"
    artifact = artifact_in(name, listing, lambda: root)
    if artifact is not None:
        for file in artifact.files:
            if file not in listing:
                raise FetchError(
                    f"{reason}, and {file} of it is not in the hub's cache; fetch it with a "
                    "connection first"
                )
        files = artifact_files(name, listing, artifact)
        return _checked_artifact(root, artifact, files, (note,), progress)
    indexed = (
        indexed_safetensors(root / INDEX_NAME, listing, FetchError)
        if not name.file and INDEX_NAME in listing
        else []
    )
    weights, others = choose_files(name, listing, indexed)
    return _checked(root, weights, others, listing, (note,), progress)


def _checked(
    root: Path,
    weights: Sequence[str],
    others: Sequence[str],
    listing: Mapping[str, Remote],
    notes: tuple[str, ...],
    progress: Progress,
) -> Fetched:
    """Hold the bytes that are here against what the hub says of them."""
    path = root / weights[0] if is_gguf(weights[0]) else root
    if is_safetensors(weights[0]) and len(weights) == 1 and any(root.glob("*.gguf")):
        # Somebody has fetched a GGUF file of this repository too: the directory is ambiguous.
        path = root / weights[0]
    base = path.parent if path != root else root
    names = (*weights, *others)
    told = {file: digest for file in names if (digest := listing[file].sha256) is not None}
    _check_sums(root, told, "the hub", progress)
    sums = {os.path.relpath(root / file, base): digest for file, digest in told.items()}
    files = tuple(sorted(os.path.relpath(root / file, base) for file in names))
    return Fetched(path, root.name, sums, files, notes)


def _check_sums(root: Path, sums: Mapping[str, str], who: str, progress: Progress) -> None:
    """Refuse files whose bytes are not those that ``who`` vouches for."""
    for name, expected in sums.items():
        file = root / name
        try:
            found = sha256_of(file, progress)
        except SourceError as error:
            raise FetchError(str(error)) from None
        if found != expected:
            raise FetchError(
                f"{file.resolve()}: sha256 is {found}, {who} says {expected} for {name}; delete "
                "this file and run the command again"
            )


def choose_files(
    name: HubName, listing: Mapping[str, Remote], indexed: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the weight files to take, and the files to take beside them."""
    label = f"hf://{name.repo}"
    sets = gguf_sets(listing, label, FetchError)
    if name.file is not None:
        chosen = [model for model in sets if name.file in model.files]
        if not chosen and name.file in listing:
            raise FetchError(f"{label}: {name.file} is a vision projector, not a language model")
        if not chosen:
            raise FetchError(f"{label}: holds no file {name.file!r}{_offer(label, sets)}")
        weights = list(chosen[0].files)
    elif indexed:
        weights = list(indexed)
    elif found := safetensors_of(listing, label, FetchError):
        weights = found
    elif len(sets) == 1:
        weights = list(sets[0].files)
    elif sets:
        raise FetchError(f"{label}: holds {len(sets)} GGUF models{_offer(label, sets)}")
    else:
        names = ", ".join(sorted(listing)[:5]) + (", ..." if len(listing) > 5 else "")
        raise FetchError(
            f"{label}: found no .safetensors and no .gguf file in it, only {names or 'nothing'}; "
            "choose a repository with one of these"
        )
    return weights, side_files(listing, weights[0])


def _offer(label: str, sets: Sequence[GgufSet]) -> str:
    names = ", ".join(f"{label}/{model.files[0]}" for model in sets)
    return f"; name one: {names}" if names else "; it holds no GGUF file"


def _blob_sha256(file: Path) -> str | None:
    """Return the digest that a cached large file is stored under, if it is one."""
    link = file.readlink() if file.is_symlink() else file
    return link.name if _SHA256.fullmatch(link.name) else None
