"""A checkpoint whose routed experts are wider: neurons are repeated until a width is reached.

Widths of tiny checkpoints are smaller than what blocks of quantised encodings need. It is another
model, with numbers of the same kind.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.builders.safetensors import write_safetensors_dir

Float32 = npt.NDArray[np.float32]
_EXPERTS = re.compile(r"\b(shared_)?experts\.|\.(input|output)_linear\.")
_FUSED = re.compile(r"gate_up|input_linear")
_DENSE = re.compile(r"shared_mlp")


def widen_experts(checkpoint: Path, to: Path, multiple: int) -> Path:
    """Write a checkpoint as float32, its experts' width raised to a multiple; no number changes."""
    config = json.loads((checkpoint / "config.json").read_text())
    parts = [config, *(config[key] for key in ("text_config",) if key in config)]
    for part in parts:
        for key in {"dtype", "torch_dtype"} & part.keys():
            part[key] = "float32"
    key = (
        "moe_intermediate_size"
        if any("moe_intermediate_size" in p for p in parts)
        else ("intermediate_size")
    )
    width = next(part[key] for part in parts if key in part)
    wide = -(-width // multiple) * multiple
    for part in parts:
        if key in part:
            part[key] = wide
    neurons = np.arange(wide) % width
    tensors: dict[str, Any] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        for name, values in _tensors(path).items():
            if _EXPERTS.search(name) and not _DENSE.search(name) and wide != width:
                values = _widened(name, values, width, neurons)
            tensors[name] = np.ascontiguousarray(values, np.float32)
    return write_safetensors_dir(to, config, tensors)


def _widened(name: str, values: Float32, width: int, neurons: npt.NDArray[np.int64]) -> Float32:
    """Repeat neurons along whichever of the last two axes has them, once or as two halves."""
    halves = 2 if _FUSED.search(name) else 1
    for axis in range(max(0, values.ndim - 2), values.ndim):
        count = values.shape[axis] // width
        whole = values.shape[axis] == count * width
        if whole and (count == halves or ("shared_experts" in name and count in (1, 2))):
            index = np.concatenate([neurons + width * part for part in range(count)])
            return np.take(values, index, axis=axis)
    return values


def _tensors(path: Path) -> dict[str, Float32]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        first, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            words = np.frombuffer(data[first:end], "<u2").astype(np.uint32) << 16
            values = words.view(np.float32)
        else:
            values = np.frombuffer(data[first:end], "<f4")
        found[name] = values.reshape(entry["shape"])
    return found
