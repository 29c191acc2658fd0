"""The hub library as larql uses it: where it is, how it reports, and its errors in one line."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, cast

from larql.errors import FetchError, LarqlError
from larql.format.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.utils.tqdm import tqdm

__all__ = [
    "UnreachableError",
    "bar_class",
    "check_space",
    "endpoint",
    "explained",
    "is_offline",
    "quiet_hub",
]

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnreachableError(FetchError):
    """The hub gave no answer; what is cached may still serve."""


def endpoint() -> str:
    """Return the address of the hub: ``HF_ENDPOINT`` as it is now, else the library's default."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT


def is_offline() -> bool:
    """Whether the user has asked that the hub be left alone."""
    from huggingface_hub import constants

    asked = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return constants.HF_HUB_OFFLINE or asked.upper() in constants.ENV_VARS_TRUE_VALUES


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the library's own bars and retry messages off the terminal."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    verbosity, silent = logging.get_verbosity(), are_progress_bars_disabled()
    logging.set_verbosity(ERROR)
    if not silent:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if not silent:
            enable_progress_bars()


def bar_class(progress: Progress) -> type[tqdm]:
    """Make the class of progress bar through which the library tells ``progress`` of bytes."""
    from huggingface_hub.utils.tqdm import tqdm as hub_tqdm

    class Bar(hub_tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            progress.advance(int(n or 0))
            return None

        # Having these two, the library makes one bar and not one more for bytes on the wire.
        def update_transfer(self, n: float | None = 1) -> None:
            return

        def set_transfer_postfix_str(self, postfix: str, refresh: bool = False) -> None:
            return

    return Bar


def check_space(repo: str, needed: int) -> None:
    """Refuse a download that will not fit.

    Parameters
    ----------
    repo : str
        ``owner/name``, for the error text.
    needed : int
        Bytes still to fetch.

    Raises
    ------
    FetchError
        If the disk of the hub's cache has less than that.
    """
    from huggingface_hub import constants

    place = Path(constants.HF_HUB_CACHE).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return
    if needed > free:
        raise FetchError(
            f"hf://{repo}: needs {needed} bytes, {free} are free in {place}; free some space "
            "or set HF_HOME to another disk"
        )


@contextmanager
def explained(repo: str, revision: str | None) -> Iterator[None]:
    """Turn what the library raises into one line for the user.

    Raises
    ------
    UnreachableError
        If the hub gave no answer, or says that it cannot at present.
    FetchError
        For everything else.
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP library below differs by version; the root of its errors is the base of this one.
    transport = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    try:
        yield
    except LarqlError:
        raise
    except (transport, OSError, ValueError) as error:
        raise _explain(repo, revision, error) from error
    except RuntimeError as error:
        # What goes wrong with one file of an upload is the cause of one of these.
        if not isinstance(error.__cause__, (transport, OSError, ValueError)):
            raise
        raise _explain(repo, revision, error.__cause__) from error


def _explain(repo: str, revision: str | None, error: Exception) -> FetchError:
    from huggingface_hub import errors

    hub, label = endpoint(), f"hf://{repo}"
    if isinstance(error, errors.GatedRepoError):
        return FetchError(
            f"{label}: is gated; accept its terms at {hub}/{repo}, then set HF_TOKEN to a token "
            "of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return FetchError(
            f"{label}: no such model on {hub}, or it is private; check the name, or set HF_TOKEN"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return FetchError(f"{label}: has no revision {revision!r}; check the branch, tag or commit")
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return FetchError(
                f"{label}: {hub} refuses access ({status}); check HF_TOKEN, what it may do, and "
                "the model's terms"
            )
        if status == 412:
            return FetchError(f"{label}: has just been changed; run the command again")
        if status == 429 or status >= 500:
            return UnreachableError(f"{label}: {hub} answers {status}; try again later")
        return FetchError(f"{label}: {hub} answers {status}; is it a hub?")
    if isinstance(error, errors.HFValidationError):
        return FetchError(f"{label}: is not a name the hub allows: {error}")
    if isinstance(error, errors.LocalEntryNotFoundError):
        # Raised where the library finds neither the hub nor a cached file; the cause says why.
        return UnreachableError(
            f"{label}: cannot reach {hub} ({_why(error.__cause__ or error)}); try again later"
        )
    if isinstance(error, OSError) and error.errno is not None and not _is_network(error):
        advice = "free some space" if error.errno in _NO_SPACE else "choose another place"
        return FetchError(
            f"{label}: cannot write to the hub's cache{_where(error)}: {error.strerror}; {advice} "
            "or set HF_HOME"
        )
    if isinstance(error, ValueError):
        return FetchError(f"{label}: {hub} does not answer like a hub ({_why(error)})")
    return UnreachableError(f"{label}: cannot reach {hub} ({_why(error)}); try again later")


def _is_network(error: OSError) -> bool:
    return isinstance(error, (ConnectionError, TimeoutError))


def _where(error: OSError) -> str:
    return f" {error.filename}" if error.filename is not None else ""


def _why(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
