"""Configuration keys that many families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from larql.format.graph import Activation
from larql.format.source.config import ConfigReader

__all__ = ["activation", "common_hugging_face_keys", "layer_kinds"]

_ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}

_IRRELEVANT = (
    # identity and bookkeeping
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    # how some programs run or train it, not what it computes
    "attention_dropout",
    "cache_implementation",
    "hidden_dropout",
    "initializer_range",
    "output_attentions",
    "output_hidden_states",
    "resid_pdrop",
    "return_dict",
    "use_cache",
    "_attn_implementation",
    "_attn_implementation_autoset",
    # text, judged with the tokenizer
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)


def common_hugging_face_keys(config: ConfigReader, quantised: tuple[str, ...] = ()) -> None:
    """Judge the keys of ``config.json`` that mean the same in every family.

    Parameters
    ----------
    config : ConfigReader
    quantised : tuple of str
        Methods of quantisation whose tensors the family knows; any other is refused.
    """
    config.irrelevant(*_IRRELEVANT)
    config.neutral("is_encoder_decoder", False)
    config.neutral("add_cross_attention", False)
    config.neutral("tie_encoder_decoder", False)
    stated = config.child("quantization_config") if quantised else None
    if stated is None:
        config.neutral("quantization_config")
    else:
        stated.choice("quant_method", {method: method for method in quantised})
        stated.irrelevant("modules_to_not_convert", "dequantize")


def activation(config: ConfigReader, key: str, default: str | None) -> Activation:
    """Take an activation function by its Hugging Face name.

    Raises
    ------
    CompileError
        If this build does not know the name.
    """
    if default is None:
        return cast("Activation", config.choice(key, _ACTIVATIONS))
    return cast("Activation", config.choice(key, _ACTIVATIONS, default))


def layer_kinds(
    config: ConfigReader, key: str, layers: int, known: Mapping[str, str]
) -> tuple[str, ...] | None:
    """Take an array with the kind of each layer, or None where the key is absent.

    Parameters
    ----------
    config : ConfigReader
    key : str
    layers : int
        How many entries it must have.
    known : mapping
        Names to what they mean.

    Raises
    ------
    CompileError
        If an entry is not known, or there is another number of them.
    """
    stated = config.texts(key)
    if stated is None:
        return None
    for kind in stated:
        if kind not in known:
            raise config.failure(
                key, f"holds {kind!r:.60}, which this build does not know ({', '.join(known)})"
            )
    if len(stated) != layers:
        raise config.contradiction(key, "num_hidden_layers", f"{len(stated)} entries", layers)
    return tuple(known[kind] for kind in stated)
