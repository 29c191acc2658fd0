"""Run this build on every recorded oracle, and write how close it comes.

    python scripts/oracles/results.py

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

from larql.format.container import Container  # noqa: E402
from larql.format.graph import SoftmaxAttention  # noqa: E402
from larql.runtime.run import RunOptions, open_run  # noqa: E402
from larql.runtime.session import Session  # noqa: E402
from tests.builders.containers import make_container  # noqa: E402
from tests.oracles.recorded import OWN, Oracle, load_oracle  # noqa: E402

TARGET = ROOT / "larql" / "format" / "source" / "oracles.json"
BACKENDS = ("production", "reference")


def main() -> None:
    names = sorted(path.parent.name for path in OWN.glob("*/recorded.safetensors"))
    results = []
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            oracle = load_oracle(name, OWN)
            container = make_container(oracle.checkpoint, Path(directory) / "made.vindex3")
            results.append(result_of(oracle, container))
        print(name, results[-1]["errors"], file=sys.stderr)
    TARGET.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def result_of(oracle: Oracle, container: Container) -> dict[str, object]:
    recorded = (oracle.checkpoint.parent / "recorded.safetensors").read_bytes()
    return {
        "oracle": oracle.name,
        "family": container.index.family,
        "dtype": oracle.facts["dtype"],
        "transformers": oracle.facts["transformers"],
        "recorded_sha256": hashlib.sha256(recorded).hexdigest(),
        "operations": operations_of(container),
        "errors": {backend: error_of(oracle, container, backend) for backend in BACKENDS},
    }


def operations_of(container: Container) -> list[str]:
    """Kinds of operations in the layers and of ropes, in order of appearance."""
    found: dict[str, None] = {}
    for layer in container.component("target").layers:
        for block in layer.blocks:
            mixer = block.mixer
            found[mixer.op] = None
            if isinstance(mixer, SoftmaxAttention) and mixer.rope is not None:
                scaling = mixer.rope.scaling
                found["rope" if scaling is None else f"{scaling.kind} rope"] = None
    return list(found)


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
