"""Running the program: a checkpoint, its container, and the answer of each row."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from scripts.e0.corpus import Corpus, Row, normalise, picked, rows_of
from scripts.e0.golden import ROOT, Provenance

__all__ = ["NotPossibleError", "answers", "checkpoint", "program", "write"]


class NotPossibleError(Exception):
    """Why a record cannot be made or replayed at all: one sentence."""


def program(command: str | None) -> tuple[str, ...]:
    """Return the program that is replayed: that of this checkout, unless another is named."""
    return (sys.executable, "-m", "larql") if command is None else tuple(shlex.split(command))


def _run(larql: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [*larql, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": places},
    )


def checkpoint(corpus: Corpus, larql: Sequence[str], scratch: Path) -> Path:
    """Return a corpus' checkpoint: built, or fetched by the program.

    Raises
    ------
    NotPossibleError
        If it cannot be fetched.
    """
    if corpus.build is not None:
        directory = scratch / "checkpoint"
        corpus.build(directory)
        return directory
    done = _run(larql, ("pull", corpus.source, "--json"))
    if done.returncode:
        raise NotPossibleError(
            f"{corpus.name}: {corpus.source} cannot be fetched: {done.stderr.strip()}"
        )
    path = Path(json.loads(done.stdout)["path"])
    return path if path.is_file() else next(iter(sorted(path.rglob("*.gguf"))), path)


def write(larql: Sequence[str], source: Path, options: Sequence[str], target: Path) -> None:
    """Extract a checkpoint.

    Raises
    ------
    NotPossibleError
        If the program refuses.
    """
    done = _run(larql, ("extract", str(source), "-o", str(target), *options))
    if done.returncode:
        raise NotPossibleError(f"{source}: cannot be extracted: {done.stderr.strip()}")


def answers(
    larql: Sequence[str],
    provenance: Provenance,
    artifact: Path,
    scratch: Path,
    only: Collection[str] = (),
) -> Iterator[tuple[Row, str]]:
    """Yield each row with the program's answer: exit status, standard output and error.

    ``only`` names the rows that are asked for; empty: all.
    """
    words = {
        "artifact": str(artifact),
        "scratch": str(scratch),
        "tokens": provenance.tokens,
        "top_k": provenance.top_k,
    }
    roots = {str(artifact): "<artifact>", str(scratch): "<scratch>", str(ROOT): "<checkout>"}
    for row in rows_of(provenance.generation):
        if only and row.name not in only:
            continue
        done = _run(larql, [part.format(**words) for part in row.arguments])
        out = done.stdout
        if row.keep:
            out = picked(out, row.keep)
        text = f"exit {done.returncode}\n--- stdout\n{out}--- stderr\n{done.stderr}"
        yield row, normalise(text, roots)
