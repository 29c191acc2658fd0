"""Single blocks of layers, run by a backend without a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from larql.format.closure import block_contracts
from larql.format.codec import ENCODINGS, encode
from larql.format.graph import Block
from larql.runtime.backends.base import Backend
from larql.runtime.backends.registry import make_backend
from larql.runtime.operands import StoredOperand
from larql.runtime.regions import Region

Array = npt.NDArray[np.float64]


def random_operands(block: Block, seed: int) -> dict[str, Array]:
    """Return a random value for each operand of a block, exact in bfloat16."""
    generator = np.random.default_rng(seed)
    values = {}
    for contract in block_contracts(block, 0):
        spread = 1.0 / np.sqrt(contract.shape[-1]) if len(contract.shape) > 1 else 0.5
        value = generator.standard_normal(contract.shape) * spread
        value += 1.0 if "norm" in contract.use else 0.0
        bits = value.astype(np.float32).view(np.uint32) & 0xFFFF0000
        values[contract.name] = bits.view(np.float32).astype(np.float64)
    return values


def backend_with(
    name: str, operands: Mapping[str, Array], encoding: str = "f32", kv: str = "f32"
) -> Backend:
    """Return a backend that holds operands; those of one axis are f32."""
    backend = make_backend(name, 2, "f32", kv)
    for operand, value in operands.items():
        kind = ENCODINGS[encoding if value.ndim > 1 else "f32"]
        stored = encode(kind, value.astype(np.float32).reshape(-1, value.shape[-1]))
        backend.bind(StoredOperand(operand, kind, value.shape, stored.reshape(-1)))
    return backend


def run_block(
    backend: Backend,
    block: Block,
    inputs: Array,
    chunks: Sequence[int],
    regions: Sequence[Region] | None = None,
    start: int = 0,
) -> npt.NDArray[np.float32]:
    """Return the carrier after a block, advanced in chunks of positions."""
    if regions is None:
        specs = block.state(0)
        regions = [backend.region(spec, start + len(inputs), max(chunks)) for spec in specs]
    parts, at = [], 0
    for count in chunks:
        carrier = inputs[at : at + count].astype(np.float32)
        parts.append(backend.write(block, carrier, regions, start + at).copy())
        for region in regions:
            region.settle()
        at += count
    assert at == len(inputs)
    return np.concatenate(parts)
