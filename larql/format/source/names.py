"""How decoder parts are named in Hugging Face checkpoints and in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping

from larql.format.source.builder import Naming

__all__ = ["GGUF_NAMING", "hugging_face_naming"]


def hugging_face_naming(prefix: str, head: str, parts: Mapping[str, str]) -> Naming:
    """Return the usual Hugging Face names.

    Parameters
    ----------
    prefix : str
        What stands before ``embed_tokens`` and ``layers``, e.g. ``model.``.
    head : str
        Name of the output head without suffix.
    parts : mapping
        Names inside a layer that differ from the usual ones or come on top of them.
    """
    layer = {
        "attention.norm": "input_layernorm",
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.o": "self_attn.o_proj",
        "attention.q_norm": "self_attn.q_norm",
        "attention.k_norm": "self_attn.k_norm",
        "ffn.norm": "post_attention_layernorm",
        "ffn.gate": "mlp.gate_proj",
        "ffn.up": "mlp.up_proj",
        "ffn.down": "mlp.down_proj",
    }
    layer.update(parts)
    names = {part: f"{prefix}layers.{{i}}.{name}" for part, name in layer.items()}
    names["embedding"] = f"{prefix}embed_tokens"
    names["output"] = f"{prefix}norm"
    names["head"] = head
    return Naming(names)


GGUF_NAMING = Naming(
    {
        "embedding": "token_embd",
        "output": "output_norm",
        "head": "output",
        "rope.factors": "rope_freqs",
        "attention.norm": "blk.{i}.attn_norm",
        "attention.q": "blk.{i}.attn_q",
        "attention.k": "blk.{i}.attn_k",
        "attention.v": "blk.{i}.attn_v",
        "attention.o": "blk.{i}.attn_output",
        "attention.q_norm": "blk.{i}.attn_q_norm",
        "attention.k_norm": "blk.{i}.attn_k_norm",
        "attention.post_norm": "blk.{i}.post_attention_norm",
        "ffn.norm": "blk.{i}.ffn_norm",
        "ffn.gate": "blk.{i}.ffn_gate",
        "ffn.up": "blk.{i}.ffn_up",
        "ffn.down": "blk.{i}.ffn_down",
        "ffn.post_norm": "blk.{i}.post_ffw_norm",
    },
)
