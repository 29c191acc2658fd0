"""Hold the program to what it answered when the record was made.

    python scripts/e0/verify.py                   E0-CI: the small corpora
    python scripts/e0/verify.py --gate full       E0-FULL: the real model
    python scripts/e0/verify.py dense --diff      one corpus, and what changed

Two legs are compared apart: the answers of this program about the container as it was written then,
and the bytes that this program writes from the same checkpoint.

Exit status 0: all rows match. 1: some differ. 2: there is no record, or it cannot be replayed.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.e0.corpus import CORPORA, Corpus
from scripts.e0.golden import (
    GOLDENS,
    ROOT,
    Golden,
    files_text,
    read_provenance,
    tree_hash,
)
from scripts.e0.replay import NotPossibleError, answers, checkpoint, program, write

LEGS = ("reader", "writer")


@dataclass(frozen=True)
class Verdict:
    """One row, replayed.

    Attributes
    ----------
    name : str
    recorded : str or None
        None: the record has no such row.
    found : str
    same : bool
    """

    name: str
    recorded: str | None
    found: str
    same: bool


def compare(name: str, how: str, recorded: str | None, found: str) -> Verdict:
    """Compare a row with its record, line by line or as a set of lines."""
    if recorded is None:
        return Verdict(name, None, found, same=False)
    if how == "set":
        same = set(recorded.splitlines()) == set(found.splitlines())
    else:
        same = recorded == found
    return Verdict(name, recorded, found, same)


def _recorded(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def replay(
    corpus: Corpus,
    golden: Golden,
    larql: tuple[str, ...],
    artifact: Path | None,
    legs: list[str],
    only: list[str],
) -> Iterator[Verdict]:
    """Yield the verdict of each row of the legs that are asked for; of ``only`` these rows, if any.

    Raises
    ------
    NotPossibleError
        If there is no record, its checkpoint is another, or the artifact is not to be had.
    """
    if not golden.provenance.is_file():
        raise NotPossibleError(
            f"{corpus.name}: there is no record in {golden.directory}; capture it"
        )
    provenance = read_provenance(golden.provenance)
    with tempfile.TemporaryDirectory(prefix="larql-e0-") as name:
        scratch = Path(name)
        kept = artifact or (golden.artifact if golden.artifact.is_dir() else None)
        wrote = None
        if "writer" in legs or kept is None:
            source = checkpoint(corpus, larql, scratch)
            if tree_hash(source) != provenance.source_sha256:
                raise NotPossibleError(
                    f"{corpus.name}: the checkpoint is not the one of the record, so nothing can "
                    f"be concluded; capture it anew"
                )
            fresh = scratch / "written"
            write(larql, source, provenance.extract, fresh)
            wrote = files_text(fresh)
        recorded = _recorded(golden.written)
        if "writer" in legs and wrote is not None:
            yield compare("written", "text", recorded, wrote)
        if "reader" not in legs:
            return
        if kept is None and wrote == recorded:
            kept = fresh
        if kept is None:
            raise NotPossibleError(
                f"{corpus.name}: this program writes another container than the recorded one, "
                f"which has to be named with --artifact for the reader to be held to it"
            )
        if files_text(kept) != recorded:
            raise NotPossibleError(f"{kept}: is not the recorded container of {corpus.name}")
        wanted = set()
        for row, found in answers(larql, provenance, kept, scratch, only):
            wanted.add(row.name)
            yield compare(row.name, row.compare, _recorded(golden.row(row.name)), found)
        for path in sorted(golden.directory.glob("rows/*.txt")):
            if path.stem not in wanted and (not only or path.stem in only):
                yield Verdict(path.stem, path.read_text(encoding="utf-8"), "no such row\n", False)


def _report(corpus: str, verdicts: list[Verdict], *, diff: bool) -> None:
    for verdict in verdicts:
        if verdict.same:
            continue
        state = "is not in the record" if verdict.recorded is None else "differs"
        print(f"{corpus}: {verdict.name} {state}")
        if diff:
            before = (verdict.recorded or "").splitlines(keepends=True)
            after = verdict.found.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(before, after, "recorded", "now"))
    bad = sum(not verdict.same for verdict in verdicts)
    print(f"{corpus}: {len(verdicts)} rows, {bad or 'none'} differ{'s' if bad == 1 else ''}")


def _head() -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help=", ".join(CORPORA))
    parser.add_argument("--gate", choices=("ci", "full"), help="all corpora of a gate")
    parser.add_argument("--diff", action="store_true", help="show what changed")
    parser.add_argument("--larql", metavar="CMD", help="the program to hold to the record")
    parser.add_argument("--leg", choices=LEGS, action="append", help="only this one")
    parser.add_argument("--row", action="append", default=[], help="only this one")
    parser.add_argument("--artifact", type=Path, help="the recorded container of one corpus")
    parser.add_argument("--goldens", type=Path, default=GOLDENS, help="a record elsewhere")
    options = parser.parse_args()
    unknown = sorted(set(options.corpora) - set(CORPORA))
    if unknown or (options.corpora and options.gate):
        parser.error(f"no corpus {unknown[0]}" if unknown else "name corpora or a gate, not both")
    gate = options.gate or "ci"
    names = options.corpora or [name for name, c in CORPORA.items() if c.gate == gate]
    title = f"E0-{gate.upper()}" if not options.corpora else "E0"
    bad = 0
    try:
        for name in names:
            golden = Golden(options.goldens / name)
            larql, legs = program(options.larql), options.leg or list(LEGS)
            verdicts = list(
                replay(CORPORA[name], golden, larql, options.artifact, legs, options.row)
            )
            _report(name, verdicts, diff=options.diff)
            bad += sum(not verdict.same for verdict in verdicts)
    except (NotPossibleError, ValueError) as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    print(f"{title}: {'green' if not bad else f'{bad} rows differ'} at commit {_head()}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
