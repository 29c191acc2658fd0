"""A source where a model is expected, and machines on which nothing can be kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import larql
from tests.builders.containers import read_json, write_json
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow(25)
TOKENS = ("--tokens", "1,2,3", "--backend", "reference")
Process = Callable[..., CompletedProcess[str]]


def containers(cache: Path) -> list[str]:
    return sorted(os.listdir(cache / "containers"))  # noqa: PTH208 - hidden ones too


@pytest.mark.parametrize("name", ["llama", "llama.gguf"])
def test_a_source_is_extracted_once(name: str, models: Path, fresh_cache: Path, cli: Run) -> None:
    first = cli("exec", models / name, *TOKENS, "--json").ok()
    (entry,) = (fresh_cache / "containers").glob("*.vindex3")
    assert first.err == f"larql: extracted {models / name} once into {entry}\n"
    stamp = (entry / "index.json").stat()
    second = cli("exec", models / name, *TOKENS, "--json").ok()
    assert second.err == ""
    assert (entry / "index.json").stat() == stamp
    direct = cli("exec", models / f"{name}.vindex3", *TOKENS, "--json").ok()
    for key in ("top", "nan_logits"):
        assert first.json[key] == second.json[key] == direct.json[key]
    found = [answer.json["provenance"]["container"] for answer in (first, second, direct)]
    assert found[0] == found[1] == found[2]
    for command in (["show"], ["verify"], ["tokenize", "the"], ["vindex3", "ops"]):
        at = (*command[:1], models / name, *command[1:])
        cli(*(at if command[0] != "vindex3" else (*command, models / name))).ok()
    assert list((fresh_cache / "containers").glob("*.vindex3")) == [entry]


def test_another_content_is_another_container(
    models: Path, fresh_cache: Path, tmp_path: Path, cli: Run
) -> None:
    """The cached container hangs on what the files hold, not on what they are called."""
    source = tmp_path / "m"
    shutil.copytree(models / "llama", source)
    cli("exec", source, *TOKENS).ok()
    config = read_json(source / "config.json")
    write_json(source / "config.json", {**config, "rms_norm_eps": 0.5})
    changed = cli("exec", source, *TOKENS).ok()
    assert "once into" in changed.err
    assert len(list((fresh_cache / "containers").glob("*.vindex3"))) == 2
    tokenizer = read_json(source / "tokenizer_config.json")
    write_json(source / "tokenizer_config.json", {**tokenizer, "add_bos_token": False})
    assert "once into" in cli("exec", source, *TOKENS).ok().err
    source.rename(tmp_path / "n")
    write_json(tmp_path / "n" / "config.json", config)
    assert "once into" in cli("exec", tmp_path / "n", *TOKENS).ok().err


@pytest.mark.parametrize("lost", ["segments/target.embedding.safetensors", "index.json"])
def test_a_cached_container_that_lost_a_file_is_made_again(
    lost: str, models: Path, fresh_cache: Path, cli: Run
) -> None:
    cli("exec", models / "llama", *TOKENS).ok()
    (entry,) = (fresh_cache / "containers").glob("*.vindex3")
    (entry / lost).unlink()
    assert "once into" in cli("exec", models / "llama", *TOKENS).ok().err
    cli("verify", entry).ok()


def test_four_at_once_extract_once(models: Path, fresh_cache: Path) -> None:
    """All answer the same, and nothing is left but the one container and its lock."""
    arguments = ["exec", str(models / "llama.gguf"), *TOKENS, "--json"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "larql", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * 4, answers
    assert len({json.dumps(json.loads(out)["top"]) for out, _ in answers}) == 1
    assert sum("once into" in err for _, err in answers) == 1
    kept = containers(fresh_cache)
    assert len(kept) == 2
    assert kept[0] == f".{kept[1]}.lock"


def test_a_killed_extraction_leaves_nothing_that_opens(
    models: Path, fresh_cache: Path, cli: Run
) -> None:
    script = (
        "import os, signal, sys\n"
        "from larql.format.source import extract\n"
        "extract.dump_json = lambda document: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from larql.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    arguments = ["exec", str(models / "llama"), *TOKENS]
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=False)
    assert done.returncode == -9
    assert not list((fresh_cache / "containers").glob("*.vindex3"))
    assert "once into" in cli(*arguments).ok().err


# Where nothing can be kept


def test_a_source_needs_a_place_for_its_container(
    models: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LARQL_CACHE_DIR", str(tmp_path / "file"))
    answer = cli("exec", models / "llama", *TOKENS)
    assert answer.status == 2
    assert answer.problem == (
        f"{tmp_path}/file/containers: cannot make the cache directory: Not a directory; set "
        f"LARQL_CACHE_DIR to a directory you may write to; or extract the model once with "
        f"`larql extract {models / 'llama'} -o OUT` and name OUT"
    )


def test_without_a_cache_kernels_are_compiled_and_one_warning_given(
    llama: Path, tmp_path: Path, cli: Run, larql_process: Process
) -> None:
    """A file in place of the directory: not even root can write there.

    Nor is anything written into the installation, which may be read-only.
    """
    (tmp_path / "file").write_text("")
    installed = set(Path(larql.__file__).parent.rglob("*"))
    dump = tmp_path / "a.npy"
    expected = cli("exec", llama, "--tokens", "1,2,3", "--logit-dump", dump, "--json").ok().json
    done = larql_process(
        "exec", llama, "--tokens", "1,2,3", "--logit-dump", dump, "--json",
        env={"LARQL_CACHE_DIR": str(tmp_path / "file")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sha256"] == expected["sha256"]
    assert done.stderr.startswith("larql: warning: compiled kernels cannot be kept in ")
    assert "set LARQL_CACHE_DIR" in done.stderr
    assert done.stderr.count("\n") == 1
    new = set(Path(larql.__file__).parent.rglob("*")) - installed
    assert {path.suffix for path in new if path.is_file()} <= {".pyc"}


NO_HOME = """
import os, pwd, sys

