"""Containers made from tiny checkpoints, and containers that are wrong in exactly one way."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.extract import Extraction, extract

GRAPH = "system_graph.json"


def make_container(
    source: Path, output: Path, *, quant: str | None = None, force: bool = False
) -> Container:
    """Extract a checkpoint and open the container."""
    extract_to(source, output, quant=quant, force=force)
    return Container(output)


def extract_to(
    source: Path, output: Path, *, quant: str | None = None, force: bool = False
) -> Extraction:
    with open_checkpoint(source) as checkpoint:
        return extract(checkpoint, output, quant=quant, force=force, progress=SilentProgress())


def copy_container(directory: Path, to: Path) -> Path:
    """Copy a container so that it may be damaged."""
    return Path(shutil.copytree(directory, to))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def edit_index(directory: Path, change: Callable[[Any], object]) -> Path:
    """Change ``index.json`` in place, and nothing else; ``change`` edits the document given."""
    document = read_json(directory / "index.json")
    change(document)
    write_json(directory / "index.json", document)
    return directory


def edit_graph(directory: Path, change: Callable[[Any], object], *, vouch: bool = True) -> Path:
    """Change the graph in place and, with ``vouch``, its size and hash in the index."""
    document = read_json(directory / GRAPH)
    change(document)
    write_json(directory / GRAPH, document)
    return vouch_for(directory, GRAPH) if vouch else directory


def vouch_for(directory: Path, name: str) -> Path:
    """Make the index state the size and hash that a file has now."""
    data = (directory / name).read_bytes()
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def change(index: Any) -> None:
        index["files"][name] = entry
        if name in index["segments"]:
            index["segments"][name] |= entry

    return edit_index(directory, change)


def flip_byte(path: Path, offset: int = -1) -> None:
    """Change one byte of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def file_bytes(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by relative name."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
