"""Captures: carriers and writes of a run, kept in a file for the interventions of another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.errors import UsageError
from larql.format.atomic import check_output_file, write_file
from larql.runtime.observe.sites import WriteSite, parse_positions, parse_site

__all__ = ["CaptureRequest", "parse_captures", "read_capture", "write_captures"]

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CaptureRequest:
    """Which vectors to keep; ``positions`` None is all."""

    site: WriteSite
    positions: range | None


def parse_captures(text: str) -> tuple[CaptureRequest, ...]:
    """Read ``SITE@POSITIONS``, separated by commas, for example ``12.ffn@4,3.attention@0:5``.

    Raises
    ------
    UsageError
        If an entry is not that.
    """
    found = []
    for entry in text.split(","):
        site, at, positions = entry.strip().partition("@")
        what = f"--capture {entry.strip()!r}"
        if not at:
            raise UsageError(f"{what}: expected SITE@POSITIONS, for example 12.ffn@4")
        found.append(CaptureRequest(parse_site(site, what), parse_positions(positions, what)))
    return tuple(found)


def write_captures(
    path: Path,
    vectors: Mapping[str, Float64],
    provenance: Mapping[str, object],
    *,
    force: bool = False,
) -> None:
    """Write vectors, float64 ``[hidden]``, as a safetensors file.

    Parameters
    ----------
    path : Path
    vectors : mapping
        By name: ``12.ffn@4/carrier``, ``12.ffn@4/write``.
    provenance : mapping
        What run they are from, as JSON.
    force : bool
        Replace an existing file.

    Raises
    ------
    OutputError
        If the file exists without ``force`` or cannot be written; none is left behind.
    """
    check_output_file(path, force=force)
    from safetensors.numpy import save

    metadata = {"larql": json.dumps(provenance, sort_keys=True, ensure_ascii=False)}
    with write_file(path) as temporary:
        temporary.write_bytes(save(dict(vectors), metadata))


def read_capture(path: Path, name: str) -> Float64:
    """Read one vector of a captures file.

    Raises
    ------
    UsageError
        If the file cannot be read, or has no tensor of that name.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names: Sequence[str] = list(file.keys())
            if name not in names:
                raise UsageError(
                    f"{path}: has no tensor {name!r:.60}; it has {', '.join(names[:8])}"
                )
            vector = np.asarray(file.get_tensor(name), dtype=np.float64)
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as captures: {error}") from None
    if not np.isfinite(vector).all():
        raise UsageError(f"{path}: {name} holds numbers that are not finite")
    return vector