def nobody(key):
    raise KeyError(key)

for name in ("HOME", "XDG_CACHE_HOME", "LARQL_CACHE_DIR"):
    os.environ.pop(name, None)
pwd.getpwuid = pwd.getpwnam = nobody
from larql.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_a_home(llama: Path, models: Path, tmp_path: Path) -> None:
    """A user whom the system does not know: what needs no cache runs without one."""

    def run(*arguments: object) -> CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", NO_HOME, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    for arguments in (
        ("show", llama),
        ("verify", llama),
        ("exec", llama, *TOKENS),
        ("extract", models / "llama", "-o", tmp_path / "m"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
    done = run("exec", llama, "--tokens", "1")
    assert done.returncode == 0
    warned = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert "the user has no home directory" in warned[0]
    for arguments in (("exec", models / "llama", *TOKENS), ("cache", "ls")):
        done = run(*arguments)
        assert done.returncode == 2
        assert "the user has no home directory; set LARQL_CACHE_DIR" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_kernels_that_were_cut_short_are_compiled_again(
    llama: Path, tmp_path: Path, cli: Run, larql_process: Process
) -> None:
    dump = tmp_path / "a.npy"
    arguments = ("exec", llama, "--tokens", "1,2,3", "--logit-dump", dump, "--json")
    expected = cli(*arguments).ok().json["sha256"]
    used = Path(cli("doctor", "--json").json["kernels"]["kernel_cache"])
    copy = tmp_path / "cache" / "kernels" / used.name
    shutil.copytree(used, copy)
    damaged = sorted(path for path in copy.rglob("*norm*") if path.is_file())
    assert damaged
    for number, path in enumerate(damaged):
        with path.open("r+b") as file:
            file.truncate(0 if number % 2 else path.stat().st_size // 2)
    for attempt in range(2):
        done = larql_process(*arguments, env={"LARQL_CACHE_DIR": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["sha256"] == expected
        assert "Traceback" not in done.stderr
        assert attempt == 0 or done.stderr == ""
