"""Where a number came from: hashes, environment, and the sidecar beside every dump."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from larql import __version__
from larql.errors import UsageError

__all__ = [
    "FORMAT_CAPS",
    "environment",
    "format_cap",
    "sidecar_path",
    "tokens_sha256",
    "write_sidecar",
]

FORMAT_CAPS = ("as-stored", "q8", "f16", "f32")


def tokens_sha256(tokens: Sequence[int]) -> str:
    """Return the sha256 of token ids as little-endian 64-bit integers."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}q", *tokens)).hexdigest()


def format_cap() -> str:
    """Return the cap on compressed execution that ``LARQL_CPU_MAX_FORMAT`` sets.

    Raises
    ------
    UsageError
        If the variable names no cap.
    """
    cap = os.environ.get("LARQL_CPU_MAX_FORMAT") or FORMAT_CAPS[0]
    if cap not in FORMAT_CAPS:
        raise UsageError(
            f"LARQL_CPU_MAX_FORMAT is {cap!r}, expected one of {', '.join(FORMAT_CAPS)}"
        )
    return cap


def environment() -> dict[str, object]:
    """Return the tool and machine that produced a number."""
    from importlib.metadata import version

    return {
        "tool": f"larql {__version__}",
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "machine": platform.machine(),
    }


def sidecar_path(path: Path) -> Path:
    """Return where a dump's sidecar stands."""
    return path.with_name(f"{path.name}.json")


def write_sidecar(path: Path, document: Mapping[str, object]) -> None:
    """Write the sidecar of the dump at ``path``.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    from larql.format.atomic import write_file

    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with write_file(sidecar_path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
