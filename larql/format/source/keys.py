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
    "finetuning_task",
    "label2id",
    "license",
    "model_type",
    "num_labels",
    "problem_type",
    "task_specific_params",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    # how some programs run or train it, not what it computes
    "attention_dropout",
    "attn_pdrop",
    "cache_implementation",
    "dropout",
    "embd_pdrop",
    "gradient_checkpointing",
    "hidden_dropout",
    "initializer_range",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "resid_pdrop",
    "return_dict",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention_2",
    "use_return_dict",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    # how text is drawn from what it computes, which a run states for itself
    *("bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample"),
    *("early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
    *("forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "min_length"),
    *("no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences"),
    *("output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate"),
    *("suppress_tokens", "temperature", "top_k", "top_p", "typical_p"),
    # text, judged with the tokenizer
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "tokenizer_class",
)
# Values that ask for nothing, of keys that only some families have.
_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "attention_out_bias": (False,),
    "chunk_size_feed_forward": (0,),
    "embedding_multiplier": (1.0,),
    "lm_head_bias": (False,),
    "logits_scaling": (1.0,),
    "mlp_bias": (False,),
    "mlp_only_layers": ([],),
    "num_kv_shared_layers": (0,),
    "num_nextn_predict_layers": (0,),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "residual_multiplier": (1.0,),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (False,),
    "use_mrope": (False,),
    "use_qkv_bias": (False,),
    "use_sliding_window": (False,),
}


# Names of one thing. A family reads those that its programs read; where a configuration has another
# one as well, it must say the same.
_REPEATS: tuple[tuple[str, ...], ...] = (
    ("hidden_act", "hidden_activation", "activation_function"),
    ("hidden_size", "n_embd", "d_model"),
    ("intermediate_size", "ffn_dim", "n_inner"),
    ("max_position_embeddings", "model_max_length", "n_positions", "max_sequence_length"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("num_attention_heads", "num_heads", "n_head"),
    ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts"),
    ("num_hidden_layers", "num_layers", "n_layer"),
    ("num_key_value_heads", "num_kv_heads"),
    ("partial_rotary_factor", "rotary_pct"),
    ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
    ("rope_theta", "theta", "rotary_base", "rope_base"),
    ("scoring_func", "moe_router_activation_func"),
    ("sliding_window", "sliding_window_size", "window_size"),
    ("sliding_window_pattern", "_sliding_window_pattern"),
    ("tie_word_embeddings", "tie_embedding", "tie_embeddings"),
)
# Names of one thing that any family may read as another: tensors bear them out.
_SAME: tuple[tuple[str, ...], ...] = (
    ("num_experts", "num_local_experts", "n_routed_experts"),
    ("num_nextn_predict_layers", "num_mtp_layers"),
    ("num_shared_experts", "n_shared_experts"),
)


def _names(config: ConfigReader) -> None:
    """Say which keys are names of one thing, and which values of keys ask for nothing."""
    for keys in _SAME:
        config.same(*keys)
    config.same("dtype", "torch_dtype", meaning=_number_type)
    config.harmless(_HARMLESS)
    for keys in _REPEATS:
        config.repeats(*keys, meaning=_function if keys[0] == "hidden_act" else None)


def _function(value: object) -> object:
    return _ACTIVATIONS.get(value, value) if isinstance(value, str) else value


def _number_type(value: object) -> object:
    return value.removeprefix("torch.") if isinstance(value, str) else value


def common_hugging_face_keys(config: ConfigReader, quantised: tuple[str, ...] = ()) -> None:
    """Judge the keys of ``config.json`` that mean the same in every family.

    Parameters
    ----------
    config : ConfigReader
    quantised : tuple of str
        Methods of quantisation whose tensors the family knows; any other is refused.
    """
    _names(config)
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


def activation(
    config: ConfigReader, key: str, default: str, repeated: str | None = None
) -> Activation:
    """Take an activation function by its Hugging Face name.

    Parameters
    ----------
    config : ConfigReader
    key, default : str
    repeated : str or None
        A key that files may have beside it, which must say the same, and which nothing else reads.
    """
    found = config.choice(key, _ACTIVATIONS, default)
    if repeated is not None and config.has(repeated):
        again = config.choice(repeated, _ACTIVATIONS)
        if again != found:
            config.contradiction(repeated, key, again, found)
    return cast("Activation", found)


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
        Names to what they mean; another name is refused.
    """
    stated = config.texts(key)
    if stated is None:
        return None
    for kind in stated:
        if kind not in known:
            config.refuse(
                key, f"holds {kind!r:.60}, which this build does not know ({', '.join(known)})"
            )
            config.problems.assume(key)
            return None
    if len(stated) != layers:
        config.contradiction(key, "num_hidden_layers", f"{len(stated)} entries", layers)
        config.problems.assume(key)
        return None
    return tuple(known[kind] for kind in stated)
