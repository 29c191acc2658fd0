"""``hf://``: what is taken from a repository, and what is said when it cannot be had."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from larql.errors import FetchError, UsageError
from larql.format.source import hub as hub_module
from larql.format.source.hub_name import HubName, parse_hub_name
from larql.format.source.locate import locate
from tests.builders.containers import file_bytes, make_container
from tests.builders.hub_server import HubServer
from tests.builders.models import LlamaSpec, write_llama_safetensors
from tests.source.conftest import Recorder

WEIGHTS = b"weights " * 5000
SAFETENSORS_REPO = {
    ".gitattributes": b"*.bin",
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "LICENSE": b"free",
    "README.md": b"# m",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "model-q4.gguf": b"GGUF",
    "train.py": b"",
    "onnx/model.safetensors": b"other",
}
WANTED = ["LICENSE", "README.md", "config.json", "model.safetensors", "tokenizer.json"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def shards(count: int, of: int | None = None) -> dict[str, bytes]:
    return {
        f"model-{number:05}-of-{of or count:05}.safetensors": b"shard %d" % number
        for number in range(1, count + 1)
    }


def index(files: object) -> bytes:
    return json.dumps({"metadata": {}, "weight_map": files}).encode()


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# What is taken


def test_safetensors_and_what_belongs_beside_them_are_taken(hub: HubServer) -> None:
    commit = hub.repo("org/model").commit(SAFETENSORS_REPO)
    located = locate("hf://org/model")
    assert located.origin == "hf://org/model"
    assert located.kind == "checkpoint"
    assert located.revision == commit
    assert located.notes == ()
    assert located.sums == {"model.safetensors": sha256(WEIGHTS)}
    assert list(located.files) == WANTED
    assert sorted(p.name for p in located.path.iterdir()) == WANTED
    assert (located.path / "model.safetensors").read_bytes() == WEIGHTS
    for unwanted in ("pytorch_model.bin", "model-q4.gguf", "train.py", "onnx"):
        assert not hub.asked(f"/resolve/{commit}/{unwanted}")


def test_a_model_that_is_here_is_not_fetched_again(hub: HubServer) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    first = locate("hf://org/model")
    hub.requests.clear()
    again = locate("hf://org/model", refresh=True)
    assert again == first
    assert not hub.asked("/cdn/")
    assert not hub.asked("/resolve/", "GET")


def test_the_revision_is_followed(hub: HubServer) -> None:
    repo = hub.repo("org/model")
    old = repo.commit({"config.json": b"1", "model.safetensors": b"old"})
    new = repo.commit({"config.json": b"2", "model.safetensors": b"new"})
    repo.refs |= {"v1": old, "refs/pr/3": old}
    for name, commit in {
        "hf://org/model": new,
        "hf://org/model@main": new,
        "hf://org/model@v1": old,
        "hf://org/model@refs/pr/3": old,
        f"hf://org/model@{old}": old,
        f"hf://models/org/model@{old}": old,
    }.items():
        located = locate(name)
        assert located.revision == commit
        expected = b"old" if commit == old else b"new"
        assert (located.path / "model.safetensors").read_bytes() == expected


def test_the_index_says_which_shards_make_the_model(hub: HubServer) -> None:
    files = shards(2)
    listing = index(dict(zip("ab", files, strict=True)))
    extra = {"consolidated.safetensors": b"twice", "model.safetensors.index.json": listing}
    hub.repo("org/model").commit({"config.json": b"{}", **files, **extra})
    located = locate("hf://org/model")
    assert located.sums == {name: sha256(content) for name, content in files.items()}
    assert not (located.path / "consolidated.safetensors").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["gone.safetensors"], "names 'gone.safetensors', which is not there"),
        (["../x.safetensors"], "leaves its directory"),
        (["pytorch_model.bin"], "names 'pytorch_model.bin', which is not there"),
        ([], "has no weight_map"),
    ],
)
def test_an_index_that_names_what_is_not_there(
    hub: HubServer, files: list[str], message: str
) -> None:
    listing = index({str(n): file for n, file in enumerate(files)})
    hub.repo("org/model").commit(
        {"model.safetensors.index.json": listing, "pytorch_model.bin": b"", **shards(1)}
    )
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    assert message in one_line(error)


def test_numbered_shards_need_no_index_but_all_of_them(hub: HubServer) -> None:
    hub.repo("org/whole").commit({"config.json": b"{}", **shards(2)})
    assert set(locate("hf://org/whole").sums) == set(shards(2))
    hub.repo("org/less").commit({"config.json": b"{}", **shards(2, of=3)})
    with pytest.raises(FetchError, match="2 of 3 safetensors files, number 3 is missing"):
        locate("hf://org/less")
    hub.repo("org/mixed").commit({"a.safetensors": b"", "b.safetensors": b""})
    with pytest.raises(FetchError, match="cannot tell which make the model"):
        locate("hf://org/mixed")
    assert not hub.asked("/cdn/", "HEAD")


def test_one_file_takes_precedence_over_adapters_and_other_layouts(hub: HubServer) -> None:
    others = {"adapter_model.safetensors": b"", "consolidated.safetensors": b"", **shards(2)}
    hub.repo("org/model").commit({"config.json": b"{}", "model.safetensors": WEIGHTS, **others})
    assert locate("hf://org/model").files == ("config.json", "model.safetensors")


def test_the_only_gguf_model_is_taken_with_its_terms(hub: HubServer) -> None:
    content = {
        "m.Q4_K_M.gguf": WEIGHTS,
        "mmproj-m-f16.gguf": b"projector",
        "LICENSE.txt": b"free",
        "tokenizer.json": b"{}",
    }
    hub.repo("org/model").commit(content)
    located = locate("hf://org/model")
    assert located.path.name == "m.Q4_K_M.gguf"
    assert located.kind == "checkpoint"
    assert located.files == ("LICENSE.txt", "m.Q4_K_M.gguf")
    assert located.sums == {"m.Q4_K_M.gguf": sha256(WEIGHTS)}


def test_of_several_gguf_models_the_user_names_one(hub: HubServer) -> None:
    commit = hub.repo("org/model").commit(
        {"m.Q4.gguf": b"four", "sub/m.Q8.gguf": b"eight", "sub/mmproj.gguf": b"eyes"}
    )
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    text = one_line(error)
    assert "holds 2 GGUF models" in text
    for name in ("hf://org/model/m.Q4.gguf", "hf://org/model/sub/m.Q8.gguf"):
        assert name in text
        located = locate(name)
        assert located.path.read_bytes() in (b"four", b"eight")
        assert located.path.name == name.rpartition("/")[2]
        assert set(located.sums) == {located.path.name}
        assert locate(f"{name}@{commit}").path == located.path
    assert locate("hf://org/model@main/sub/m.Q8.gguf").path.read_bytes() == b"eight"
    with pytest.raises(FetchError, match=r"holds no file 'm.Q5.gguf'; name one: hf://org"):
        locate("hf://org/model/m.Q5.gguf")
    with pytest.raises(FetchError, match="vision projector"):
        locate("hf://org/model/sub/mmproj.gguf")


def test_a_gguf_model_in_parts_counts_as_one(hub: HubServer) -> None:
    parts = {f"q8/m-{n:05}-of-00003.gguf": b"part %d" % n for n in (1, 2, 3)}
    hub.repo("org/model").commit(parts)
    for name in ("hf://org/model", "hf://org/model/q8/m-00002-of-00003.gguf"):
        located = locate(name)
        assert located.path.name == "m-00001-of-00003.gguf"
        assert [p.read_bytes() for p in sorted(located.path.parent.iterdir())] == [*parts.values()]
    del parts["q8/m-00002-of-00003.gguf"]
    hub.repo("org/model").commit(parts)
    with pytest.raises(FetchError, match="2 of 3 GGUF files, number 2 is missing"):
        locate("hf://org/model")


def test_a_directory_in_which_somebody_else_fetched_a_gguf(hub: HubServer) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    assert locate("hf://org/model/model-q4.gguf").path.name == "model-q4.gguf"
    assert locate("hf://org/model").path.name == "model.safetensors"


def test_a_container_is_taken_whole(hub: HubServer, tmp_path: Path) -> None:
    made = make_container(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "c").path
    files = file_bytes(made)
    hub.repo("org/model").commit({**files, ".gitattributes": b"", "README.md": b"#", "x.py": b""})
    located = locate("hf://org/model")
    assert located.kind == "container"
    assert located.sums == {n: sha256(data) for n, data in files.items() if n != "index.json"}
    assert set(located.files) == {*files, "README.md"}
    assert {n: data for n, data in file_bytes(located.path).items() if n in files} == files


def test_nothing_that_is_a_model(hub: HubServer) -> None:
    hub.repo("org/model").commit({"pytorch_model.bin": b"x", "a/model.safetensors": b""})
    hub.repo("org/empty").commit({})
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    assert "no .safetensors and no .gguf" in one_line(error)
    assert "pytorch_model.bin" in one_line(error)
    with pytest.raises(FetchError, match="only nothing"):
        locate("hf://org/empty")


def test_a_listing_that_leaves_its_directory(hub: HubServer) -> None:
    hub.repo("org/model").commit({"model.safetensors": b"", "../../LICENSE": b"evil"})
    with pytest.raises(FetchError, match="leaves its directory"):
        locate("hf://org/model")


# What goes wrong


def test_unknown_private_and_gated(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("private", "gated"):
        hub.repo(f"org/{name}").commit(SAFETENSORS_REPO)
    hub.repo("org/private").private = True
    hub.repo("org/gated").gated = True
    for name in ("unknown", "private"):
        with pytest.raises(FetchError) as error:
            locate(f"hf://org/{name}")
        assert f"hf://org/{name}: no such model on {hub.url}, or it is private" in one_line(error)
    with pytest.raises(FetchError) as error:
        locate("hf://org/gated")
    assert f"accept its terms at {hub.url}/org/gated" in one_line(error)
    assert "HF_TOKEN" in one_line(error)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(FetchError, match=r"refuses access \(401\); check HF_TOKEN"):
        locate("hf://org/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    hub.tokens.add("hf_right")
    for name in ("private", "gated"):
        assert locate(f"hf://org/{name}").kind == "checkpoint"


def test_the_token_stays_with_the_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.tokens.add("hf_secret")
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    locate("hf://org/model")
    large = hub.asked("/cdn/")
    assert large
    for request in large:
        assert request.host.startswith("localhost")
        assert "hf_secret" not in str(request.headers)
    assert all("hf_secret" in str(r.headers) for r in hub.asked("/resolve/"))


def test_unknown_revision(hub: HubServer) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    for revision in ("v9", "0" * 40):
        with pytest.raises(FetchError) as error:
            locate(f"hf://org/model@{revision}")
        assert one_line(error) == (
            f"hf://org/model: has no revision '{revision}'; check the branch, tag or commit"
        )


def closed_port() -> str:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{used.getsockname()[1]}"


@pytest.mark.parametrize("how", ["offline", "refused", "broken"])
def test_without_an_answer_the_cache_serves_and_says_so(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    content = {**SAFETENSORS_REPO, "m.Q8.gguf": b"eight"}
    commit = hub.repo("org/model").commit(content)
    first = locate("hf://org/model")
    if how == "offline":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        reason = "HF_HUB_OFFLINE is set"
    elif how == "refused":
        monkeypatch.setenv("HF_ENDPOINT", closed_port())
        reason = "cannot reach http://127.0.0.1"
    else:
        hub.status = 500
        reason = f"{hub.url} answers 500"
    before = len(hub.requests)
    start = time.monotonic()
    located = locate("hf://org/model")
    assert time.monotonic() - start < 3
    assert (located.path, located.revision, located.sums) == (first.path, commit, first.sums)
    (note,) = located.notes
    assert reason in note
    assert f"using the cached commit {commit}" in note
    assert locate(f"hf://org/model@{commit}").path == first.path
    for name, refresh in {
        "hf://org/model": True,
        "hf://org/other": False,
        "hf://org/model@v2": False,
        "hf://org/model/m.Q8.gguf": False,
    }.items():
        with pytest.raises(FetchError) as error:
            locate(name, refresh=refresh)
        text = one_line(error)
        assert (reason in text) or "holds no file" in text
        if name in ("hf://org/other", "hf://org/model@v2"):
            assert "not in the hub's cache" in text
    if how == "offline":
        assert len(hub.requests) == before


def test_offline_as_the_hub_library_was_told(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    locate("hf://org/model")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "yes")
            assert "HF_HUB_OFFLINE is set" in locate("hf://org/model").notes[0]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in locate("hf://org/model").notes[0]


def test_offline_only_a_complete_model_serves(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = shards(2)
    listing = index(dict(zip("ab", files, strict=True)))
    hub.repo("org/model").commit({"model.safetensors.index.json": listing, **files})
    located = locate("hf://org/model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (located.path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FetchError, match=r"names 'model-00002-of-00002.safetensors', which"):
        locate("hf://org/model")
    (located.path / "model.safetensors.index.json").unlink()
    with pytest.raises(FetchError, match="1 of 2 safetensors files, number 2 is missing"):
        locate("hf://org/model")


def test_what_answers_is_no_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.url}/elsewhere")
    with pytest.raises(FetchError, match="is it a hub"):
        locate("hf://org/model")
    hub.status = 418
    with pytest.raises(FetchError, match="answers 418"):
        locate("hf://org/model")


@pytest.mark.parametrize("ignore_ranges", [False, True])
def test_a_broken_connection_is_resumed(
    hub: HubServer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, ignore_ranges: bool
) -> None:
    # What has come of the block that was cut is fetched again; the library's blocks are 10 MB.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 14)
    content = os.urandom(300_000)
    hub.repo("org/model").commit({"m.gguf": content})
    hub.cuts["m.gguf"] = [100_000]
    hub.ignore_ranges = ignore_ranges
    located = locate("hf://org/model", progress=recorder)
    assert located.path.read_bytes() == content
    ranges = [r.headers.get("Range") for r in hub.asked("/cdn/", "GET")]
    assert len(ranges) == 2
    assert ranges[0] is None
    assert ranges[1] is not None
    assert 0 < int(ranges[1].removeprefix("bytes=").rstrip("-")) <= 100_000
    assert recorder.stages[0] == ("Fetching org/model", len(content))
    assert recorder.done[0] == len(content)
    assert recorder.open == 0


def test_what_was_fetched_before_a_failure_is_kept(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    files = {"config.json": b"{}", **shards(2)}
    hub.repo("org/model").commit(files)
    hub.cuts["model-00002-of-00002.safetensors"] = [0] * 20
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    assert "hf://org/model: cannot reach" in one_line(error)
    assert not caplog.records
    hub.cuts.clear()
    hub.requests.clear()
    located = locate("hf://org/model")
    assert len(hub.asked("/cdn/", "GET")) == 1
    assert (located.path / "model-00002-of-00002.safetensors").read_bytes() == b"shard 2"


def test_bytes_that_are_not_what_the_hub_says(hub: HubServer) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    hub.claimed["model.safetensors"] = "a" * 64
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    text = one_line(error)
    assert f"sha256 is {sha256(WEIGHTS)}, the hub says {'a' * 64} for model.safetensors" in text
    Path(text.partition(":")[0]).unlink()
    hub.claimed.clear()
    assert locate("hf://org/model").sums == {"model.safetensors": sha256(WEIGHTS)}


def test_bytes_in_the_cache_that_were_altered(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repo("org/model").commit(SAFETENSORS_REPO)
    located = locate("hf://org/model")
    (located.path / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"!")
    for offline in ("0", "1"):
        monkeypatch.setenv("HF_HUB_OFFLINE", offline)
        with pytest.raises(FetchError, match="delete this file and run the command again"):
            locate("hf://org/model")


def test_a_repository_that_changes_while_it_is_fetched(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = hub.repo("org/model").commit({"model.safetensors": b"old"})
    listed = hub_module.list_files(HubName("org/model", None, None))
    assert listed[0] == old
    hub.repo("org/model").commit({"model.safetensors": b"new"})
    monkeypatch.setattr(hub_module, "list_files", lambda name: listed)
    with pytest.raises(FetchError, match="has just been changed"):
        locate("hf://org/model")


def test_a_disk_without_room(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repo("org/model").commit({"m.gguf": WEIGHTS})
    usage = shutil.disk_usage("/")._replace(free=len(WEIGHTS) - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FetchError) as error:
        locate("hf://org/model")
    assert f"needs {len(WEIGHTS)} bytes, {len(WEIGHTS) - 1} are free" in one_line(error)
    assert not hub.asked("/cdn/", "GET")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=len(WEIGHTS)))
    located = locate("hf://org/model")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    assert locate("hf://org/model") == located


def test_the_hub_library_is_left_as_it_was(hub: HubServer) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled, logging

    logging.set_verbosity_warning()
    before = (logging.get_verbosity(), are_progress_bars_disabled())
    assert not before[1]
    with pytest.raises(FetchError):
        locate("hf://org/unknown")
    assert (logging.get_verbosity(), are_progress_bars_disabled()) == before


# Names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://o/n", HubName("o/n", None, None)),
        ("hf://o/n@v1.0", HubName("o/n", None, "v1.0")),
        ("hf://o/n@feature/x", HubName("o/n", None, "feature/x")),
        ("hf://o/n/a.gguf", HubName("o/n", "a.gguf", None)),
        ("hf://o/n/b/a.GGUF@main", HubName("o/n", "b/a.GGUF", "main")),
        ("hf://o/n@main/b/a.gguf", HubName("o/n", "b/a.gguf", "main")),
        ("hf://o/n@refs/pr/1/a.gguf", HubName("o/n", "a.gguf", "refs/pr/1")),
        ("hf://models/o/n", HubName("o/n", None, None)),
        ("hf://O_1/n-2.0", HubName("O_1/n-2.0", None, None)),
    ],
)
def test_names(text: str, expected: HubName) -> None:
    assert parse_hub_name(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf://name",
        "hf://owner/",
        "hf:///name",
        "hf://owner/name/",
        "hf://owner/name@",
        "hf://owner/name@../../x",
        "hf://owner/name@a/",
        "hf://owner/name@a/../../x",
        "hf://owner/name@a b",
        "hf://owner/name@-x",
        "hf://owner/name/../x.gguf",
        "hf://owner/name//x.gguf",
        "hf://owner/name/x.safetensors",
        "hf://datasets/owner/name",
        "hf://../name",
        "hf://owner/..",
        "hf://owner/na me",
        "hf://-owner/name",
    ],
)
def test_names_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected hf://owner|leaves its directory|is absolute"):
        parse_hub_name(text)


def test_a_name_that_only_the_hub_refuses(hub: HubServer) -> None:
    with pytest.raises(FetchError, match="is not a name the hub allows"):
        locate("hf://owner/a--b")


# In a process of its own: what the environment means, and interruption


def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf-home"),
        "LARQL_CACHE_DIR": str(tmp_path / "larql-cache"),
    }


def test_the_command_line(
    hub: HubServer,
    tmp_path: Path,
    larql_process: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    commit = hub.repo("org/model").commit(SAFETENSORS_REPO)
    env = environment(hub, tmp_path)
    done = larql_process("pull", "hf://org/model", env=env)
    home = tmp_path / "hf-home/hub/models--org--model/snapshots"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{home / commit}\n", "")
    offline = larql_process("pull", "--json", "hf://org/model", env={**env, "HF_HUB_OFFLINE": "1"})
    document = json.loads(offline.stdout)
    assert document["revision"] == commit
    assert document["kind"] == "checkpoint"
    assert [file["name"] for file in document["files"]] == WANTED
    for file in document["files"]:
        content = SAFETENSORS_REPO[file["name"]]
        assert (file["size"], file["sha256"]) == (len(content), sha256(content))
    assert "HF_HUB_OFFLINE is set; using the cached commit" in offline.stderr
    lost = larql_process("pull", "hf://org/other", env=env)
    assert (lost.returncode, lost.stdout) == (2, "")
    assert len(lost.stderr.splitlines()) == 1


def test_no_room_for_a_file(hub: HubServer, tmp_path: Path, larql_cache: Path) -> None:
    hub.repo("org/model").commit({"m.gguf": os.urandom(3_000_000)})
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000));"
        "from larql.cli.main import main; sys.exit(main(['pull', 'hf://org/model']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment(hub, tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "File too large; free some space or set HF_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "hf-home").rglob("*.gguf"))


def test_an_interruption_takes_effect_at_once(hub: HubServer, tmp_path: Path) -> None:
    hub.repo("org/model").commit({f"m-{n:05}-of-00002.gguf": os.urandom(5 << 20) for n in (1, 2)})
    hub.seconds_per_block = 0.25
    process = subprocess.Popen(
        [sys.executable, "-m", "larql", "pull", "hf://org/model"],
        env={**os.environ, **environment(hub, tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not hub.asked("/cdn/", "GET") and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - sent < 3
    assert (process.returncode, out) == (130, "")
    assert err == "larql: error: interrupted\n"
    assert not list((tmp_path / "hf-home").rglob("*.gguf"))
