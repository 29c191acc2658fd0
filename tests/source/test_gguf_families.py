"""GGUF files of latent attention and recurrent layers: what is refused, and what files may lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.codec import ENCODINGS, decode, encode
from larql.format.graph import (
    Component,
    ExpertGroups,
    GatedDelta,
    Kda,
    LatentAttention,
    RoutedFfn,
    SoftmaxAttention,
    Ssm,
)
from larql.format.graph_json import graph_from_json, graph_to_json
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.format.source.verdict import judge
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders import gguf_conversions as gguf
from tests.builders.containers import make_container
from tests.builders.gguf import GGML_F32, GGML_Q8_0, Tensor, f32, u32, write_gguf
from tests.builders.gguf_names import Conversion, as_gguf
from tests.oracles.recorded import OWN, load_oracle

FORMS: dict[str, tuple[str, Conversion]] = {
    "deepseek2": ("deepseek_v3", gguf.DEEPSEEK),
    "qwen35": ("qwen3_5", gguf.QWEN35),
    "qwen35moe": ("qwen3_5_moe", gguf.QWEN35_MOE),
    "qwen3next": ("qwen3_next-routed", gguf.QWEN3_NEXT),
    "granitehybrid": ("granitemoehybrid-routed", gguf.GRANITE_HYBRID_ROUTED),
    "granitemoe": ("granitemoehybrid-dense", gguf.GRANITE_MOE),
    "gemma4": ("gemma4-experts", gguf.GEMMA4),
    "lfm2": ("lfm2-older", gguf.LFM2),
    "kimi-linear": ("kimi_linear", gguf.KIMI),
    "mistral3": ("mistral", Conversion("mistral3", adjacent=True)),
    "seed_oss": ("seed_oss", gguf.SEED_OSS),
}
EACH = pytest.mark.parametrize("form", FORMS)
Held = dict[str, Tensor]


def held(form: str) -> tuple[dict[str, object], Held]:
    """Metadata and tensors of a form."""
    name, conversion = FORMS[form]
    metadata, tensors = as_gguf(OWN / name / "checkpoint", conversion)
    return metadata, {tensor[0]: tensor for tensor in tensors}


def write(path: Path, metadata: Mapping[str, object], tensors: Held) -> Path:
    return write_gguf(path / "m.gguf", metadata, list(tensors.values()))[0]


def changed(path: Path, form: str, **keys: object) -> Path:
    """Write a form with keys set, dots as two underscores, or removed by None."""
    metadata, tensors = held(form)
    stated = {f"{form}.{key.replace('__', '.')}": value for key, value in keys.items()}
    metadata = {k: v for k, v in {**metadata, **stated}.items() if v is not None}
    return write(path, metadata, tensors)


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def mixers(component: Component, kind: type) -> list[Any]:
    return [
        block.mixer
        for layer in component.layers
        for block in layer.blocks
        if isinstance(block.mixer, kind)
    ]


@EACH
def test_every_key_is_judged_and_every_fact_survives_the_graph(tmp_path: Path, form: str) -> None:
    path = changed(tmp_path, form)
    found = compiled(path)
    assert {verdict.verdict for verdict in found.keys} <= {"consumed", "irrelevant"}
    assert graph_from_json(graph_to_json(found.graph), "here") == found.graph
    assert judge(path).admissible


@EACH
def test_a_key_that_nobody_knows_is_refused_by_name(tmp_path: Path, form: str) -> None:
    path = changed(tmp_path, form, attention__warp=f32(2.0))
    with pytest.raises(CompileError, match=f"`{form}.attention.warp`"):
        compiled(path)
    verdicts = {key.key: key.verdict for key in judge(path).keys}
    assert verdicts[f"{form}.attention.warp"] == "blocking"


@EACH
def test_a_tensor_that_is_missing_or_extra_is_refused_by_its_name(
    tmp_path: Path, form: str
) -> None:
    metadata, tensors = held(form)
    # Files may lack a head, biases, corrections, and values, which are then raw keys.
    may_lack = ("output.weight", ".bias", "attn_v.weight")
    kinds = {name.split(".", 2)[-1]: name for name in tensors if name.startswith("blk.")}
    for name in (*kinds.values(), "token_embd.weight"):
        if name.endswith(may_lack) and not name.endswith("ssm_dt.bias"):
            continue
        rest = {key: tensor for key, tensor in tensors.items() if key != name}
        with pytest.raises(CompileError) as refused:
            compiled(write(tmp_path, metadata, rest))
        # A missing tensor of gates and ups is taken for two that are missing.
        part = name.replace("ffn_gate_up_exps", "ffn_gate_exps").split(".")[-2]
        assert part in str(refused.value), name
    extra = ("blk.0.warp.weight", (2,), GGML_F32, bytes(8))
    with pytest.raises(CompileError, match=r"blk\.0\.warp\.weight"):
        compiled(write(tmp_path, metadata, {**tensors, extra[0]: extra}))


def test_an_architecture_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    metadata, tensors = held("qwen35")
    with pytest.raises(CompileError, match="'qwen36', a family this build does not compile"):
        compiled(write(tmp_path, {**metadata, "general.architecture": "qwen36"}, tensors))


@pytest.mark.parametrize(
    ("form", "keys", "named"),
    [
        ("mistral3", {"attention__temperature_scale": f32(0.1)}, "attention.temperature_scale"),
        ("deepseek2", {"attention__temperature_scale": f32(0.1)}, "attention.temperature_scale"),
        ("deepseek2", {"attention__kv_lora_rank": None}, "attention.kv_lora_rank"),
        ("deepseek2", {"attention__head_count_kv": u32(4)}, "attention.head_count_kv"),
        ("deepseek2", {"attention__key_length": u32(99)}, "attention.key_length"),
        ("deepseek2", {"attention__key_length_mla": u32(8)}, "attention.key_length_mla"),
        ("deepseek2", {"expert_group_count": u32(3)}, "expert_group_count"),
        ("deepseek2", {"expert_group_used_count": u32(5)}, "expert_group_used_count"),
        ("deepseek2", {"expert_group_count": u32(1)}, "expert_group_used_count"),
        ("deepseek2", {"expert_gating_func": u32(4)}, "expert_gating_func"),
        ("deepseek2", {"nextn_predict_layers": u32(3)}, "nextn_predict_layers"),
        ("qwen35", {"ssm__group_count": u32(3)}, "ssm.group_count"),
        ("qwen35", {"ssm__inner_size": u32(50)}, "ssm.inner_size"),
        ("qwen35", {"attention__recurrent_layers": [True, False]}, "attention.recurrent_layers"),
        ("qwen35", {"attention__recurrent_layers": u32(3)}, "attention.recurrent_layers"),
        ("qwen35moe", {"expert_group_count": u32(2)}, "expert_group_count"),
        ("granitehybrid", {"attention__head_count_kv": [0, 2, 4]}, "attention.head_count_kv"),
        ("granitehybrid", {"attention__head_count_kv": [0] * 9}, "attention.head_count_kv"),
        ("granitehybrid", {"ssm__state_size": None}, "ssm.state_size"),
        ("gemma4", {"attention__sliding_window_pattern": None}, "attention.sliding_window_patt"),
        ("gemma4", {"attention__shared_kv_layers": u32(1)}, "attention.shared_kv_layers"),
        ("gemma4", {"attention__scale": f32(0.5)}, "attention.scale"),
        ("gemma4", {"rope__dimension_count": u32(4)}, "rope.dimension_count"),
        ("lfm2", {"attention__sliding_window": u32(8)}, "attention.sliding_window"),
        ("lfm2", {"shortconv__l_cache": None}, "shortconv.l_cache"),
        ("kimi-linear", {"attention__head_count_kv": [0, 0, 2, 0]}, "attention.head_count_kv"),
        ("kimi-linear", {"kda__head_dim": None}, "kda.head_dim"),
    ],
)  # fmt: skip
def test_keys_that_contradict_or_ask_for_more_are_refused(
    tmp_path: Path, form: str, keys: dict[str, object], named: str
) -> None:
    with pytest.raises(CompileError, match=f"`{form}.{named}"):
        compiled(changed(tmp_path, form, **keys))


def test_what_files_bake_in_is_a_fact_of_the_graph(tmp_path: Path) -> None:
    facts = {
        form: compiled(changed(tmp_path, form)).graph.components[0]
        for form in ("deepseek2", "qwen35", "qwen3next", "granitehybrid", "kimi-linear")
    }
    for latent in mixers(facts["deepseek2"], LatentAttention):
        assert latent.k_up_rows == "latent"
        assert (latent.k_up.outputs, latent.k_up.inputs) == (4 * 20, 12)
    for form, order in (("qwen35", "tiled"), ("qwen3next", None)):
        for delta in mixers(facts[form], GatedDelta):
            assert (delta.rates, delta.value_order) == ("negated", order)
        norms = [block.norm for layer in facts[form].layers for block in layer.blocks]
        assert {norm.offset for norm in norms if norm is not None} == {0.0}
    assert {ssm.rates for ssm in mixers(facts["granitehybrid"], Ssm)} == {"negated"}
    assert {kda.rates for kda in mixers(facts["kimi-linear"], Kda)} == {"negated"}
    routers = [ffn.router for ffn in mixers(facts["deepseek2"], RoutedFfn)]
    assert {router.score for router in routers} == {"sigmoid"}
    assert {router.groups for router in routers} == {ExpertGroups(4, 2, "top2_sum")}


def test_routers_without_corrections_are_a_softmax_whose_groups_rank_by_their_best(
    tmp_path: Path,
) -> None:
    metadata, tensors = held("deepseek2")
    older = {name: tensor for name, tensor in tensors.items() if "exp_probs_b" not in name}
    component = compiled(write(tmp_path, metadata, older)).graph.components[0]
    for ffn in mixers(component, RoutedFfn):
        assert (ffn.router.score, ffn.router.correction) == ("softmax", None)
        assert ffn.router.groups == ExpertGroups(4, 2, "max")


@pytest.mark.parametrize("form", ["granite", "granitehybrid", "granitemoe"])
def test_whether_granite_turns_is_said_by_a_key_of_its_scaling(tmp_path: Path, form: str) -> None:
    source = "granitemoe" if form == "granite" else form
    metadata, tensors = held(source)
    stated = {key.replace(f"{source}.", f"{form}."): value for key, value in metadata.items()}
    stated["general.architecture"] = form
    for turns in (True, False):
        stated[f"{form}.rope.scaling.finetuned"] = turns
        stated[f"{form}.expert_used_count"] = u32(0 if form == "granite" else 2)
        if form == "granite":
            stated["granite.feed_forward_length"] = u32(40)
        component = compiled(write(tmp_path, stated, tensors)).graph.components[0]
        ropes = [mixer.rope for mixer in mixers(component, SoftmaxAttention)]
        assert ropes
        assert all((rope is not None) == turns for rope in ropes)


@EACH
def test_outer_axes_of_one_element_may_be_dropped(tmp_path: Path, form: str) -> None:
    """Programs that quantise files drop them."""
    metadata, tensors = held(form)
    before = compiled(write(tmp_path, metadata, tensors))
    short: Held = {}
    for name, (_name, shape, kind, data) in tensors.items():
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        short[name] = (name, shape, kind, data)
    after = compiled(write(tmp_path, metadata, short))
    assert after.graph == before.graph


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_turned_keys_may_be_quantised(tmp_path: Path, backend: str) -> None:
    """They are carried as they are: rows of a latent's numbers, in blocks along a head's key."""
    oracle = load_oracle("deepseek_v3", OWN)
    metadata, tensors = held("deepseek2")
    wide = {**metadata, "deepseek2.attention.key_length_mla": u32(40)}
    found = []
    for kind in (GGML_F32, GGML_Q8_0):
        made = dict(tensors)
        for i in range(3):
            generator = np.random.default_rng(i)
            q = (generator.standard_normal((160, 24)) * 0.2).astype("<f4")
            made[f"blk.{i}.attn_q_b.weight"] = (
                f"blk.{i}.attn_q_b.weight", q.shape, GGML_F32, q.tobytes()
            )  # fmt: skip
            keys = (generator.standard_normal((80, 32)) * 0.2).astype("<f4")
            stored = encode(ENCODINGS["q8_0"], keys)
            if kind == GGML_F32:
                stored = np.ascontiguousarray(decode(ENCODINGS["q8_0"], stored, 32), "<f4")
            name = f"blk.{i}.attn_k_b.weight"
            made[name] = (name, (4, 20, 32), kind, stored.tobytes())
        place = tmp_path / str(kind)
        place.mkdir()
        container = make_container(write(place, wide, made), place / "c")
        tokens = oracle.tokens[:16]
        session = Session(open_run(container, RunOptions(backend=backend)).prepared, len(tokens))
        found.append(session.logits(session.advance(tokens)))
    assert np.abs(found[0] - found[1]).max() <= 1e-5 * np.abs(found[0]).max()


def test_layers_that_draft_are_left_behind(tmp_path: Path) -> None:
    metadata, tensors = held("qwen35")
    drafts = 4
    last = {
        name.replace("blk.3.", f"blk.{drafts}."): (
            name.replace("blk.3.", f"blk.{drafts}."), *tensor[1:]
        )
        for name, tensor in tensors.items()
        if name.startswith("blk.3.")
    }  # fmt: skip
    for part, shape in (("eh_proj", (32, 64)), ("enorm", (32,)), ("hnorm", (32,))):
        name = f"blk.{drafts}.nextn.{part}.weight"
        last[name] = (name, shape, GGML_F32, bytes(4 * int(np.prod(shape))))
    stated = {
        **metadata,
        "qwen35.block_count": u32(5),
        "qwen35.nextn_predict_layers": u32(1),
        "qwen35.attention.recurrent_layers": [True, True, True, False, False],
    }
    whole = compiled(write(tmp_path, stated, {**tensors, **last}))
    assert whole.graph == compiled(write(tmp_path, metadata, tensors)).graph
    assert set(last) == set(whole.left)


def test_keys_of_state_spaces_say_nothing_where_no_layer_is_one(tmp_path: Path) -> None:
    found = compiled(changed(tmp_path, "granitemoe"))
    verdicts = {key.key: key.verdict for key in found.keys}
    assert verdicts["granitemoe.ssm.state_size"] == "irrelevant"


def test_a_convolution_s_bias_that_no_file_has_is_refused(tmp_path: Path) -> None:
    conversion = replace(FORMS["lfm2"][1], keys=lambda config: {
        **gguf.LFM2.keys({**config, "block_ff_dim": 56}),
    })  # fmt: skip
    metadata, tensors = as_gguf(OWN / "lfm2" / "checkpoint", conversion)
    with pytest.raises(CompileError, match=r"shortconv\.\w+\.bias"):
        compiled(write(tmp_path, metadata, {tensor[0]: tensor for tensor in tensors}))
