"""The preservation record: what its normaliser removes, what a replay sees, its verdicts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.e0.corpus import CORPORA, PRESETS, PROMPTS, normalise, picked, rows_of
from scripts.e0.golden import GOLDENS, Golden, files_text, read_provenance, tree_hash
from scripts.e0.verify import compare

ROOT = Path(__file__).parents[2]
SMALL = [name for name, corpus in CORPORA.items() if corpus.gate == "ci"]

STUB = """
import contextlib, io, sys
from larql.cli.main import main

written = io.StringIO()
with contextlib.redirect_stdout(written):
    status = main(sys.argv[1:])
out = written.getvalue()
if sys.argv[1] == "exec":
    out = out.replace('"generated": [', '"generated": [ 7,')
sys.stdout.write(out)
sys.exit(status)
"""


def verify(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/e0/verify.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# --- the normaliser -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("took 0.329 s, then 12 ms", "took <time>, then <time>"),
        ("seconds  prepare 3.5e-05 s", "seconds  prepare <time>"),
        ("at 24.1 MB/s, 133 tok/s", "at <rate>, <rate>"),
        ("on 2026-11-30T16:42:30Z.", "on <when>."),
        ("wrote /tmp/abc/artifact/index.json", "wrote <artifact>/index.json"),
        ("in /tmp/abc/x.npy", "in <scratch>/x.npy"),
    ],
)
def test_what_differs_between_runs_is_removed(text: str, left: str) -> None:
    roots = {"/tmp/abc": "<scratch>", "/tmp/abc/artifact": "<artifact>"}
    assert normalise(text, roots) == left


@pytest.mark.parametrize(
    "text",
    [
        "size 98.4 MB, 125966 of 98,428,396 bytes",
        "3 of 7 silu 8, window 6, 0:1, rope θ 10000",
        "fingerprint d87fdef4e4bb4b8f476d89699660be4d51fdf2b455cfb590a17a359d76f6cd30",
        "10 files have the recorded sizes, 21 operands, 8.500 bits per weight",
        '{"logit": 17.371265411376953, "nbytes": 113152}',
    ],
)
def test_sizes_and_everything_else_stay(text: str) -> None:
    assert normalise(text, {}) == text


def test_of_a_json_answer_the_fields_of_the_row_are_kept() -> None:
    answer = '{"a": 1, "seconds": 0.3, "b": {"c": [1, 2], "d": 4}}'
    assert picked(answer, ("b.c", "a")) == '{\n "b.c": [\n  1,\n  2\n ],\n "a": 1\n}\n'
    assert "is not there" in picked(answer, ("b.c.e",))
    assert '"message": "no"' in picked('{"error": {"message": "no"}}', ("a",))
    assert picked("no JSON at all", ("a",)) == "no JSON at all"


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", ["VINDEX2", "VINDEX3"])
def test_the_rows_are_those_of_the_record(generation: str) -> None:
    rows = {row.name: row for row in rows_of(generation)}
    expected = {"verify", "show", "index_version"}
    expected |= {f"{kind}_p{n}" for kind in ("walk", "decode") for n in range(len(PROMPTS))}
    expected |= {f"slice_{preset}" for preset in PRESETS}
    assert set(rows) == expected
    assert [name for name, row in rows.items() if row.compare == "set"] == ["verify"]
    assert PROMPTS == ("The capital of France is", "def fibonacci(n):", "Water boils at")


def test_only_rows_of_defects_compare_as_sets() -> None:
    assert compare("verify", "set", "a\nb\n", "b\na\n").same
    assert not compare("verify", "set", "a\nb\n", "a\n").same
    assert not compare("walk_p0", "text", "a\nb\n", "b\na\n").same
    assert not compare("new", "text", None, "a\n").same


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_every_corpus_is_recorded_whole(name: str) -> None:
    golden, corpus = Golden(GOLDENS / name), CORPORA[name]
    found = read_provenance(golden.provenance)
    assert (found.corpus, found.source) == (name, corpus.source)
    rows = {path.stem for path in golden.directory.glob("rows/*.txt")}
    assert rows == {row.name for row in rows_of(found.generation)}
    written = golden.written.read_text(encoding="utf-8")
    assert f"{found.fingerprint}  index.json\n" in written
    if corpus.gate == "ci":
        assert files_text(golden.artifact) == written


@pytest.mark.parametrize("name", SMALL)
def test_checkpoints_are_built_the_same_everywhere(name: str, tmp_path: Path) -> None:
    build = CORPORA[name].build
    assert build is not None
    build(tmp_path / "m")
    assert (
        tree_hash(tmp_path / "m")
        == read_provenance(Golden(GOLDENS / name).provenance).source_sha256
    )


def test_provenance_has_no_defaults(tmp_path: Path) -> None:
    whole = Golden(GOLDENS / "dense").provenance.read_text(encoding="utf-8")
    file = tmp_path / "PROVENANCE.txt"
    for line in whole.splitlines(keepends=True):
        file.write_text(whole.replace(line, ""), encoding="utf-8")
        with pytest.raises(ValueError, match=f"does not say {line.partition(':')[0]}"):
            read_provenance(file)
    file.write_text(whole + "host: here\n", encoding="utf-8")
    with pytest.raises(ValueError, match="host: here"):
        read_provenance(file)


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("corpus", ["dense", "vindex2-experts"])
def test_a_program_whose_decoding_changed_fails_its_three_rows_and_no_other(
    corpus: str, tmp_path: Path
) -> None:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    done = verify(corpus, "--larql", f"{sys.executable} {stub}", "--diff", "--leg", "reader")
    assert done.returncode == 1, done.stderr
    wrong = [line for line in done.stdout.splitlines() if line.endswith(" differs")]
    assert wrong == [f"{corpus}: decode_p{n} differs" for n in range(3)]
    assert "+  7," in done.stdout, "the change is shown"
    assert "3 rows differ at commit" in done.stdout


def test_an_exit_status_is_part_of_a_row(tmp_path: Path) -> None:
    """The preset router is refused on a dense model; a program that starts to succeed must show."""
    copy = Path(shutil.copytree(GOLDENS / "dense", tmp_path / "dense"))
    row = copy / "rows" / "slice_router.txt"
    text = row.read_text(encoding="utf-8")
    assert text.startswith("exit 2\n")
    row.write_text(text.replace("exit 2", "exit 0"), encoding="utf-8")
    (copy / "rows" / "gone.txt").write_text("exit 0\n", encoding="utf-8")
    (copy / "rows" / "show.txt").unlink()
    rows = ("--row", "show", "--row", "slice_router", "--row", "gone")
    done = verify("dense", "--goldens", tmp_path, "--leg", "reader", *rows)
    assert done.returncode == 1
    wrong = [line for line in done.stdout.splitlines() if line.startswith("dense: ")][:-1]
    assert wrong == [
        "dense: show is not in the record",
        "dense: slice_router differs",
        "dense: gone differs",
    ]


def test_without_a_record_there_is_no_verdict(tmp_path: Path) -> None:
    done = verify("dense", "--goldens", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no record" in done.stderr


def test_another_checkpoint_or_artifact_gives_no_verdict(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(GOLDENS / "dense", tmp_path / "dense"))
    (copy / "artifact" / "tokenizer.json").write_text("{}")
    done = verify("dense", "--goldens", tmp_path, "--leg", "reader")
    assert done.returncode == 2
    assert "is not the recorded container" in done.stderr
    text = (copy / "PROVENANCE.txt").read_text()
    (copy / "PROVENANCE.txt").write_text(text.replace("sha256: b", "sha256: c"))
    done = verify("dense", "--goldens", tmp_path, "--leg", "writer")
    assert done.returncode == 2
    assert "the checkpoint is not the one of the record" in done.stderr
