"""Record what the program answers today, so that a later one can be held to it.

    python scripts/e0/capture.py dense experts     the small corpora
    python scripts/e0/capture.py smollm2           the real model, of which no artifact is kept

Replaces ``goldens/e0/<corpus>/``. The working tree must be clean, because a record names a commit.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.e0.corpus import CORPORA, Corpus
from scripts.e0.golden import GOLDENS, ROOT, Golden, Provenance, files_text, tree_hash
from scripts.e0.replay import NotPossibleError, answers, checkpoint, program, write


def commit() -> str:
    """Return the commit that is checked out.

    Raises
    ------
    NotPossibleError
        If what is checked out is not a commit as it was committed.
    """
    changed = _git("status", "--porcelain", "--", ".", ":!goldens")
    if changed:
        raise NotPossibleError(
            f"the working tree is not clean; commit first: {changed.splitlines()[0]}"
        )
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotPossibleError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def capture(corpus: Corpus, at: str, root: Path) -> int:
    """Record one corpus; return the number of rows."""
    golden = Golden(root / corpus.name)
    larql = program(None)
    with tempfile.TemporaryDirectory(prefix="larql-e0-") as name:
        scratch = Path(name)
        source = checkpoint(corpus, larql, scratch)
        artifact = scratch / "artifact"
        write(larql, source, corpus.extract, artifact)
        provenance = Provenance(
            corpus.name,
            corpus.generation,
            at,
            corpus.source,
            tree_hash(source),
            corpus.extract,
            hashlib.sha256((artifact / "index.json").read_bytes()).hexdigest(),
            corpus.tokens,
            corpus.top_k,
        )
        rows = list(answers(larql, provenance, artifact, scratch))
        shutil.rmtree(golden.directory, ignore_errors=True)
        golden.row("any").parent.mkdir(parents=True)
        golden.provenance.write_text(provenance.text(), encoding="utf-8")
        golden.written.write_text(files_text(artifact), encoding="utf-8")
        for row, text in rows:
            golden.row(row.name).write_text(text, encoding="utf-8")
        if corpus.gate == "ci":
            shutil.copytree(artifact, golden.artifact)
    return len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="+", choices=sorted(CORPORA), metavar="CORPUS")
    parser.add_argument("--goldens", type=Path, default=GOLDENS, help="write elsewhere")
    options = parser.parse_args()
    try:
        at = commit()
        for name in options.corpora:
            count = capture(CORPORA[name], at, options.goldens)
            print(f"{name}: {count} rows and the hashes of the artifact, at commit {at}")
    except NotPossibleError as error:
        print(f"capture: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
