"""What a repository on a hub lists, and bringing files of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from larql.errors import FetchError
from larql.format.names import check_relative_name
from larql.format.progress import Progress
from larql.format.source.hub_client import bar_class, check_space, endpoint, explained
from larql.format.source.hub_name import HubName

__all__ = ["Remote", "download", "list_files"]


@dataclass(frozen=True)
class Remote:
    """A file of a repository, as the hub lists it: size in bytes, and sha256 if it is large."""

    size: int
    sha256: str | None


def list_files(name: HubName) -> tuple[str, dict[str, Remote]]:
    """Return the commit that the revision stands for, and its files."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    from larql import __version__

    api = HfApi(endpoint=endpoint(), library_name="larql", library_version=__version__)
    with explained(name.repo, name.revision):
        commit = api.model_info(name.repo, revision=name.revision).sha
        if commit is None:
            raise FetchError(f"hf://{name.repo}: {endpoint()} names no commit; is it a hub?")
        files = api.list_repo_tree(name.repo, recursive=True, revision=commit)
        listing = {
            file.path: Remote(file.size, file.lfs.sha256 if file.lfs else None)
            for file in files
            if isinstance(file, RepoFile)
        }
    for path in listing:
        check_relative_name(path, f"hf://{name.repo}", FetchError)
    return commit, listing


def download(
    name: HubName,
    commit: str,
    files: Sequence[str],
    listing: Mapping[str, Remote],
    progress: Progress,
) -> Path:
    """Fetch the files that are not cached yet; return the root of the snapshot.

    Raises
    ------
    FetchError
        If one of them cannot be had.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    from larql import __version__

    missing = sum(
        listing[file].size
        for file in files
        if not isinstance(try_to_load_from_cache(name.repo, file, revision=commit), str)
    )
    check_space(name.repo, missing)
    bar = bar_class(progress)
    root: Path | None = None
    progress.start(f"Fetching {name.repo}", missing)
    try:
        for file in files:
            # The branch is asked for once, which records in the hub's cache what it stands for.
            revision = name.revision if root is None else commit
            with explained(name.repo, name.revision):
                local = hf_hub_download(
                    name.repo,
                    file,
                    revision=revision,
                    endpoint=endpoint(),
                    library_name="larql",
                    library_version=__version__,
                    tqdm_class=bar,
                )
            root = Path(local).parents[file.count("/")]
            if root.name != commit:
                raise FetchError(f"hf://{name.repo}: has just been changed; run the command again")
    finally:
        progress.finish()
    if root is None:
        raise FetchError(f"hf://{name.repo}: nothing to fetch")
    return root
