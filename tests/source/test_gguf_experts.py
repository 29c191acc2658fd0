"""Routed layers of GGUF files: packed experts in every form, and what is refused by which key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import CompileError
from larql.format.codec import ENCODINGS, decode, encode
from larql.format.container import Container, verify_container
from larql.format.graph import Component, DenseFfn, RoutedFfn, SoftmaxAttention
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import Compiled, compile_checkpoint
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import make_container
from tests.builders.gguf import GGML_F32, GGML_Q8_0, Tensor, f32, u32, write_gguf

HIDDEN, WIDTH, EXPERTS = 64, 32, 3
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
Tensors = dict[str, Tensor]
USUAL = ("llama", "qwen3moe", "olmoe")
KEYS: dict[str, object] = {
    "block_count": u32(2),
    "context_length": u32(64),
    "embedding_length": u32(HIDDEN),
    "feed_forward_length": u32(96),
    "expert_feed_forward_length": u32(WIDTH),
    "expert_count": u32(EXPERTS),
    "expert_used_count": u32(2),
    "attention.head_count": u32(4),
    "attention.head_count_kv": u32(2),
    "attention.layer_norm_rms_epsilon": f32(1e-5),
    "rope.freq_base": f32(500.0),
}


def tensors(architecture: str) -> Tensors:
    generator = np.random.default_rng(4)
    found: Tensors = {}

    def add(name: str, *shape: int) -> None:
        spread = 0.3 if len(shape) == 1 else shape[-1] ** -0.5
        values = (generator.standard_normal(shape) * spread + (len(shape) == 1)).astype("<f4")
        found[name] = (name, shape, GGML_F32, values.tobytes())

    add("token_embd.weight", 96, HIDDEN)
    add("output.weight", 96, HIDDEN)
    add("output_norm.weight", HIDDEN)
    for i in range(2):
        add(f"blk.{i}.attn_norm.weight", HIDDEN)
        norm = "ffn_norm" if architecture in USUAL else "post_attention_norm"
        add(f"blk.{i}.{norm}.weight", HIDDEN)
        for part, rows in (("q", HIDDEN), ("k", 32), ("v", 32), ("output", HIDDEN)):
            add(f"blk.{i}.attn_{part}.weight", rows, HIDDEN)
        add(f"blk.{i}.ffn_gate_inp.weight", EXPERTS, HIDDEN)
        add(f"blk.{i}.ffn_gate_exps.weight", EXPERTS, WIDTH, HIDDEN)
        add(f"blk.{i}.ffn_up_exps.weight", EXPERTS, WIDTH, HIDDEN)
        add(f"blk.{i}.ffn_down_exps.weight", EXPERTS, HIDDEN, WIDTH)
        if architecture == "gpt-oss":
            add(f"blk.{i}.attn_sinks.weight", 4)
            add(f"blk.{i}.ffn_gate_inp.bias", EXPERTS)
            for part, width in (("gate", WIDTH), ("up", WIDTH), ("down", HIDDEN)):
                add(f"blk.{i}.ffn_{part}_exps.bias", EXPERTS, width)
        if architecture == "qwen3moe":
            add(f"blk.{i}.attn_q_norm.weight", 16)
            add(f"blk.{i}.attn_k_norm.weight", 16)
        if architecture == "olmoe":
            add(f"blk.{i}.attn_q_norm.weight", HIDDEN)
            add(f"blk.{i}.attn_k_norm.weight", 32)
    return found


def write(
    path: Path, architecture: str, keys: Mapping[str, object] = {}, made: Tensors | None = None
) -> Path:
    metadata: dict[str, object] = {"general.architecture": architecture}
    stated = {key: value for key, value in {**KEYS, **keys}.items() if value is not None}
    metadata |= {f"{architecture}.{key}": value for key, value in stated.items()}
    held = tensors(architecture) if made is None else made
    return write_gguf(path / "m.gguf", metadata, list(held.values()))[0]


def compiled(path: Path) -> Compiled:
    with open_checkpoint(path) as checkpoint:
        return compile_checkpoint(checkpoint)


def target(path: Path) -> Component:
    return compiled(path).graph.components[0]


def routed(component: Component, layer: int) -> RoutedFfn:
    mixer = component.layers[layer].blocks[1].mixer
    assert isinstance(mixer, RoutedFfn)
    return mixer


def logits(container: Container, backend: str) -> Any:
    session = Session(open_run(container, RunOptions(backend=backend)).prepared, len(TOKENS))
    return session.logits(session.advance(TOKENS))


@pytest.mark.parametrize(
    ("architecture", "renormalise", "score"),
    [("llama", True, "softmax"), ("qwen3moe", True, "softmax"), ("olmoe", False, "softmax"),
     ("glm4moe", True, "sigmoid")],
)  # fmt: skip
def test_what_no_key_states_is_what_the_architecture_does(
    tmp_path: Path, architecture: str, renormalise: bool, score: str
) -> None:
    router = routed(target(write(tmp_path, architecture)), 1).router
    assert (router.renormalise, router.score, router.scale) == (renormalise, score, 1.0)
    assert (router.top, router.correction, router.groups) == (2, None, None)
    (tmp_path / "b").mkdir()
    keys = {"expert_weights_norm": not renormalise, "expert_weights_scale": f32(2.5),
            "expert_gating_func": u32(1 if score == "sigmoid" else 2)}  # fmt: skip
    other = routed(target(write(tmp_path / "b", architecture, keys)), 1).router
    assert (other.renormalise, other.scale) == (not renormalise, 2.5)
    assert other.score != score


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_used_count": u32(4)}, "`qwen3moe.expert_used_count` is 4, of 3 experts"),
        ({"expert_used_count": None}, "`qwen3moe.expert_used_count` is missing"),
        ({"expert_count": None}, "`qwen3moe.expert_count` is missing"),
        ({"expert_count": u32(4)}, "ffn_gate_inp.weight has shape [3, 64], expected [4, 64]"),
        ({"expert_gating_func": u32(3)}, "`qwen3moe.expert_gating_func` is 3, which this build"),
        ({"expert_group_count": u32(2)}, "`qwen3moe.expert_group_count` is 2, a computation"),
        ({"expert_weights_scale": f32(-1.0)}, "`qwen3moe.expert_weights_scale` is -1.0"),
        ({"expert_feed_forward_length": None}, "ffn_gate_exps.weight has shape [3, 32, 64], ex"),
        ({"expert_shared_count": u32(1)}, "tensor blk.0.ffn_gate_shexp.weight is missing"),
        ({"leading_dense_block_count": u32(1)}, "tensor blk.0.ffn_gate.weight is missing"),
        ({"experts_per_group": u32(3)}, "`qwen3moe.experts_per_group`: unknown to this family"),
    ],
)
def test_what_is_refused_is_named(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(write(tmp_path, "qwen3moe", keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_experts_that_no_key_counts_are_read_by_nothing(tmp_path: Path) -> None:
    made = tensors("llama")
    for i in range(2):
        for part, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
            name = f"blk.{i}.ffn_{part}.weight"
            made[name] = (name, shape, GGML_F32, np.zeros(shape, "<f4").tobytes())
    keys = {"expert_count": u32(0), "expert_used_count": u32(0),
            "expert_feed_forward_length": None}  # fmt: skip
    with pytest.raises(CompileError, match=r"ffn_gate_inp\.weight: nothing .* \(and 7 more"):
        compiled(write(tmp_path, "llama", keys, made))


@pytest.mark.parametrize("part", ["gate", "up", "down"])
def test_a_missing_matrix_is_named(tmp_path: Path, part: str) -> None:
    made = tensors("olmoe")
    del made[f"blk.1.ffn_{part}_exps.weight"]
    with pytest.raises(CompileError, match=rf"tensor blk\.1\.ffn_{part}_exps\.weight is missing"):
        compiled(write(tmp_path, "olmoe", {}, made))


def _fused(made: Tensors) -> Tensors:
    """The same with gate and up of a layer's experts in one tensor."""
    found = dict(made)
    for i in range(2):
        gate, up = (
            np.frombuffer(found.pop(f"blk.{i}.ffn_{part}_exps.weight")[3], "<f4").reshape(
                EXPERTS, WIDTH, HIDDEN
            )
            for part in ("gate", "up")
        )
        both, name = np.concatenate([gate, up], axis=1), f"blk.{i}.ffn_gate_up_exps.weight"
        found[name] = (name, both.shape, GGML_F32, both.tobytes())
    return found


