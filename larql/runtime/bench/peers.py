"""The arms there are: how each is started, and the file that peers load."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from larql.errors import UsageError
from larql.format.container import Container
from larql.format.digest import sha256_of
from larql.format.progress import Progress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.locate import locate
from larql.runtime.bench.arm import ArmSpec
from larql.runtime.run import RunOptions

__all__ = [
    "PEERS",
    "PYTHON",
    "PeerSource",
    "check_peers",
    "larql_arm",
    "peer_arm",
    "peer_source",
    "reader_arm",
]

PYTHON = "LARQL_BENCH_PYTHON"
_ARMS = "larql.runtime.bench.arms"
_CHILD = Path(__file__).parent / "arms" / "child.py"


@dataclass(frozen=True)
class _Peer:
    """An engine's module, the options that make it this arm, and whether it reads GGUF alone."""

    module: str
    options: Mapping[str, object]
    gguf_only: bool


PEERS: Mapping[str, _Peer] = {
    "llama.cpp": _Peer("engine_llama_cpp", {"flash": False}, True),
    "llama.cpp-flash": _Peer("engine_llama_cpp", {"flash": True}, True),
    "transformers": _Peer("engine_transformers", {"dtype": "float32"}, False),
    "transformers-bf16": _Peer("engine_transformers", {"dtype": "bfloat16"}, False),
}


@dataclass(frozen=True)
class PeerSource:
    """What peers load: a GGUF file, or a directory with safetensors files."""

    path: Path
    is_gguf: bool


def check_peers(names: Iterable[str]) -> None:
    """Refuse names of engines that there are not.

    Raises
    ------
    UsageError
        Naming the first.
    """
    for name in names:
        if name not in PEERS:
            raise UsageError(f"--against {name}: expected one of {', '.join(PEERS)}")


def peer_source(container: Container, name: str, progress: Progress) -> PeerSource:
    """Find the checkpoint that peers load, and see that it is the one the container came from.

    Parameters
    ----------
    container : Container
    name : str
        A way of naming a checkpoint.
    progress : Progress

    Raises
    ------
    UsageError
        If the name is that of a container, or its weights are not the container's source.
    """
    located = locate(name, progress=progress)
    if located.kind == "container":
        raise UsageError(
            f"{name} is a container, which peers cannot load; give the checkpoint it was made "
            f"from with --source"
        )
    with open_checkpoint(located.path) as checkpoint:
        files, is_gguf = checkpoint.weight_files, checkpoint.format == "gguf"
        root = checkpoint.root
    found = [sha256_of(path, progress) for path in files]
    stated = container.index.source.get("weights")
    expected = (
        [entry.get("sha256") for entry in stated if isinstance(entry, dict)]
        if isinstance(stated, list)
        else []
    )
    if found != expected:
        raise UsageError(
            f"--source {name}: its weights have sha256 {', '.join(found)}, but {container.path} "
            f"was made from {', '.join(map(str, expected)) or 'weights that it does not name'}; "
            f"give the same weights to every arm"
        )
    return PeerSource(files[0] if is_gguf else root, is_gguf)


def larql_arm(container: Container, run: RunOptions, room: int) -> ArmSpec:
    """Return larql's arm: a container and how it is run, with room for some positions."""
    options = {
        "container": str(container.path.absolute()),
        "threads": run.threads,
        "room": room,
        "activations": run.activations,
        "kv": run.kv,
        "prefault": run.prefault,
        "profile": run.profile,
    }
    kv = "" if run.kv == "f32" else f", kv {run.kv}"
    profile = "" if run.profile is None else f", profile {run.profile}"
    return ArmSpec(
        f"larql {run.activations}{kv}{profile}",
        (sys.executable, "-m", f"{_ARMS}.child", f"{_ARMS}.engine_larql", json.dumps(options)),
    )


def reader_arm(threads: int, nbytes: int) -> ArmSpec:
    """Return the arm that reads memory through a buffer of some bytes."""
    options = json.dumps({"threads": threads, "bytes": nbytes})
    return ArmSpec("bandwidth", (sys.executable, "-m", f"{_ARMS}.bandwidth", options))


def peer_arm(name: str, source: PeerSource, threads: int, room: int) -> ArmSpec:
    """Return a peer's arm, run by the interpreter that ``LARQL_BENCH_PYTHON`` names, if any.

    Raises
    ------
    UsageError
        If there is no such peer, or it cannot read the source.
    """
    check_peers((name,))
    peer = PEERS[name]
    if peer.gguf_only and not source.is_gguf:
        raise UsageError(
            f"--against {name}: {source.path} is not a GGUF file, and it reads no other"
        )
    interpreter = os.environ.get(PYTHON) or sys.executable
    options = {"model": str(source.path.absolute()), "threads": threads, "room": room}
    return ArmSpec(
        name,
        (interpreter, str(_CHILD), peer.module, json.dumps({**options, **peer.options})),
        {
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        },
        f"install it for {interpreter} (pip install 'larql-vindex3[bench]'), or let {PYTHON} name "
        f"an interpreter that has it",
    )
