"""Record what transformers computes from oracles whose experts were rounded to another encoding.

    python scripts/oracles/record_banks.py [NAME ...] [--out tests/oracles]

Needs torch and transformers, as record.py does. For each family with routed experts, and each of
``q4_k`` and ``mxfp4``, experts are widened as tests do it, their matrices are rounded to the
encoding and back, the checkpoint is written with them as float32, and transformers runs on it. The
answer is written beside the oracle's own, as ``<encoding>.safetensors``; the rounded checkpoint is
not kept. A container that stores these experts in the encoding must give the same.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from record import MARGIN, forward  # noqa: E402
from safetensors.numpy import save_file  # noqa: E402

from larql.format.codec import decode, encode  # noqa: E402
from larql.format.container import Container  # noqa: E402
from larql.format.encoding import ENCODINGS, Encoding  # noqa: E402
from larql.format.lyrw.v2 import BankFile  # noqa: E402
from larql.format.lyrw.v2_writer import write_banks  # noqa: E402
from larql.format.progress import SilentProgress  # noqa: E402
from larql.format.source.operand_bytes import OperandBytes  # noqa: E402
from larql.format.source.reconstruct import reconstruct  # noqa: E402
from tests.builders.containers import edit_index, make_container, vouch_for  # noqa: E402
from tests.builders.widened import widen_experts  # noqa: E402
from tests.oracles.recorded import (  # noqa: E402
    BANK_ENCODINGS,
    EXPERT_WIDTH,
    MIXTURES,
    OWN,
    load_oracle,
)


def main() -> None:
    """Record the oracles that the command line names, or all with routed experts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MIXTURES))
    parser.add_argument("--out", type=Path, default=OWN)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in arguments.names:
        for encoding in BANK_ENCODINGS:
            with tempfile.TemporaryDirectory() as directory:
                record(name, ENCODINGS[encoding], Path(directory), arguments.out)
            print(name, encoding, file=sys.stderr)


def record(name: str, encoding: Encoding, work: Path, out: Path) -> None:
    """Write what transformers computes from one rounded checkpoint."""
    oracle = load_oracle(name, OWN)
    widened = widen_experts(oracle.checkpoint, work / "widened", EXPERT_WIDTH)
    container = make_container(widened, work / "container")
    round_banks(container, encoding)
    rounded = work / "rounded"
    reconstruct(Container(container.path), rounded, force=False, progress=SilentProgress())
    shutil.copy(widened / "config.json", rounded / "config.json")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        rounded, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    hidden, logits = forward(model, oracle.tokens)
    row, greedy = logits[-1], []
    while len(greedy) < len(oracle.greedy):
        second, best = np.sort(row)[-2:]
        if best - second < MARGIN * np.abs(row).max():
            break  # what hangs on so little is not recorded
        greedy.append(int(row.argmax()))
        row = forward(model, oracle.tokens + greedy)[1][-1]
    save_file(
        {"hidden": hidden, "logits": logits, "greedy": np.array(greedy, np.int64)},
        out / name / f"{encoding.name}.safetensors",
        metadata={"torch": torch.__version__, "transformers": transformers.__version__},
    )
    (out / name / f"{encoding.name}.safetensors").chmod(0o644)


def round_banks(container: Container, encoding: Encoding) -> None:
    """Round the matrices of all experts in place; they stay float32."""
    names = {v.segment for v in container.index.representations.values()}
    for name in sorted(n for n in names if container.index.holds_banks(n)):
        path = container.path / name
        before = path.rename(path.with_suffix(".before"))
        file = BankFile(before, container.index.schema)
        with write_banks(path, file.tables) as writer:
            for bank in file.tables.banks:
                for entry in range(bank.num_entries):
                    for schema in bank.schemas:
                        stored = file.stored_bytes(bank.bank_id, entry, schema)
                        values = np.frombuffer(stored.tobytes(), "<f4")
                        if schema.rows > 1:
                            values = rounded(values.reshape(schema.rows, schema.cols), encoding)
                        writer.region(bank.bank_id, entry, schema, [values.tobytes()])
        before.unlink()
        vouch_for(container.path, name)
    changed = Container(container.path)
    reader = OperandBytes(changed)
    digests = {
        key: hashlib.sha256(b"".join(reader.chunks(value))).hexdigest()
        for key, value in changed.index.representations.items()
        if changed.index.holds_banks(value.segment)
    }

    def change(index: Any) -> None:
        for key, digest in digests.items():
            index["representations"][key]["source"]["sha256"] = digest

    edit_index(container.path, change)


def rounded(values: np.ndarray, encoding: Encoding) -> np.ndarray:
    """Encode rows, filled up with zeros to whole blocks, and decode them."""
    columns = values.shape[1]
    fill = -columns % encoding.block_elements
    wide = np.pad(values, ((0, 0), (0, fill)))
    back = decode(encoding, encode(encoding, wide), columns + fill)
    return np.ascontiguousarray(back[:, :columns])


if __name__ == "__main__":
    main()