def _quantised(made: Tensors) -> Tensors:
    """The same with experts of 8 bits."""
    found = dict(made)
    for name, (_, shape, _, data) in made.items():
        if "_exps" in name:
            rows = np.frombuffer(data, "<f4").reshape(-1, shape[-1])
            stored = encode(ENCODINGS["q8_0"], rows.astype(np.float32))
            found[name] = (name, shape, GGML_Q8_0, stored.tobytes())
    return found


def _rounded(made: Tensors) -> Tensors:
    """The same with the values that experts of 8 bits stand for."""
    found = dict(made)
    for name, (_, shape, _, data) in _quantised(made).items():
        if "_exps" in name:
            q8 = ENCODINGS["q8_0"]
            stored = np.frombuffer(data, np.uint8).reshape(-1, q8.row_bytes(shape[-1]))
            values = decode(q8, stored, shape[-1]).astype("<f4")
            found[name] = (name, shape, GGML_F32, values.tobytes())
    return found


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize(("form", "same"), [(_fused, lambda made: made), (_quantised, _rounded)])
def test_forms_of_experts_that_mean_the_same(
    tmp_path: Path,
    form: Callable[[Tensors], Tensors],
    same: Callable[[Tensors], Tensors],
    backend: str,
) -> None:
    made, found = tensors("qwen3moe"), []
    for number, held in enumerate((form(made), same(made))):
        at = tmp_path / str(number)
        at.mkdir()
        container = make_container(write(at, "qwen3moe", {}, held), at / "c")
        assert verify_container(container, SilentProgress()) == []
        found.append(logits(container, backend))
    assert np.abs(found[0] - found[1]).max() < 2e-6 * np.abs(found[1]).max()
    if form is _fused:
        assert found[0].tobytes() == found[1].tobytes()


