"""The names of models on a hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

from larql.errors import UsageError
from larql.format.names import check_relative_name
from larql.format.source.modelfiles import is_gguf

__all__ = ["HubName", "parse_hub_name"]

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_GRAMMAR = "expected hf://owner/name[/file.gguf][@revision]"


@dataclass(frozen=True)
class HubName:
    """A model on a hub, as the user names it.

    Attributes
    ----------
    repo : str
        ``owner/name``.
    file : str or None
        One GGUF file of it.
    revision : str or None
        Branch, tag or commit; None for the main branch.
    """

    repo: str
    file: str | None
    revision: str | None


def parse_hub_name(name: str) -> HubName:
    """Read ``hf://owner/name[/path/file.gguf][@revision]``.

    The revision may also stand before the file, as in the hub's own URIs.

    Raises
    ------
    UsageError
        If the text is none of this form.
    """
    text = name[len("hf://") :].removeprefix("models/")
    left, at, right = text.partition("@")
    owner, _, rest = left.partition("/")
    model, _, file = rest.partition("/")
    revision = right
    if (
        at
        and not file
        and (match := re.fullmatch(r"((?:refs/\w+/)?[^/]+)/(.+\.gguf)", right, re.I))
    ):
        revision, file = match[1], match[2]
    if not (re.fullmatch(_PART, owner) and re.fullmatch(_PART, model)):
        raise UsageError(f"{name}: not a model's name; {_GRAMMAR}")
    if at and (
        not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*", revision)
        or ".." in revision
        or revision.endswith("/")
    ):
        raise UsageError(f"{name}: {revision!r} is not a revision; {_GRAMMAR}")
    if rest.count("/") and not file:
        raise UsageError(f"{name}: ends with a slash; {_GRAMMAR}")
    if file:
        check_relative_name(file, name, UsageError)
        if not is_gguf(file):
            raise UsageError(f"{name}: {file!r} is not a GGUF file; {_GRAMMAR}")
    return HubName(f"{owner}/{model}", file or None, revision or None)
