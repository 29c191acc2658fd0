"""How decoder parts are named in Hugging Face checkpoints and in GGUF files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["GGUF_NAMING", "Naming", "common_prefix", "commonest", "hugging_face_naming"]


@dataclass(frozen=True)
class Naming:
    """How a checkpoint names the parts of a decoder.

    Attributes
    ----------
    parts : mapping
        Part to template; ``{i}`` is the layer number. The suffix ``.weight`` or ``.bias`` is
        added by whoever asks.
    """

    parts: Mapping[str, str]

    def tensor(self, part: str, layer: int | None, suffix: str) -> str:
        """Return the checkpoint's name of a part's tensor."""
        return f"{self.parts[part].format(i=layer)}{suffix}"


def commonest(names: Iterable[str], ways: Sequence[str]) -> str:
    """Return the regular expression that is found in most names, the first where none is.

    Of several ways to spell a part, it is the checkpoint's own, whichever tensor is missing.
    """
    counts = dict.fromkeys(ways, 0)
    patterns = [re.compile(way) for way in ways]
    for name in names:
        for pattern in patterns:
            counts[pattern.pattern] += pattern.search(name) is not None
    return max(ways, key=lambda way: counts[way])


def common_prefix(names: Iterable[str], known: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return what stands before a checkpoint's layers, and the name of its head.

    Parameters
    ----------
    names : iterable of str
        All tensors; which prefix it is does not hang on any single one.
    known : sequence of (str, str)
        Prefixes and the names of heads that go with them, of which the first is the usual one.
    """
    ways = {
        rf"^{re.escape(prefix)}(layers|embed_tokens)\.": (prefix, head) for prefix, head in known
    }
    return ways[commonest(names, tuple(ways))]


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