def _in_mxfp4(made: Tensors) -> tuple[Tensors, Tensors]:
    """Random experts of 4 bits, and the values that they stand for."""
    generator, mxfp4 = np.random.default_rng(6), ENCODINGS["mxfp4"]
    coded, plain = dict(made), dict(made)
    for name, (_, shape, _, _) in made.items():
        if name.endswith("_exps.weight"):
            stored = generator.integers(0, 256, (shape[0] * shape[1], shape[2] // 32, 17), np.uint8)
            stored[:, :, 0] = generator.integers(120, 124, stored.shape[:2])
            rows = stored.reshape(len(stored), -1)
            values = decode(mxfp4, rows, shape[2]).astype("<f4")
            coded[name] = (name, shape, mxfp4.ggml_type or 39, rows.tobytes())
            plain[name] = (name, shape, GGML_F32, values.tobytes())
    return coded, plain


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_clamped_experts_of_4_bits_are_the_numbers_that_they_stand_for(
    tmp_path: Path, backend: str
) -> None:
    found = []
    for number, held in enumerate(_in_mxfp4(tensors("gpt-oss"))):
        at = tmp_path / str(number)
        at.mkdir()
        container = make_container(write(at, "gpt-oss", {}, held), at / "c")
        assert verify_container(container, SilentProgress()) == []
        stored = container.operands["target.layer.001/experts.gate_up"]
        assert (stored.source.form, stored.fidelity) == ("stacked", "source-equivalent")
        assert stored.source.tensor == "blk.1.ffn_gate_exps.weight"
        assert stored.source.behind == "blk.1.ffn_up_exps.weight"
        found.append(logits(container, backend))
    assert stored.encoding.name == "f32"
    assert np.abs(found[0] - found[1]).max() < 2e-6 * np.abs(found[1]).max()


def test_clamped_experts_are_described_by_what_files_leave_out(tmp_path: Path) -> None:
    found = target(write(tmp_path, "gpt-oss"))
    bank = routed(found, 0).bank
    assert (bank.limit, bank.slope, bank.up_offset) == (7.0, 1.702, 1.0)
    mixers = [layer.blocks[0].mixer for layer in found.layers]
    assert [m.window for m in mixers if isinstance(m, SoftmaxAttention)] == [128, None]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_weights_scale": f32(2.5)}, "`gpt-oss.expert_weights_scale` is 2.5, a comp"),
        ({"expert_weights_norm": False}, "`gpt-oss.expert_weights_norm` is False, a comp"),
        ({"expert_gating_func": u32(1)}, "`gpt-oss.expert_gating_func` is 1, a computation"),
        ({"expert_gating_func": u32(2)}, "`gpt-oss.expert_gating_func` is 2, a computation"),
        ({"expert_shared_count": u32(1)}, "`gpt-oss.expert_shared_count` is 1, a computation"),
        ({"leading_dense_block_count": u32(1)}, "`gpt-oss.leading_dense_block_count` is 1, a"),
        ({"expert_group_count": u32(2)}, "`gpt-oss.expert_group_count` is 2, a computation"),
        ({"expert_used_count": u32(4)}, "`gpt-oss.expert_used_count` is 4, of 3 experts"),
    ],
)
def test_clamped_experts_are_weighted_in_one_way(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(write(tmp_path, "gpt-oss", keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_clamped_experts_may_be_told_to_be_weighted_as_they_are(tmp_path: Path) -> None:
    keys = {"expert_weights_scale": f32(1.0), "expert_weights_norm": True,
            "expert_gating_func": u32(3), "expert_shared_count": u32(0),
            "leading_dense_block_count": u32(0)}  # fmt: skip
    (tmp_path / "b").mkdir()
    assert target(write(tmp_path, "gpt-oss", keys)) == target(write(tmp_path / "b", "gpt-oss"))


@pytest.mark.parametrize("suffix", ["weight", "bias"])
def test_clamped_experts_lack_nothing_and_have_one_encoding(tmp_path: Path, suffix: str) -> None:
    made = tensors("gpt-oss")
    gone = dict(made)
    del gone[f"blk.1.ffn_up_exps.{suffix}"]
    with pytest.raises(CompileError, match=rf"tensor blk\.1\.ffn_up_exps\.{suffix} is missing"):
        compiled(write(tmp_path, "gpt-oss", {}, gone))
    name = "blk.0.ffn_up_exps.weight"
    mixed = {**made, name: _quantised(made)[name]}
    with pytest.raises(CompileError, match=r"up_exps\.weight is q8_0, expected f32 as blk\.0"):
        compiled(write(tmp_path, "gpt-oss", {}, mixed))


def _drafting(made: Tensors, layer: int = 1) -> Tensors:
    """The same with what marks a layer as one that drafts tokens."""
    found = dict(made)
    shapes = {"eh_proj": (HIDDEN, 2 * HIDDEN), "enorm": (HIDDEN,), "hnorm": (HIDDEN,)}
    for part, shape in shapes.items():
        name = f"blk.{layer}.nextn.{part}.weight"
        found[name] = (name, shape, GGML_F32, np.ones(shape, "<f4").tobytes())
    return found


def test_layers_that_draft_are_counted_and_left(tmp_path: Path) -> None:
    keys, made = {"nextn_predict_layers": u32(1)}, _drafting(tensors("glm4moe"))
    found = compiled(write(tmp_path, "glm4moe", keys, made))
    assert len(found.graph.components[0].layers) == 1
    assert {name.split(".")[1] for name in found.left} == {"1"}
    assert any("of layers that draft tokens were left behind" in note for note in found.notes)
    with pytest.raises(CompileError, match="nextn_predict_layers` is 2, of 2 layers"):
        compiled(write(tmp_path, "glm4moe", {"nextn_predict_layers": u32(2)}))


def test_a_layer_that_does_not_draft_is_not_left(tmp_path: Path) -> None:
    whole = tensors("glm4moe")
    with pytest.raises(CompileError, match=r"tensor blk\.1\.\S+: layer 1 .* no eh_proj\.weight"):
        compiled(write(tmp_path, "glm4moe", {"nextn_predict_layers": u32(1)}, whole))
    with pytest.raises(CompileError, match=r"tensor blk\.2\.nextn\.eh_proj\.weight: layer 2 is"):
        compiled(write(tmp_path, "glm4moe", {}, _drafting(whole, 2)))


def test_dense_layers_come_first_or_where_there_is_no_router(tmp_path: Path) -> None:
    made = tensors("qwen3moe")
    for name in [n for n in made if n.startswith("blk.0.ffn_") and "norm" not in n]:
        del made[name]
    for part, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
        name = f"blk.0.ffn_{part}.weight"
        made[name] = (name, shape, GGML_F32, np.zeros(shape, "<f4").tobytes())
    for number, keys in enumerate(({}, {"leading_dense_block_count": u32(1)})):
        at = tmp_path / str(number)
        at.mkdir()
        found = target(write(at, "qwen3moe", keys, made))
        assert isinstance(found.layers[0].blocks[1].mixer, DenseFfn)
        assert routed(found, 1).bank.experts == EXPERTS


def test_a_correction_only_chooses(tmp_path: Path) -> None:
    made = tensors("glm4moe")
    for i in range(2):
        name = f"blk.{i}.exp_probs_b.bias"
        made[name] = (name, (EXPERTS,), GGML_F32, np.ones(EXPERTS, "<f4").tobytes())
    router = routed(target(write(tmp_path, "glm4moe", {}, made)), 0).router
    assert router.correction == "target.layer.000/ffn.router.correction"


def _partly(made: Tensors, name: str, shape: tuple[int, ...], gone: int) -> Tensors:
    """The same with a tensor on every layer but one."""
    found = dict(made)
    for i in range(2):
        stored = name.format(i=i)
        found[stored] = (stored, shape, GGML_F32, np.ones(shape, "<f4").tobytes())
    del found[name.format(i=gone)]
    return found


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize(
    ("architecture", "name", "shape"),
    [
        ("gpt-oss", "blk.{i}.attn_q.bias", (HIDDEN,)),
        ("gpt-oss", "blk.{i}.attn_output.bias", (HIDDEN,)),
        ("glm4moe", "blk.{i}.attn_v.bias", (32,)),
        ("glm4moe", "blk.{i}.exp_probs_b.bias", (EXPERTS,)),
    ],
)
def test_an_optional_tensor_is_on_all_layers_or_none(
    tmp_path: Path, architecture: str, name: str, shape: tuple[int, ...], gone: int
) -> None:
    path = write(tmp_path, architecture, {}, _partly(tensors(architecture), name, shape, gone))
    with pytest.raises(CompileError) as caught:
        compiled(path)
    missing = name.format(i=gone)
    assert f"tensor {missing} is missing, though layer {1 - gone} has one" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_optional_tensor_is_asked_of_layers_that_can_use_it(tmp_path: Path) -> None:
    made = _partly(tensors("glm4moe"), "blk.{i}.exp_probs_b.bias", (EXPERTS,), gone=0)
    for name in [n for n in made if n.startswith("blk.0.ffn_")]:
        del made[name]
    for part, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
        name = f"blk.0.ffn_{part}.weight"
        made[name] = (name, shape, GGML_F32, np.zeros(shape, "<f4").tobytes())
    keys = {"leading_dense_block_count": u32(1)}
    router = routed(target(write(tmp_path, "glm4moe", keys, made)), 1).router
    assert router.correction == "target.layer.001/ffn.router.correction"
