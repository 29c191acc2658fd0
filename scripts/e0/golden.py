"""A corpus' record on disk: ``PROVENANCE.txt``, a file for each row, hashes of the artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "GOLDENS",
    "ROOT",
    "Golden",
    "Provenance",
    "files_text",
    "read_provenance",
    "tree_hash",
]

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "goldens" / "e0"
_FIELDS = (
    "corpus",
    "generation",
    "commit",
    "source",
    "source sha256",
    "extract",
    "fingerprint",
    "tokens",
    "top_k",
)


@dataclass(frozen=True)
class Provenance:
    """Where a record is from, and the parameters of its replay.

    Attributes
    ----------
    corpus, generation, source : str
        As in the corpus module.
    commit : str
        Of this repository, whose program was recorded.
    source_sha256 : str
        Of names and hashes of the checkpoint's files.
    extract : tuple of str
        Options of the extraction.
    fingerprint : str
        Of the artifact.
    tokens, top_k : int
    """

    corpus: str
    generation: str
    commit: str
    source: str
    source_sha256: str
    extract: tuple[str, ...]
    fingerprint: str
    tokens: int
    top_k: int

    def text(self) -> str:
        """Return it as the file says it."""
        values = (
            self.corpus,
            self.generation,
            self.commit,
            self.source,
            self.source_sha256,
            " ".join(self.extract) or "no options",
            self.fingerprint,
            self.tokens,
            self.top_k,
        )
        return "".join(f"{k}: {v}\n" for k, v in zip(_FIELDS, values, strict=True))


def read_provenance(path: Path) -> Provenance:
    """Read a ``PROVENANCE.txt``; nothing that it leaves out has a default.

    Raises
    ------
    ValueError
        Naming the field that is missing or unknown.
    """
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(": ")
        if name not in _FIELDS or name in found or not value:
            raise ValueError(f"{path}: line {line!r:.60} is none of {', '.join(_FIELDS)}, once")
        found[name] = value
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise ValueError(f"{path}: does not say {missing[0]}")
    extract = found["extract"]
    return Provenance(
        found["corpus"],
        found["generation"],
        found["commit"],
        found["source"],
        found["source sha256"],
        () if extract == "no options" else tuple(extract.split()),
        found["fingerprint"],
        int(found["tokens"]),
        int(found["top_k"]),
    )


@dataclass(frozen=True)
class Golden:
    """The directory of one corpus."""

    directory: Path

    @property
    def provenance(self) -> Path:
        return self.directory / "PROVENANCE.txt"

    @property
    def written(self) -> Path:
        """Hashes of the files that the writer wrote."""
        return self.directory / "artifact.sha256"

    @property
    def artifact(self) -> Path:
        """The container as it was written, where it is small enough to be kept here."""
        return self.directory / "artifact"

    def row(self, name: str) -> Path:
        return self.directory / "rows" / f"{name}.txt"


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def files_text(directory: Path) -> str:
    """Return the hashes of a directory's files as ``sha256sum`` prints them, in order of names."""
    return "".join(
        f"{_hash(path)}  {path.relative_to(directory).as_posix()}\n" for path in _files(directory)
    )


def tree_hash(path: Path) -> str:
    """Return one hash of a checkpoint: that of a file, or of names and hashes of a directory's."""
    if path.is_file():
        return _hash(path)
    return hashlib.sha256(files_text(path).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
