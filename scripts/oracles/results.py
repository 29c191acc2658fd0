"""Run this build on every recorded oracle, and write how close it comes.

    python scripts/oracles/results.py              all oracles
    python scripts/oracles/results.py --new        only those that were recorded since the last time

Needs neither torch nor transformers. Writes ``larql/format/source/oracles.json``, from which
``larql models`` and docs/models.md tell.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from larql.errors import UnsupportedRefusal  # noqa: E402
from larql.format.container import Container  # noqa: E402
from larql.format.graph import LatentAttention, SoftmaxAttention  # noqa: E402
from larql.format.source.held import BACKENDS  # noqa: E402
from larql.runtime.run import RunOptions, open_run  # noqa: E402
from larql.runtime.session import Session  # noqa: E402
from tests.builders.containers import make_container  # noqa: E402
from tests.oracles.recorded import OWN, Oracle, load_oracle  # noqa: E402

TARGET = ROOT / "larql" / "format" / "source" / "oracles.json"


def main() -> None:
    names = sorted(path.parent.name for path in OWN.glob("*/recorded.safetensors"))
    kept = {}
    if sys.argv[1:] == ["--new"]:
        kept = {entry["recorded_sha256"]: entry for entry in json.loads(TARGET.read_text("utf-8"))}
    results = []
    for name in names:
        digest = recorded_sha256(load_oracle(name, OWN))
        if digest in kept:
            results.append(kept[digest])
            continue
        with tempfile.TemporaryDirectory() as directory:
            oracle = load_oracle(name, OWN)
            container = make_container(oracle.checkpoint, Path(directory) / "made.vindex3")
            results.append(result_of(oracle, container))
        print(name, results[-1]["errors"], file=sys.stderr)
    TARGET.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def result_of(oracle: Oracle, container: Container) -> dict[str, object]:
    return {
        "oracle": oracle.name,
        "family": container.index.family,
        "dtype": oracle.facts["dtype"],
        "transformers": oracle.facts["transformers"],
        "recorded_sha256": recorded_sha256(oracle),
        "operations": operations_of(container),
        "errors": errors_of(oracle, container),
    }


def recorded_sha256(oracle: Oracle) -> str:
    recorded = (oracle.checkpoint.parent / "recorded.safetensors").read_bytes()
    return hashlib.sha256(recorded).hexdigest()


def operations_of(container: Container) -> list[str]:
    """Kinds of operations in the layers and of ropes, in order of appearance."""
    found: dict[str, None] = {}
    for layer in container.component("target").layers:
        for block in layer.blocks:
            mixer = block.mixer
            found[mixer.op] = None
            attends = isinstance(mixer, SoftmaxAttention | LatentAttention)
            if attends and mixer.rope is not None:
                scaling = mixer.rope.scaling
                found["rope" if scaling is None else f"rope ({scaling.kind})"] = None
    return list(found)


def errors_of(oracle: Oracle, container: Container) -> dict[str, float]:
    """How far each backend is off; one that refuses has no number."""
    found = {}
    for backend in BACKENDS:
        try:
            found[backend] = error_of(oracle, container, backend)
        except UnsupportedRefusal as error:
            print(f"{oracle.name}: {error}", file=sys.stderr)
    return found


def error_of(oracle: Oracle, container: Container, backend: str) -> float:
    """Largest difference from the recorded logits, relative to the largest, rounded up."""
    run = open_run(container, RunOptions(backend=backend))
    context = len(oracle.tokens) + len(oracle.greedy)
    session = Session(run.prepared, context)
    logits = session.logits(session.advance(oracle.tokens))
    return rounded_up(float(np.abs(logits - oracle.logits).max() / np.abs(oracle.logits).max()))


def rounded_up(error: float) -> float:
    """Return the next number of one significant digit."""
    for exponent in range(-12, 1):
        for digit in range(1, 10):
            if error <= float(f"{digit}e{exponent}"):
                return float(f"{digit}e{exponent}")
    raise SystemExit(f"an error of {error} is none to record")


if __name__ == "__main__":
    main()
