"""Keys of configurations: two names of one thing, what is harmless anywhere, what never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import compile_checkpoint
from larql.format.source.verdict import judge
from tests.oracles.recorded import NAMES, OWN
from tests.source.test_compiler_llama import refusal
from tests.source.test_dense_families import ABSENT, edited

# Keys that published files carry and that say nothing of what a model computes.
HARMLESS: dict[str, Any] = {
    "_flash_attn_2_enabled": True,
    "attention_bias": None,
    "bad_words_ids": None,
    "chunk_size_feed_forward": 0,
    "do_sample": True,
    "gradient_checkpointing": False,
    "is_decoder": True,
    "license": "mit",
    "max_length": 20,
    "num_labels": 2,
    "pruned_heads": {},
    "temperature": 0.6,
    "tokenizer_class": "LlamaTokenizer",
    "torchscript": False,
    "transformers.js_config": {"kv_cache_dtype": "fp16"},
    "unsloth_version": "2025.1",
    "use_mrope": False,
}
# Keys of which no value but the usual one may pass unread.
TELLING: dict[str, Any] = {
    "attention_chunk_size": 8192,
    "chunk_size_feed_forward": 4,
    "dual_chunk_attention_config": {"chunk_size": 4},
    "gate_lower_bound": -5.0,
    "pruned_heads": {"0": [1]},
    "quantization": {"bits": 4, "group_size": 64},
    "quantization_config": {"quant_method": "fp8"},
    "use_mrope": True,
}
SHORT = tuple(name for name in NAMES if "-" not in name)
NESTED = ("inkling-published",)


@pytest.mark.parametrize("name", [*SHORT, *NESTED])
def test_harmless_keys_change_nothing(tmp_path: Path, name: str) -> None:
    added = {key: value for key, value in HARMLESS.items() if value is not None}
    with open_checkpoint(OWN / name / "checkpoint") as checkpoint:
        plain = compile_checkpoint(checkpoint)
    with open_checkpoint(edited(tmp_path, name, added)) as checkpoint:
        if name in NESTED:
            refusal(checkpoint.root, "`_flash_attn_2_enabled`: unknown")
            return
        assert compile_checkpoint(checkpoint).graph == plain.graph


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama", {"pretraining_tp": 1, "is_llama_config": True, "rope_interleaved": False}),
        ("mistral", {"attention_bias": False, "mlp_bias": False}),
        ("qwen2", {"use_mrope": False, "rope_scaling": None}),
        ("qwen3_moe", {"norm_topk_prob": True, "max_window_layers": 48, "seq_aux": False}),
        ("qwen3_next", {"use_sliding_window": False, "mtp_num_hidden_layers": 1}),
        ("qwen3_next", {"output_router_logits": False, "router_aux_loss_coef": 0.001}),
        ("glm4_moe", {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
        ("deepseek_v3", {"ep_size": 1, "aux_loss_alpha": 0.001, "moe_layer_freq": 1}),
        ("gemma2", {"cache_implementation": "hybrid", "sliding_window_size": 5}),
        ("gemma3", {"attn_logit_softcapping": None, "cache_implementation": "hybrid"}),
        ("gemma4", {"use_bidirectional_attention": False, "expert_intermediate_size": None}),
        ("gemma4", {"use_bidirectional_attention": "vision", "top_k_experts": None}),
        ("granitemoehybrid", {"init_method": "mup", "normalization_function": "rmsnorm"}),
        ("phi3", {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}),
        ("gpt_oss", {"experts_per_token": 2, "initial_context_length": 32}),
        ("smollm3", {"pretraining_tp": 2, "max_window_layers": 28}),
        ("kimi_linear-delta", {"use_grouped_topk": True, "num_nextn_predict_layers": 0}),
    ],
)
def test_keys_of_published_files_change_nothing(
    tmp_path: Path, name: str, published: dict[str, Any]
) -> None:
    with open_checkpoint(OWN / name / "checkpoint") as checkpoint:
        plain = compile_checkpoint(checkpoint)
    with open_checkpoint(edited(tmp_path, name, published)) as checkpoint:
        assert compile_checkpoint(checkpoint).graph == plain.graph


@pytest.mark.parametrize("name", SHORT)
def test_keys_that_tell_are_all_refused(tmp_path: Path, name: str) -> None:
    path = edited(tmp_path, name, TELLING)
    found = {problem.name for problem in judge(path).problems}
    # Where a file's own numbers are quantised, the method is what is refused.
    found = {"quantization_config" if "quant_method" in key else key for key in found}
    assert found == set(TELLING)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("llama", {"torch_dtype": "bfloat16"}, ["`dtype` is 'float32'", "`torch_dtype` is 'bf"]),
        ("llama", {"n_embd": 33}, ["`hidden_size` is 32 but `n_embd` is 33"]),
        ("llama", {"num_layers": 2}, ["`num_hidden_layers` is 3 but `num_layers` is 2"]),
        ("llama", {"n_head": 3}, ["`num_attention_heads` is 4 but `n_head` is 3"]),
        ("llama", {"num_kv_heads": 4}, ["`num_key_value_heads` is 2 but `num_kv_heads` is 4"]),
        ("llama", {"norm_eps": 1e-5}, ["`rms_norm_eps` is 0.0001 but `norm_eps` is 1e-05"]),
        ("llama", {"hidden_activation": "gelu"}, ["`hidden_act` is 'silu' but `hidden_act"]),
        ("llama", {"tie_embedding": True}, ["`tie_word_embeddings` is False but `tie_embedding`"]),
        ("llama", {"model_max_length": 65}, ["`max_position_embeddings` is 64 but `model_max_"]),
        ("llama-llama3", {"rope_base": 5.0}, ["`rope_theta` is 1000.0 but `rope_base` is 5.0"]),
        ("mixtral", {"num_experts": 5}, ["`num_experts` is 5 but `num_local_experts` is 4"]),
        ("qwen3_moe", {"n_routed_experts": 4}, ["is 7 but `n_routed_experts` is 4"]),
        ("olmoe", {"num_local_experts": 7}, ["`num_experts` is 6 but `num_local_experts` is 7"]),
        ("gpt_oss", {"experts_per_token": 3}, ["is 2 but `experts_per_token` is 3"]),
        ("qwen3_moe", {"top_k_experts": 4}, ["`num_experts_per_tok` is 3 but `top_k_experts`"]),
        ("glm4_moe", {"num_shared_experts": 2}, ["`num_shared_experts` is 2 but `n_shared_"]),
        ("glm4_moe", {"num_expert_group": 2}, ["`n_group` is 1 but `num_expert_group` is 2"]),
        ("glm4_moe", {"moe_renormalize": False}, ["`norm_topk_prob` is True but `moe_renorm"]),
        ("glm4_moe", {"num_mtp_layers": 4}, ["`num_nextn_predict_layers` is", "`num_mtp_layers`"]),
        ("deepseek_v3", {"head_dim": 9}, ["`head_dim` is 9 but `qk_rope_head_dim` is 8"]),
        ("deepseek_v3", {"num_key_value_heads": 2}, ["is 2 but `num_attention_heads` is 4"]),
        ("gemma2", {"hidden_act": "silu"}, ["`hidden_act` is", "`hidden_activation` is"]),
        ("gemma3", {"hidden_act": "silu"}, ["`hidden_act` is", "`hidden_activation` is"]),
        ("gemma2", {"sliding_window_size": 6}, ["is 6 but `sliding_window` is 5"]),
        ("mistral", {"window_size": 6}, ["`sliding_window` is 7 but `window_size` is 6"]),
        ("lfm2-older", {"num_heads": 2}, ["`num_heads` is 2 but `num_attention_heads` is 4"]),
        ("qwen3_5", {"rotary_pct": 0.5, "partial_rotary_factor": 0.25}, ["`rotary_pct` is 0.5"]),
    ],
)  # fmt: skip
def test_two_values_of_one_thing_are_refused_naming_both(
    tmp_path: Path, name: str, changes: dict[str, object], words: list[str]
) -> None:
    refusal(edited(tmp_path, name, changes), "must agree", *words)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"torch_dtype": "torch.float32", "n_embd": 32, "hidden_activation": "swish"}),
        ("llama", {"num_layers": 3.0, "norm_eps": 1e-4, "model_max_length": 64}),
        ("mixtral", {"num_experts": 4, "n_routed_experts": 4}),
        ("mixtral", {"num_local_experts": ABSENT, "num_experts": 4}),
        ("glm4_moe", {"num_shared_experts": 1, "num_expert_group": 1}),
        ("gemma2", {"hidden_act": "gelu_new", "sliding_window_size": 5}),
    ],
)
def test_one_value_under_two_names_is_one_value(
    tmp_path: Path, name: str, changes: dict[str, object]
) -> None:
    with open_checkpoint(OWN / name / "checkpoint") as checkpoint:
        plain = compile_checkpoint(checkpoint)
    with open_checkpoint(edited(tmp_path, name, changes)) as checkpoint:
        assert compile_checkpoint(checkpoint).graph == plain.graph


def test_another_name_alone_is_not_taken_for_the_usual_one(tmp_path: Path) -> None:
    """Programs that read the family would not see it."""
    path = edited(tmp_path, "llama", {"rms_norm_eps": ABSENT, "norm_eps": 1e-4})
    refusal(path, "`norm_eps`: unknown to this family")
