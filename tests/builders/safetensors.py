"""A small deterministic safetensors writer for tests, independent of the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True)
class Stored:
    """A tensor that NumPy has no type for: ``Stored("BF16", (2, 3), data)``."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def bf16(values: np.ndarray) -> Stored:
    """Round float32 values to bfloat16, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return Stored("BF16", values.shape, rounded.astype("<u2").tobytes())


def stored(tensor: np.ndarray | Stored) -> Stored:
    if isinstance(tensor, Stored):
        return tensor
    return Stored(_DTYPES[tensor.dtype.name], tensor.shape, np.ascontiguousarray(tensor).tobytes())


def raw_file(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with any header: bytes as they are, or an object that becomes JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray | Stored], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A file with the tensors in the order given."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, tensor in tensors.items():
        entry = stored(tensor)
        header[name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [len(data), len(data) + len(entry.data)],
        }
        data += entry.data
    return raw_file(header, data)


def shard_names(shards: int) -> Sequence[str]:
    if shards == 1:
        return ["model.safetensors"]
    return [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]


def write_safetensors_dir(
    path: Path,
    config: Mapping[str, object] | None,
    tensors: Mapping[str, np.ndarray | Stored],
    *,
    shards: int = 1,
    index: bool = True,
) -> Path:
    """Write a checkpoint directory and return it.

    ``model.safetensors``, or with ``shards`` above 1 numbered shards that take the tensors in turn
    (in runs of nearly equal count) and, unless ``index`` is false, the index. ``config`` None
    leaves ``config.json`` out.
    """
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config, indent=1))
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shard_names(shards)):
        run = names[len(names) * number // shards : len(names) * (number + 1) // shards]
        content = safetensors_bytes({name: tensors[name] for name in run}, {"format": "pt"})
        (path / shard).write_bytes(content)
        weight_map |= dict.fromkeys(run, shard)
    if shards > 1 and index:
        total = sum(len(stored(tensor).data) for tensor in tensors.values())
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(document))
    return path
