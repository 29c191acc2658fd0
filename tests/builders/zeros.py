"""Checkpoints of zeros, which take no room on disk: for tests of memory."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path

from tests.builders.models import LlamaSpec, llama_config


def write_zeros(directory: Path, megabytes: int) -> Path:
    """A checkpoint of zeros that takes no room on disk; nearly all of it is one tensor."""
    spec = LlamaSpec(
        layers=1,
        hidden=1024,
        heads=4,
        kv_heads=4,
        head_dim=16,
        ffn=64,
        tied=True,
        vocab=megabytes * 256,
    )
    shapes = {
        "model.embed_tokens.weight": (spec.vocab, 1024),
        "model.layers.0.input_layernorm.weight": (1024,),
        "model.layers.0.self_attn.q_proj.weight": (64, 1024),
        "model.layers.0.self_attn.k_proj.weight": (64, 1024),
        "model.layers.0.self_attn.v_proj.weight": (64, 1024),
        "model.layers.0.self_attn.o_proj.weight": (1024, 64),
        "model.layers.0.post_attention_layernorm.weight": (1024,),
        "model.layers.0.mlp.gate_proj.weight": (64, 1024),
        "model.layers.0.mlp.up_proj.weight": (64, 1024),
        "model.layers.0.mlp.down_proj.weight": (1024, 64),
        "model.norm.weight": (1024,),
    }
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(llama_config(spec)))
    with (directory / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return directory
