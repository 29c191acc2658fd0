"""VINDEX2 directories: made from tiny checkpoints, and one made by hand, byte by byte."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.format.codec import decode
from larql.format.encoding import Encoding
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.extract import Extraction
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.layout import FfnLayout, Level
from larql.format.vindex2.write import Options, Origin, extract_vindex2


class NaiveTokens:
    """The tokens of directions, in float64 and by sorting."""

    def begin(
        self, encoding: Encoding, shape: tuple[int, int], data: npt.NDArray[np.uint8]
    ) -> None:
        self.rows = decode(encoding, data.reshape(shape[0], -1), shape[1]).astype(np.float64)

    def of(
        self, directions: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        scores = (directions.astype(np.float64) @ self.rows.T).astype(np.float32)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return order.astype(np.uint32), np.take_along_axis(scores, order, 1)


def extract_v2(
    source: Path,
    output: Path,
    *,
    level: str = "all",
    quant: str | None = None,
    per_layer: bool = False,
    force: bool = False,
    tokens: Any = None,
) -> Extraction:
    """Extract a checkpoint into a VINDEX2 directory."""
    options = Options(Level(level), quant, FfnLayout.PER_LAYER if per_layer else None)
    with open_checkpoint(source) as checkpoint:
        return extract_vindex2(
            checkpoint,
            output,
            tokens or NaiveTokens(),
            options=options,
            origin=Origin(),
            force=force,
            progress=SilentProgress(),
        )


def make_v2(source: Path, output: Path, **options: Any) -> Vindex2:
    """Extract a checkpoint and open the directory."""
    extract_v2(source, output, **options)
    return Vindex2(output)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def down_meta(num_layers: int, top_k: int, records: list[list[tuple[int, float]]]) -> bytes:
    """The bytes of ``down_meta.bin`` from each feature's tokens and scores."""
    data = struct.pack("<4s3I", b"DMET", 1, num_layers, top_k)
    for pairs in records:
        token, score = pairs[0] if pairs else (0, 0.0)
        data += struct.pack("<IfB", token, score, len(pairs))
        for token, score in pairs + [(0, 0.0)] * (top_k - len(pairs)):
            data += struct.pack("<If", token, score)
    return data


TINY_GATE = {0: ((1.0, 2.0), (3.0, -4.0)), 1: ((0.5, 0.25),)}
TINY_EMBEDDINGS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 2.0))
TINY_RECORDS = [[(2, 1.5), (0, 0.5)], [(1, -0.25)], [(0, 3.0), (2, 2.0)]]


def tiny_index(version: int = 2) -> dict[str, Any]:
    """The index of two layers of width 2 with 2 and 1 features, and a vocabulary of 3."""
    layers = [
        {"layer": 0, "num_features": 2, "offset": 0, "length": 16},
        {"layer": 1, "num_features": 1, "offset": 16, "length": 8},
    ]
    small = {
        "version": version,
        "model": "tiny",
        "num_layers": 2,
        "hidden_size": 2,
        "vocab_size": 3,
    }
    if version == 1:
        return {**small, "layers": layers, "down_top_k": 2}
    return {
        **small,
        "family": "none",
        "dtype": "f32",
        "source": {"repo": None},
        "checksums": {},
        "intermediate_size": 2,
        "embed_scale": 1.5,
        "extract_level": "browse",
        "down_top_k": 2,
        "layer_bands": None,
        "layers": layers,
        "model_config": {},
        "quant": None,
        "ffn_layout": None,
    }


def write_tiny(to: Path, index: Mapping[str, Any] | None = None) -> Path:
    """Write the tiny directory by hand, with checksums where its index has the field."""
    to.mkdir(parents=True)
    rows = [value for layer in TINY_GATE.values() for row in layer for value in row]
    files = {
        "gate_vectors.bin": floats(*rows),
        "embeddings.bin": floats(*(value for row in TINY_EMBEDDINGS for value in row)),
        "down_meta.bin": down_meta(2, 2, TINY_RECORDS),
    }
    document = dict(tiny_index() if index is None else index)
    for name, data in files.items():
        (to / name).write_bytes(data)
    if "checksums" in document:
        document["checksums"] = {n: hashlib.sha256(d).hexdigest() for n, d in files.items()}
    (to / "index.json").write_text(json.dumps(document))
    return to


def vouch_v2(directory: Path, *names: str) -> Path:
    """Make the index state the hashes that files have now; of files that are gone, none."""
    path = directory / "index.json"
    document = json.loads(path.read_text())
    for name in names:
        document["checksums"].pop(name, None)
        if (directory / name).exists():
            data = (directory / name).read_bytes()
            document["checksums"][name] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(document))
    return directory
