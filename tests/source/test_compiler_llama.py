"""Llama checkpoints: what each key means, and that no key or tensor is passed over."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from larql.errors import CompileError, LarqlError, UnsupportedRefusal
from larql.format.graph import Component, DenseFfn, Linear, Rope, RopeScaling, SoftmaxAttention
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from tests.builders.gguf import Typed, f32, u32
from tests.builders.models import (
    LlamaSpec,
    Scaling,
    llama_config,
    llama_weights,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.builders.safetensors import write_safetensors_dir

ONE = LlamaSpec(layers=1)


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(path: Path) -> Component:
    (component,) = compiled(path).graph.components
    return component


def attention(component: Component, layer: int = 0) -> SoftmaxAttention:
    mixer = component.layers[layer].blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    return mixer


def rope(path: Path) -> Rope:
    found = attention(target(path)).rope
    assert found is not None
    return found


def refusal(path: Path, *words: str, kind: type[LarqlError] = CompileError) -> str:
    with pytest.raises(kind) as caught:
        compiled(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def with_config(tmp_path: Path, spec: LlamaSpec = ONE, /, **config: object) -> Path:
    return write_llama_safetensors(tmp_path / "m", spec, config=config)


def with_metadata(tmp_path: Path, metadata: Mapping[str, object], spec: LlamaSpec = ONE) -> Path:
    return write_llama_gguf(tmp_path / "m.gguf", spec, metadata=metadata)


# --- the plain model --------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["old", "new"])
def test_t0_is_described_in_full(tmp_path: Path, style: str) -> None:
    spec = LlamaSpec(style="new" if style == "new" else "old")
    component = target(write_llama_safetensors(tmp_path / "m", spec))
    assert (component.id, component.role) == ("target", "decoder")
    assert (component.hidden_size, component.vocab_size, component.context_length) == (64, 256, 512)
    assert (component.embed.scale, component.embed.weight) == (1.0, "target.embedding/weight")
    assert [layer.index for layer in component.layers] == [0, 1]
    for layer in component.layers:
        first, second = layer.blocks
        assert (first.site, second.site) == ("attention", "ffn")
        assert (first.post_norm, second.post_norm) == (None, None)
        assert (first.residual_scale, second.residual_scale) == (1.0, 1.0)
        for block in layer.blocks:
            assert block.norm is not None
            assert (block.norm.kind, block.norm.eps, block.norm.offset) == ("rms", 1e-5, 0.0)
        mixer = attention(component, layer.index)
        assert (mixer.heads, mixer.kv_heads, mixer.key_dim, mixer.value_dim) == (4, 2, 16, 16)
        assert mixer.scale == 0.25
        assert (mixer.window, mixer.softcap, mixer.q_norm, mixer.k_norm) == (None,) * 4
        assert mixer.rope == Rope(layout="half", dims=16, theta=10000.0)
        at = f"target.layer.{layer.index:03d}/attention"
        assert mixer.k == Linear(f"{at}.k.weight", outputs=32, inputs=64)
        assert isinstance(second.mixer, DenseFfn)
        assert second.mixer.activation == "silu"
        assert second.mixer.gate is not None
    head = component.head
    assert (head.tied, head.weight) == (False, "target.output_head/weight")
    assert (head.multiplier, head.softcap, head.norm.offset) == (1.0, None, 0.0)


def test_a_gguf_file_differs_only_in_its_rotary_layout(tmp_path: Path) -> None:
    hugging_face = target(write_llama_safetensors(tmp_path / "m"))
    gguf = target(write_llama_gguf(tmp_path / "m.gguf"))
    assert rope(tmp_path / "m.gguf") == Rope(layout="adjacent", dims=16, theta=10000.0)

    def alike(component: Component) -> Component:
        layers = []
        for layer in component.layers:
            first, second = layer.blocks
            norms = [replace(b.norm, eps=0.0) for b in layer.blocks if b.norm is not None]
            mixer = first.mixer
            assert isinstance(mixer, SoftmaxAttention)
            blocks = (
                replace(first, mixer=replace(mixer, rope=None), norm=norms[0]),
                replace(second, norm=norms[1]),
            )
            layers.append(replace(layer, blocks=blocks))
        head = replace(component.head, norm=replace(component.head.norm, eps=0.0))
        return replace(component, layers=tuple(layers), head=head)

    assert alike(gguf) == alike(hugging_face)
    assert gguf.head.norm.eps == pytest.approx(1e-5, rel=1e-7), "stored as float32"


def test_every_tensor_fills_one_operand(tmp_path: Path) -> None:
    spec = LlamaSpec(attention_bias=True, mlp_bias=True, scaling=Scaling("llama3", 8.0), shards=2)
    for path in (
        write_llama_safetensors(tmp_path / "m", spec),
        write_llama_gguf(tmp_path / "m.gguf", spec),
    ):
        with open_checkpoint(path) as checkpoint:
            found = compile_checkpoint(checkpoint)
            assert sorted(b.source.name for b in found.bindings) == sorted(checkpoint.tensors)
        assert found.left == {}
        operands = [binding.operand for binding in found.bindings]
        assert len(set(operands)) == len(operands)
        assert "target.layer.001/ffn.down.bias" in operands


def test_every_key_gets_a_verdict(tmp_path: Path) -> None:
    path = write_llama_safetensors(tmp_path / "m", ONE)
    verdicts = {v.key: v.verdict for v in compiled(path).keys}
    assert set(verdicts) == set(json.loads((path / "config.json").read_text()))
    assert verdicts["hidden_size"] == "consumed"
    assert verdicts["use_cache"] == "irrelevant"
    assert "blocking" not in verdicts.values()


# --- optional numbers -------------------------------------------------------------------------


def test_biases_are_bound_where_the_configuration_says_so(tmp_path: Path) -> None:
    for attention_bias, mlp_bias in ((True, False), (False, True)):
        spec = LlamaSpec(layers=1, attention_bias=attention_bias, mlp_bias=mlp_bias)
        component = target(write_llama_safetensors(tmp_path / f"{mlp_bias}", spec))
        mixer, ffn = (block.mixer for block in component.layers[0].blocks)
        assert isinstance(mixer, SoftmaxAttention)
        assert isinstance(ffn, DenseFfn)
        assert [p.bias is not None for p in (mixer.q, mixer.k, mixer.v, mixer.o)] == (
            [attention_bias] * 4
        )
        assert ffn.gate is not None
        assert [p.bias is not None for p in (ffn.gate, ffn.up, ffn.down)] == [mlp_bias] * 3


def test_a_promised_bias_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = with_config(tmp_path, attention_bias=True)
    refusal(path, "tensor model.layers.0.self_attn.q_proj.bias is missing")


def test_a_bias_that_the_configuration_denies_is_refused(tmp_path: Path) -> None:
    path = with_config(tmp_path, LlamaSpec(layers=1, mlp_bias=True), mlp_bias=False)
    refusal(
        path, "tensor model.layers.0.mlp.gate_proj.bias: nothing", "reads", "and 2 more problems"
    )


def test_a_gguf_file_has_the_biases_that_it_carries(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, attention_bias=True)
    path = write_llama_gguf(tmp_path / "m.gguf", spec, without=["blk.0.attn_v.bias"])
    mixer = attention(target(path))
    assert [p.bias is not None for p in (mixer.q, mixer.k, mixer.v, mixer.o)] == [
        True,
        True,
        False,
        True,
    ]


def test_a_head_width_of_its_own(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, head_dim=32)
    for path in (
        write_llama_safetensors(tmp_path / "m", spec),
        write_llama_gguf(tmp_path / "m.gguf", spec),
    ):
        mixer = attention(target(path))
        assert (mixer.key_dim, mixer.q.outputs, mixer.o.inputs) == (32, 128, 128)
        assert mixer.scale == 1 / math.sqrt(32)
        assert mixer.rope is not None
        assert mixer.rope.dims == 32


def test_defaults_are_those_of_the_family(tmp_path: Path) -> None:
    absent = ("rms_norm_eps", "num_key_value_heads", "rope_theta", "rope_scaling", "hidden_act")
    path = write_llama_safetensors(
        tmp_path / "m",
        LlamaSpec(layers=1, kv_heads=4),
        without=(*absent, "max_position_embeddings", "tie_word_embeddings", "attention_bias"),
    )
    component = target(path)
    mixer = attention(component)
    assert (mixer.kv_heads, component.context_length, component.head.tied) == (4, 2048, False)
    assert component.head.norm.eps == 1e-6
    assert mixer.rope == Rope(layout="half", dims=16, theta=10000.0)


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "num_hidden_layers"])
def test_what_has_no_default_must_be_there(tmp_path: Path, name: str) -> None:
    path = write_llama_safetensors(tmp_path / "m", ONE, without=[name])
    refusal(path, "config.json", f"`{name}` is missing")


@pytest.mark.parametrize(
    "name",
    [
        "embedding_length",
        "attention.head_count",
        "block_count",
        "feed_forward_length",
        "context_length",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_what_has_no_default_in_gguf_must_be_there(tmp_path: Path, name: str) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", ONE, without=[f"llama.{name}"])
    refusal(path, str(path), f"`llama.{name}` is missing")


# --- rotary settings --------------------------------------------------------------------------

LLAMA3 = Scaling("llama3", 8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize("style", ["old", "new"])
def test_scalings_are_read_in_both_styles(tmp_path: Path, style: str) -> None:
    for scaling, expected in (
        (Scaling("linear", 4.0), RopeScaling("linear", 4.0)),
        (LLAMA3, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
    ):
        spec = LlamaSpec(layers=1, scaling=scaling, style="new" if style == "new" else "old")
        path = write_llama_safetensors(tmp_path / scaling.kind, spec)
        assert rope(path) == Rope("half", 16, 10000.0, scaling=expected)


def test_the_older_name_of_the_rope_type_is_read(tmp_path: Path) -> None:
    path = with_config(tmp_path, rope_scaling={"type": "linear", "factor": 2})
    assert rope(path).scaling == RopeScaling("linear", 2.0)
    path = with_config(
        tmp_path, rope_scaling={"type": "linear", "rope_type": "llama3", "factor": 2}
    )
    refusal(path, "`rope_scaling.rope_type` is 'llama3' but `rope_scaling.type` is 'linear'")


def test_a_factor_of_one_scales_nothing(tmp_path: Path) -> None:
    assert (
        rope(with_config(tmp_path, rope_scaling={"type": "linear", "factor": 1.0})).scaling is None
    )


@pytest.mark.parametrize("kind", ["dynamic", "ntk", "mystery", ""])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_an_unknown_rope_type_is_refused_by_name(tmp_path: Path, key: str, kind: str) -> None:
    path = with_config(tmp_path, **{key: {"rope_type": kind or "xpos", "factor": 8.0}})
    refusal(path, f"`{key}.rope_type` is '{kind or 'xpos'}'", "config.json")


@pytest.mark.parametrize("kind", ["longrope", "mystery"])
def test_an_unknown_rope_type_in_gguf_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = with_metadata(tmp_path, {"llama.rope.scaling.type": kind})
    refusal(path, f"`llama.rope.scaling.type` is '{kind}'", str(path))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "linear", "factor": 4.0},
        },
        {
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "rope_parameters": {"rope_type": "default"},
        },
    ],
)
def test_rotary_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, config: dict[str, object]
) -> None:
    refusal(with_config(tmp_path, **config), "must agree", "rope_parameters")


def test_rotary_settings_that_agree_are_read(tmp_path: Path) -> None:
    both = {"rope_type": "linear", "factor": 2.0}
    path = with_config(
        tmp_path, rope_theta=5e5, rope_scaling=both, rope_parameters={**both, "rope_theta": 500000}
    )
    assert rope(path) == Rope("half", 16, 500000.0, scaling=RopeScaling("linear", 2.0))


def test_a_number_of_a_scaling_that_is_not_read_is_refused(tmp_path: Path) -> None:
    path = with_config(tmp_path, rope_scaling={"rope_type": "linear", "factor": 2, "beta_fast": 32})
    refusal(path, "`rope_scaling.beta_fast`")
    path = with_config(tmp_path, rope_scaling={"rope_type": "default", "factor": 2.0})
    refusal(path, "`rope_scaling.factor`")
    path = with_config(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0})
    refusal(path, "`rope_scaling.low_freq_factor` is missing")


def test_linear_scaling_in_gguf(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, scaling=Scaling("linear", 4.0))
    path = write_llama_gguf(tmp_path / "m.gguf", spec)
    assert rope(path).scaling == RopeScaling("linear", 4.0)
    path = with_metadata(tmp_path, {"llama.rope.scale_linear": f32(4.0)})
    assert rope(path).scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama.rope.scaling.factor": f32(4.0)},
        {"llama.rope.scaling.factor": f32(4.0), "llama.rope.scaling.type": "none"},
        {
            "llama.rope.scaling.factor": f32(4.0),
            "llama.rope.scaling.type": "linear",
            "llama.rope.scale_linear": f32(2.0),
        },
    ],
)
def test_scalings_in_gguf_that_contradict_each_other_are_refused(
    tmp_path: Path, metadata: dict[str, object]
) -> None:
    refusal(with_metadata(tmp_path, metadata), "must agree", "llama.rope.")


def test_rotary_factors_are_an_operand(tmp_path: Path) -> None:
    path = write_llama_gguf(tmp_path / "m.gguf", LlamaSpec(scaling=LLAMA3))
    component = target(path)
    for layer in range(2):
        found = attention(component, layer).rope
        assert found == Rope("adjacent", 16, 10000.0, factors="target.rope/factors")


def test_rotary_factors_of_another_width_are_refused(tmp_path: Path) -> None:
    factors = np.ones(5, np.float32)
    path = write_llama_gguf(
        tmp_path / "m.gguf", ONE, extra=[("rope_freqs.weight", (5,), 0, factors.tobytes())]
    )
    refusal(path, "tensor rope_freqs.weight has shape [5], expected [8]")


# --- tied heads -------------------------------------------------------------------------------


def tied_case(tmp_path: Path, *, tied: bool, head: str) -> Path:
    spec = LlamaSpec(layers=1, tied=tied)
    weights = llama_weights(LlamaSpec(layers=1))
    stored = {
        "absent": {},
        "identical": {"lm_head.weight": weights["model.embed_tokens.weight"]},
        "different": {"lm_head.weight": weights["lm_head.weight"]},
    }[head]
    without = ["lm_head.weight"] if not tied and head == "absent" else []
    return write_llama_safetensors(tmp_path / "m", spec, extra=stored, without=without)


def test_tied_and_absent_binds_the_embedding(tmp_path: Path) -> None:
    found = compiled(tied_case(tmp_path, tied=True, head="absent"))
    head = found.graph.components[0].head
    assert (head.tied, head.weight) == (True, "target.embedding/weight")
    assert (found.notes, found.left) == ((), {})


def test_tied_and_identical_binds_the_embedding_with_a_note(tmp_path: Path) -> None:
    found = compiled(tied_case(tmp_path, tied=True, head="identical"))
    head = found.graph.components[0].head
    assert (head.tied, head.weight) == (True, "target.embedding/weight")
    assert found.left == {"lm_head.weight": "repeats the embedding"}
    (note,) = found.notes
    assert "lm_head.weight repeats the embedding" in note
    assert not note.startswith("warning:")


def test_tied_and_different_uses_the_stored_head_with_a_warning(tmp_path: Path) -> None:
    found = compiled(tied_case(tmp_path, tied=True, head="different"))
    head = found.graph.components[0].head
    assert (head.tied, head.weight) == (False, "target.output_head/weight")
    (note,) = found.notes
    assert note.startswith("warning: ")
    assert "lm_head.weight differs from the embedding" in note


def test_untied_and_absent_is_refused(tmp_path: Path) -> None:
    path = tied_case(tmp_path, tied=False, head="absent")
    refusal(path, "tensor lm_head.weight is missing and the head is not tied")


def test_untied_is_untied_even_if_the_bytes_are_equal(tmp_path: Path) -> None:
    head = compiled(tied_case(tmp_path, tied=False, head="identical")).graph.components[0].head
    assert (head.tied, head.weight) == (False, "target.output_head/weight")


def test_a_gguf_head_is_tied_if_and_only_if_it_is_not_stored(tmp_path: Path) -> None:
    for tied in (True, False):
        path = write_llama_gguf(tmp_path / f"{tied}.gguf", LlamaSpec(layers=1, tied=tied))
        assert target(path).head.tied is tied


# --- what nobody judged -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [8.0, True, "x", [1], {"a": 1}, 0, False, ""])
def test_a_key_that_may_change_the_computation_is_refused_by_name(
    tmp_path: Path, value: object
) -> None:
    path = with_config(tmp_path, depth_scaling=value)
    refusal(path, "config.json", "`depth_scaling`", "may change what the model computes")


def test_a_null_asks_for_nothing(tmp_path: Path) -> None:
    assert target(with_config(tmp_path, logits_scaling=None, depth_scaling=None))


def test_many_unknown_keys_are_counted(tmp_path: Path) -> None:
    path = with_config(tmp_path, **{f"key_{i:02}": 1 for i in range(20)})
    refusal(path, "`key_00`", "(and 19 more problems: see larql vindex3 plan)")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pretraining_tp", 2),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("is_encoder_decoder", True),
        ("add_cross_attention", True),
        ("quantization_config", {"quant_method": "gptq"}),
        ("hidden_act", "mish"),
        ("hidden_act", 3),
        ("hidden_act", ["silu"]),
        ("attention_bias", "yes"),
        ("attention_bias", 1),
        ("tie_word_embeddings", 0),
        ("rope_theta", 0),
        ("rope_theta", -1.0),
        ("rope_theta", "10000"),
        ("rope_theta", True),
        ("rope_theta", 10**400),
        ("rope_theta", float("inf")),
        ("rms_norm_eps", 0),
        ("num_attention_heads", 0),
        ("num_attention_heads", 2.5),
        ("num_attention_heads", True),
        ("num_attention_heads", [4]),
        ("num_attention_heads", "4"),
        ("num_attention_heads", 10**9),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 4),
        ("num_hidden_layers", 2),
        ("num_hidden_layers", 10**12),
        ("intermediate_size", 64),
        ("hidden_size", 32),
        ("vocab_size", 128),
        ("vocab_size", 0),
        ("head_dim", 8),
        ("head_dim", 0),
        ("rope_scaling", "linear"),
        ("rope_scaling", []),
        ("rope_parameters", 3),
        ("text_config", "llama"),
        ("text_config", {"model_type": "gemma3_text"}),
        ("max_position_embeddings", 0),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    message = refusal(with_config(tmp_path, **{key: value}))
    assert message.startswith(str(tmp_path / "m"))
    assert len(message) < 400


@pytest.mark.parametrize("value", [[1] * 100_000, "x" * 100_000, {"a": "b" * 100_000}])
@pytest.mark.parametrize("key", ["hidden_act", "hidden_size", "rope_theta", "attention_bias"])
def test_an_absurd_value_is_not_repeated_in_full(tmp_path: Path, key: str, value: object) -> None:
    assert len(refusal(with_config(tmp_path, **{key: value}), f"`{key}`")) < 400


def test_integers_written_as_floats_are_integers(tmp_path: Path) -> None:
    assert target(with_config(tmp_path, num_attention_heads=4.0)).layers


@pytest.mark.parametrize(
    ("name", "gguf"),
    [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("relu", "relu"), ("swish", "silu")],
)
def test_activations_have_their_own_names(tmp_path: Path, name: str, gguf: str) -> None:
    mixer = target(with_config(tmp_path, hidden_act=name)).layers[0].blocks[1].mixer
    assert isinstance(mixer, DenseFfn)
    assert mixer.activation == gguf


@pytest.mark.parametrize("value", ["mystery", None, 3, ["llama"], "LLAMA", "llama4"])
def test_an_unknown_family_is_refused_naming_it_and_those_known(
    tmp_path: Path, value: object
) -> None:
    path = with_config(tmp_path, model_type=value)
    refusal(path, "`model_type`", repr(value), "gemma3_text, ", ", llama, ")


@pytest.mark.parametrize("value", ["mystery", "Llama", u32(3)])
def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, value: object) -> None:
    path = with_metadata(tmp_path, {"general.architecture": value})
    refusal(path, "`general.architecture`", "gemma3, ", ", llama, ")


@pytest.mark.parametrize("key", ["llama.logit_scale", "llama.attention.clamp_kqv", "mystery.key"])
def test_a_metadata_key_that_nobody_judged_is_refused_by_name(tmp_path: Path, key: str) -> None:
    refusal(with_metadata(tmp_path, {key: f32(1.5)}), f"`{key}`")


def test_bookkeeping_metadata_changes_nothing(tmp_path: Path) -> None:
    keys = {
        "general.quantized_by": "somebody",
        "quantize.imatrix.file": "x",
        "llama.expert_count": u32(0),
    }
    assert target(with_metadata(tmp_path, keys)).layers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", u32(8)),
        ("attention.head_count", Typed("i32", [4])),
        ("attention.head_count_kv", Typed("i32", [2, 2])),
        ("attention.value_length", u32(32)),
        ("attention.key_length", u32(32)),
        ("rope.dimension_count", u32(18)),
        ("rope.dimension_count", u32(15)),
        ("block_count", u32(0xFFFFFFFF)),
        ("block_count", Typed("u64", 1 << 62)),
        ("embedding_length", u32(32)),
        ("vocab_size", u32(255)),
        ("rope.freq_base", f32(float("nan"))),
        ("rope.freq_base", f32(float("inf"))),
        ("rope.freq_base", f32(0.0)),
        ("attention.layer_norm_rms_epsilon", f32(-1.0)),
        ("context_length", "long"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = with_metadata(tmp_path, {f"llama.{key}": value})
    assert refusal(path).startswith(str(path))


def test_part_of_a_head_may_turn(tmp_path: Path) -> None:
    path = with_metadata(tmp_path, {"llama.rope.dimension_count": u32(8)})
    assert rope(path) == Rope("adjacent", 8, 10000.0)


# --- tensors ----------------------------------------------------------------------------------


def test_each_tensor_is_needed(tmp_path: Path) -> None:
    weights = llama_weights(ONE)
    for number, name in enumerate(weights):
        path = write_llama_safetensors(tmp_path / str(number), ONE, without=[name])
        refusal(path, f"tensor {name} is missing")


def test_each_tensor_has_one_shape(tmp_path: Path) -> None:
    for number, (name, values) in enumerate(llama_weights(ONE).items()):
        wrong = values[:-2] if values.ndim == 1 else values[:, :-2]
        path = write_llama_safetensors(tmp_path / str(number), ONE, extra={name: wrong})
        refusal(path, f"tensor {name} has shape {list(wrong.shape)}")


@pytest.mark.parametrize("shape", [(), (64,), (256, 64, 1), (0, 64)])
def test_an_embedding_of_any_other_rank_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    wrong = np.ones(shape, np.float32)
    for without in ([], ["vocab_size"]):
        path = write_llama_safetensors(
            tmp_path / f"m{len(without)}",
            ONE,
            extra={"model.embed_tokens.weight": wrong},
            without=without,
        )
        refusal(path)


def test_a_tensor_that_nothing_reads_is_refused_by_name(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.sinks": np.ones(4, np.float32)}
    path = write_llama_safetensors(tmp_path / "m", ONE, extra=extra)
    refusal(path, "tensor model.layers.0.self_attn.sinks: nothing in the llama family reads it")
    row = ("blk.0.attn_sinks.weight", (4,), 0, bytes(16))
    path = write_llama_gguf(tmp_path / "m.gguf", ONE, extra=[row])
    refusal(path, "tensor blk.0.attn_sinks.weight: nothing", str(path))


def test_a_layer_too_many_is_refused(tmp_path: Path) -> None:
    path = write_llama_safetensors(
        tmp_path / "m", LlamaSpec(layers=3), config={"num_hidden_layers": 2}
    )
    refusal(path, "tensor model.layers.2.", "and 8 more problems")


def test_derived_buffers_are_left_behind_by_name(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    path = write_llama_safetensors(tmp_path / "m", ONE, extra={name: np.ones(8, np.float32)})
    assert compiled(path).left == {name: "a derived buffer"}


def test_a_tensor_of_integers_is_refused_when_it_is_bound(tmp_path: Path) -> None:
    tensors = {**llama_weights(ONE), "model.norm.weight": np.ones(64, np.int32)}
    path = write_safetensors_dir(tmp_path / "m", llama_config(ONE), tensors)
    binding = next(b for b in compiled(path).bindings if b.source.name == "model.norm.weight")
    with pytest.raises(UnsupportedRefusal, match=r"model\.norm\.weight.*I32"):
        _ = binding.source.encoding


# --- names ------------------------------------------------------------------------------------


def test_the_model_is_called_what_it_calls_itself(tmp_path: Path) -> None:
    for name, expected in (
        ("owner/Tiny-Llama", "Tiny-Llama"),
        ("/home/somebody/models/Tiny/", "Tiny"),
        ("", "llama"),
        (None, "llama"),
        (3, "llama"),
        ("/", "llama"),
        ("half \ud800", "half ?"),
    ):
        assert compiled(with_config(tmp_path, _name_or_path=name)).model == expected
    assert compiled(write_llama_gguf(tmp_path / "other.gguf", ONE)).model == "Tiny Llama"


def test_the_licence_is_what_the_checkpoint_states(tmp_path: Path) -> None:
    path = write_llama_safetensors(tmp_path / "m", ONE)
    assert compiled(path).licence is None
    (path / "README.md").write_text("---\ntags:\n- x\nlicense: apache-2.0\n---\nlicense: none\n")
    assert compiled(path).licence == "apache-2.0"
    (path / "README.md").write_text("no front matter\nlicense: mit\n")
    assert compiled(path).licence is None
    assert compiled(write_llama_gguf(tmp_path / "m.gguf", ONE)).licence == "apache-2.0"


def test_end_ids_are_the_union_of_what_is_declared(tmp_path: Path) -> None:
    path = with_config(tmp_path, eos_token_id=[2, 7])
    assert compiled(path).end_ids == (2, 7)
    (path / "generation_config.json").write_text('{"eos_token_id": [9, 2]}')
    assert compiled(path).end_ids == (2, 7, 9)
    path = with_config(tmp_path, eos_token_id=None)
    assert compiled(path).end_ids == (9, 2)
    gguf = write_llama_gguf(tmp_path / "m.gguf", LlamaSpec(layers=1, tokenizer=True))
    assert compiled(gguf).end_ids == (2, 0)
