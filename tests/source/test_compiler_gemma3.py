"""Gemma 3 checkpoints: offset norms, windows, two rotary bases, both styles of configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.graph import Component, DenseFfn, Norm, Rope, RopeScaling, SoftmaxAttention
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from tests.builders.gguf import f32, u32
from tests.builders.models import (
    GemmaSpec,
    config_of,
    gemma_config,
    gemma_weights,
    write_gemma_gguf,
    write_gemma_safetensors,
)
from tests.builders.safetensors import write_safetensors_dir

FULL, SLIDING = "full_attention", "sliding_attention"
ONE = GemmaSpec(layers=1)


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(path: Path) -> Component:
    (component,) = compiled(path).graph.components
    return component


def attentions(component: Component) -> list[SoftmaxAttention]:
    mixers = [layer.blocks[0].mixer for layer in component.layers]
    assert all(isinstance(mixer, SoftmaxAttention) for mixer in mixers)
    return mixers  # type: ignore[return-value]


def norms(component: Component) -> list[Norm]:
    found = [component.head.norm]
    for layer in component.layers:
        for block in layer.blocks:
            mixer = block.mixer
            found += [n for n in (block.norm, block.post_norm) if n is not None]
            if isinstance(mixer, SoftmaxAttention):
                found += [n for n in (mixer.q_norm, mixer.k_norm) if n is not None]
    return found


def refusal(path: Path, *words: str) -> str:
    with pytest.raises(CompileError) as caught:
        compiled(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def with_config(tmp_path: Path, spec: GemmaSpec = ONE, /, **config: object) -> Path:
    return write_gemma_safetensors(tmp_path / "m", spec, config=config)


def with_metadata(tmp_path: Path, metadata: Mapping[str, object], spec: GemmaSpec = ONE) -> Path:
    keys = {f"gemma3.{key}": value for key, value in metadata.items()}
    return write_gemma_gguf(tmp_path / "m.gguf", spec, metadata=keys)


STYLES: tuple[GemmaSpec, ...] = (
    GemmaSpec(),
    GemmaSpec(style="new"),
    GemmaSpec(nested=True),
    GemmaSpec(style="new", nested=True, dtype="bf16", shards=2),
)


@pytest.mark.parametrize("spec", STYLES)
def test_the_tiny_model_is_described_in_full(tmp_path: Path, spec: GemmaSpec) -> None:
    component = target(write_gemma_safetensors(tmp_path / "m", spec))
    assert component.embed.scale == math.sqrt(64)
    assert (component.hidden_size, component.vocab_size, component.context_length) == (64, 256, 512)
    assert len(component.layers) == 6
    for layer, mixer in zip(component.layers, attentions(component), strict=True):
        full = layer.index == 5
        assert mixer.window == (None if full else 4)
        assert mixer.rope == Rope("half", 32, 1e6 if full else 1e4)
        assert mixer.scale == pytest.approx(32**-0.5, rel=1e-15)
        assert (mixer.heads, mixer.kv_heads, mixer.key_dim, mixer.value_dim) == (4, 1, 32, 32)
        assert mixer.softcap is None
        assert [block.site for block in layer.blocks] == ["attention", "ffn"]
        ffn = layer.blocks[1].mixer
        assert isinstance(ffn, DenseFfn)
        assert ffn.activation == "gelu_tanh"
    found = norms(component)
    assert len(found) == 1 + 6 * 6
    assert {(n.kind, n.eps, n.offset) for n in found} == {("rms", 1e-6, 1.0)}
    assert component.head.tied
    assert component.head.softcap is None


@pytest.mark.parametrize("spec", STYLES)
def test_all_styles_and_gguf_describe_one_model(tmp_path: Path, spec: GemmaSpec) -> None:
    """GGUF stores the 1 in its norms, and nothing else differs."""
    hugging_face = target(write_gemma_safetensors(tmp_path / "m", spec))
    gguf = target(write_gemma_gguf(tmp_path / "m.gguf", spec))
    assert {norm.offset for norm in norms(hugging_face)} == {1.0}
    assert {norm.offset for norm in norms(gguf)} == {0.0}

    def plain(norm: Norm | None) -> Norm | None:
        return None if norm is None else replace(norm, eps=0.0, offset=0.0)

    def alike(component: Component) -> Component:
        layers = []
        for layer in component.layers:
            blocks = []
            for block in layer.blocks:
                mixer = block.mixer
                if isinstance(mixer, SoftmaxAttention):
                    mixer = replace(mixer, q_norm=plain(mixer.q_norm), k_norm=plain(mixer.k_norm))
                blocks.append(
                    replace(
                        block, mixer=mixer, norm=plain(block.norm), post_norm=plain(block.post_norm)
                    )
                )
            layers.append(replace(layer, blocks=tuple(blocks)))
        head = component.head
        return replace(
            component,
            layers=tuple(layers),
            head=replace(head, norm=replace(head.norm, eps=0.0, offset=0.0)),
        )

    assert alike(gguf) == alike(hugging_face)


def test_every_tensor_fills_one_operand(tmp_path: Path) -> None:
    for path in (write_gemma_safetensors(tmp_path / "m"), write_gemma_gguf(tmp_path / "m.gguf")):
        with open_checkpoint(path) as checkpoint:
            found = compile_checkpoint(checkpoint)
            assert sorted(b.source.name for b in found.bindings) == sorted(checkpoint.tensors)
        assert found.left == {}


# --- rotary settings --------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["old", "new", "gguf"])
def test_a_linear_scaling_holds_for_full_layers_only(tmp_path: Path, style: str) -> None:
    spec = GemmaSpec(factor=8.0, style="new" if style == "new" else "old")
    if style == "gguf":
        path = write_gemma_gguf(tmp_path / "m.gguf", spec)
    else:
        path = write_gemma_safetensors(tmp_path / "m", spec)
    ropes = [mixer.rope for mixer in attentions(target(path))]
    assert ropes[5] == Rope("half", 32, 1e6, scaling=RopeScaling("linear", 8.0))
    assert ropes[:5] == [Rope("half", 32, 1e4)] * 5


@pytest.mark.parametrize("kind", ["dynamic", "mystery"])
def test_an_unknown_rope_type_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    refusal(
        with_config(tmp_path, rope_scaling={"rope_type": kind, "factor": 8.0}),
        f"`rope_scaling.rope_type` is '{kind}'",
    )
    document: Any = gemma_config(GemmaSpec(layers=1, style="new"))["rope_parameters"]
    document[SLIDING]["rope_type"] = kind
    path = with_config(tmp_path, GemmaSpec(layers=1, style="new"), rope_parameters=document)
    refusal(path, f"`rope_parameters.{SLIDING}.rope_type` is '{kind}'")
    refusal(
        with_metadata(tmp_path, {"rope.scaling.type": kind}),
        f"`gemma3.rope.scaling.type` is '{kind}'",
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_theta": 5e5}, "`rope_theta` is 500000.0 but `rope_parameters.full_attention"),
        ({"rope_local_base_freq": 5e5}, "`rope_local_base_freq` is 500000.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "`rope_scaling`"),
    ],
)
def test_rotary_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, config: dict[str, object], words: str
) -> None:
    refusal(with_config(tmp_path, GemmaSpec(style="new"), **config), words)


def test_rotary_settings_that_agree_are_read(tmp_path: Path) -> None:
    config = {"rope_theta": 1e6, "rope_local_base_freq": 10000, "sliding_window_pattern": 6}
    assert target(with_config(tmp_path, GemmaSpec(style="new"), **config)).layers


def test_rotary_settings_of_a_layer_type_must_be_there(tmp_path: Path) -> None:
    path = with_config(
        tmp_path,
        GemmaSpec(layers=1, style="new"),
        rope_parameters={FULL: {"rope_theta": 1e6, "rope_type": "default"}},
    )
    refusal(path, f"says nothing of layer type '{SLIDING}'")


def test_a_number_of_a_layer_type_that_is_not_read_is_refused(tmp_path: Path) -> None:
    document: Any = gemma_config(GemmaSpec(layers=1, style="new"))["rope_parameters"]
    document[SLIDING]["beta_fast"] = 32
    path = with_config(tmp_path, GemmaSpec(layers=1, style="new"), rope_parameters=document)
    refusal(path, f"`rope_parameters.{SLIDING}.beta_fast`")
    document[SLIDING].pop("beta_fast")
    document["chunked_attention"] = {"rope_theta": 1.0}
    path = with_config(tmp_path, GemmaSpec(layers=1, style="new"), rope_parameters=document)
    refusal(path, "`rope_parameters.chunked_attention`")


def test_a_local_base_in_gguf_is_read_where_it_is_stated(tmp_path: Path) -> None:
    path = with_metadata(tmp_path, {"rope.freq_base_swa": f32(5000.0)})
    assert attentions(target(path))[0].rope == Rope("half", 32, 5000.0)


# --- which layers slide -----------------------------------------------------------------------


def windows(path: Path) -> list[int | None]:
    return [mixer.window for mixer in attentions(target(path))]


@pytest.mark.parametrize("pattern", [1, 2, 3, 4])
def test_the_pattern_counts_from_the_first_layer(tmp_path: Path, pattern: int) -> None:
    spec = GemmaSpec(layers=6, pattern=pattern)
    expected = [None if (i + 1) % pattern == 0 else 4 for i in range(6)]
    assert windows(write_gemma_safetensors(tmp_path / "old", spec)) == expected
    new = replace(spec, style="new")
    assert windows(write_gemma_safetensors(tmp_path / "new", new)) == expected
    path = with_metadata(
        tmp_path, {"attention.sliding_window_pattern": u32(pattern)}, GemmaSpec(layers=6)
    )
    assert windows(path) == expected


def test_layer_types_decide_where_they_are_stated(tmp_path: Path) -> None:
    spec = GemmaSpec(layers=3, style="new")
    types = [FULL, SLIDING, FULL]
    assert windows(with_config(tmp_path, spec, layer_types=types)) == [None, 4, None]
    # What is written beside every list, with its default, does not contradict it.
    path = with_config(tmp_path / "b", spec, layer_types=types, _sliding_window_pattern=6)
    assert windows(path) == [None, 4, None]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"layer_types": [SLIDING] * 5}, "5 entries"),
        ({"layer_types": [SLIDING] * 7}, "7 entries"),
        ({"layer_types": [SLIDING] * 5 + ["chunked"]}, "'chunked'"),
        ({"layer_types": "sliding"}, "not an array of strings"),
        ({"layer_types": [1] * 6}, "not an array of strings"),
        ({"sliding_window_pattern": 2}, "`layer_types`"),
        ({"_sliding_window_pattern": 2}, "but `_sliding_window_pattern` is 2; they must agree"),
        ({"sliding_window": None}, "without a window"),
        ({"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping`"),
        ({"sliding_window_pattern": 0}, "`sliding_window_pattern`"),
        ({"sliding_window": 0}, "`sliding_window`"),
        ({"sliding_window": "wide"}, "`sliding_window`"),
        ({"num_hidden_layers": 10**12}, "`num_hidden_layers`"),
    ],
)
def test_layer_types_that_do_not_fit_are_refused(
    tmp_path: Path, config: dict[str, object], words: str
) -> None:
    refusal(with_config(tmp_path, GemmaSpec(style="new"), **config), words)


def test_two_patterns_must_agree(tmp_path: Path) -> None:
    refusal(with_config(tmp_path, _sliding_window_pattern=5), "must agree")


def test_a_layer_count_beyond_reason_is_refused_at_once(tmp_path: Path) -> None:
    path = with_metadata(tmp_path, {"block_count": u32(0xFFFFFFFF)})
    refusal(path, "`gemma3.block_count` is 4294967295, but the checkpoint has only 15 tensors")


# --- the query scale --------------------------------------------------------------------------


def test_the_query_scale_is_stated_in_a_configuration(tmp_path: Path) -> None:
    path = write_gemma_safetensors(tmp_path / "m", GemmaSpec(layers=1, query_pre_attn_scalar=168.0))
    assert attentions(target(path))[0].scale == pytest.approx(168**-0.5, rel=1e-15)


def test_the_query_scale_of_a_gguf_file_follows_its_size(tmp_path: Path) -> None:
    """Only the largest model, of 62 layers, scales by hidden / heads."""
    small = write_gemma_gguf(tmp_path / "a.gguf", ONE)
    assert attentions(target(small))[0].scale == pytest.approx(32**-0.5, rel=1e-15)
    spec = GemmaSpec(layers=62, hidden=32, ffn=32, vocab=64)
    large = write_gemma_gguf(tmp_path / "b.gguf", spec)
    assert attentions(target(large))[0].scale == pytest.approx(8**-0.5, rel=1e-15)


# --- softcaps, biases, heads ------------------------------------------------------------------


def test_softcaps_are_read(tmp_path: Path) -> None:
    component = target(with_config(tmp_path, final_logit_softcapping=30.0))
    assert attentions(component)[0].softcap is None
    assert component.head.softcap == 30.0
    component = target(with_metadata(tmp_path, {"final_logit_softcapping": f32(30.0)}))
    assert component.head.softcap == 30.0


def test_a_stored_head_in_gguf_is_used(tmp_path: Path) -> None:
    row = ("output.weight", (256, 64), 0, np.ones((256, 64), np.float32).tobytes())
    path = write_gemma_gguf(tmp_path / "m.gguf", ONE, extra=[row])
    assert not target(path).head.tied


def test_a_head_is_tied_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    assert target(with_config(tmp_path)).head.tied
    refusal(with_config(tmp_path, tie_word_embeddings=False), "tensor lm_head.weight is missing")


def test_a_bias_is_on_all_layers_or_none(tmp_path: Path) -> None:
    spec = GemmaSpec(layers=3)
    weights = dict(gemma_weights(spec))
    name = "model.layers.{}.mlp.gate_proj"
    weights |= {
        f"{name.format(i)}.bias": np.ones(len(weights[f"{name.format(i)}.weight"]), np.float32)
        for i in (0, 2)
    }
    config = gemma_config(spec)
    refusal(
        write_safetensors_dir(tmp_path, config, weights),
        f"tensor {name.format(1)}.bias is missing, though layer 0 has one",
    )


# --- nested checkpoints -----------------------------------------------------------------------


def test_the_vision_tower_is_named_and_left(tmp_path: Path) -> None:
    found = compiled(write_gemma_safetensors(tmp_path / "m", GemmaSpec(nested=True)))
    assert found.left == {
        "vision_tower.patch.weight": "not the text model",
        "multi_modal_projector.weight": "not the text model",
    }
    assert found.notes == ("2 tensors outside the text model were left behind",)
    verdicts = {v.key: v.verdict for v in found.keys}
    assert verdicts["vision_config"] == "irrelevant"
    assert verdicts["text_config.hidden_size"] == "consumed"
    assert "blocking" not in verdicts.values()
    assert found.end_ids == (2, 3)


def test_a_vision_tensor_in_a_text_checkpoint_is_not_left(tmp_path: Path) -> None:
    extra = {"vision_tower.patch.weight": np.ones(4, np.float32)}
    path = write_gemma_safetensors(tmp_path / "m", ONE, extra=extra)
    refusal(path, "tensor vision_tower.patch.weight: nothing in the gemma3 family reads it")


def nested_with(tmp_path: Path, outer: dict[str, object], inner: dict[str, object]) -> Path:
    spec = GemmaSpec(layers=1, nested=True)
    document: Any = gemma_config(spec)
    document["text_config"] |= inner
    return write_gemma_safetensors(tmp_path / "m", spec, config={**document, **outer})


@pytest.mark.parametrize(
    ("outer", "inner", "words"),
    [
        ({}, {"model_type": "llama"}, "`model_type` is 'gemma3' but `text_config.model_type`"),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, "`tie_word_embeddings`"),
        ({"speech_config": {}}, {}, "`speech_config`"),
        ({}, {"clamp": 1.0}, "`text_config.clamp`"),
        ({"text_config": []}, {}, "`text_config`"),
        ({"text_config": {}}, {}, "`text_config.num_hidden_layers` is 26"),
    ],
)
def test_nested_configurations_are_judged_too(
    tmp_path: Path, outer: dict[str, object], inner: dict[str, object], words: str
) -> None:
    refusal(nested_with(tmp_path, outer, inner), words)


def test_end_ids_of_both_levels_are_taken(tmp_path: Path) -> None:
    found = compiled(nested_with(tmp_path, {"eos_token_id": 9}, {"eos_token_id": [9, 7]}))
    assert found.end_ids == (9, 7)


def test_the_prefix_of_the_text_model_is_found(tmp_path: Path) -> None:
    """Newer checkpoints call the text model ``model.language_model``."""
    spec = GemmaSpec(layers=1, nested=True)
    weights = gemma_weights(spec)
    path = write_gemma_safetensors(tmp_path / "m", GemmaSpec(layers=1))
    document = config_of(write_gemma_safetensors(tmp_path / "n", spec))
    renamed = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in weights.items()
    }
    renamed["model.vision_tower.x"] = np.ones(4, np.float32)
    new = write_safetensors_dir(tmp_path / "new", document, dict(renamed))
    assert target(new) == target(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_bidirectional_attention", True),
        ("hidden_activation", "mish"),
        ("query_pre_attn_scalar", 0),
        ("query_pre_attn_scalar", "auto"),
        ("head_dim", 16),
        ("attn_logit_softcapping", -1.0),
        ("final_logit_softcapping", 0.0),
        ("altup_num_inputs", 4),
        ("attention_bias", True),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    refusal(with_config(tmp_path, **{key: value}), str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.value_length", u32(64)),
        ("rope.dimension_count", u32(16)),
        ("attention.sliding_window", u32(0)),
        ("rope.local.freq_base", f32(1e4)),
        ("attention.shared_kv_layers", u32(2)),
    ],
)
def test_metadata_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, key: str, value: object
) -> None:
    refusal(with_metadata(tmp_path, {key: value}), f"`gemma3.{key}`")


def test_each_tensor_is_needed(tmp_path: Path) -> None:
    for number, name in enumerate(gemma_weights(ONE)):
        path = write_gemma_safetensors(tmp_path / str(number), ONE, without=[name])
        refusal(path, f"tensor {name} is missing")
