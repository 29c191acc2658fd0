"""A draft head beside the model: a component of its own, on which nothing of the model hangs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from larql.errors import CompileError, UnsupportedRefusal
from larql.format.container import Container, verify_container
from larql.format.graph import Edge, KvRows, SoftmaxAttention, state_schema
from larql.format.progress import SilentProgress
from larql.runtime.plan import make_plan
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.slices import Full
from tests.builders.containers import make_container
from tests.builders.hybrids import Tensors, changed, draft_tensors, nested, recorded
from tests.builders.safetensors import write_safetensors_dir

NAME = "qwen3_5"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def container(
    at: Path, *, drop: str | None = None, drafts: bool = True, **keys: object
) -> Container:
    """A nested checkpoint with a draft head, of which a tensor may be missing."""
    config, tensors = recorded(NAME)
    extra: Tensors = draft_tensors(config) if drafts else {}
    if drafts:
        # the trunk of this checkpoint has biases, which its full layers share with the draft's
        for part in "qkvo":
            rows = len(extra[f"mtp.layers.0.self_attn.{part}_proj.weight"])
            extra[f"mtp.layers.0.self_attn.{part}_proj.bias"] = np.ones(rows, np.float32)
    if drop is not None:
        del extra[drop]
    outer, inside = nested(changed(config, keys), tensors)
    directory = write_safetensors_dir(at / "checkpoint", outer, {**inside, **extra})
    return make_container(directory, at / "made.vindex3")


def logits(made: Container, backend: str) -> bytes:
    run = open_run(made, RunOptions(backend=backend))
    session = Session(run.prepared, 16)
    return session.logits(session.advance(TOKENS)).tobytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Container:
    """The same text model, neither nested nor with a draft head."""
    config, tensors = recorded(NAME)
    at = tmp_path_factory.mktemp("plain")
    return make_container(write_safetensors_dir(at / "m", config, tensors), at / "m.vindex3")


def test_a_draft_head_is_a_component_that_borrows_embedding_and_head(tmp_path: Path) -> None:
    made = container(tmp_path, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False)
    target, draft = made.graph.components
    assert (target.id, target.role, draft.id, draft.role) == ("target", "decoder", "mtp", "draft")
    assert made.graph.edges == (Edge("target", "final_norm", "mtp"),)
    assert made.index.components == ("target", "mtp")
    assert draft.embed == target.embed
    assert draft.head.weight == target.head.weight == "target.output_head/weight"
    assert draft.head.norm.weight == "mtp.norms/output.weight" != target.head.norm.weight
    entry = draft.draft_input
    assert target.draft_input is None and entry is not None
    assert entry.first == "embedding"
    assert entry.projection.weight == "mtp.draft_input/projection.weight"
    assert entry.embedding_norm.weight == "mtp.norms/draft_input.embedding_norm.weight"
    assert entry.hidden_norm.weight == "mtp.norms/draft_input.hidden_norm.weight"
    assert {n.offset for n in (entry.embedding_norm, entry.hidden_norm, draft.head.norm)} == {1.0}
    (layer,) = draft.layers
    mixer = layer.blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    assert mixer.gate is not None and mixer.rope is not None and mixer.rope.dims == 4
    (rows,) = state_schema(draft)
    assert isinstance(rows, KvRows) and rows.layer == 0
    assert verify_container(made, SilentProgress()) == []
    left = made.index.source["left"]
    assert left == {"model.visual.patch_embed.proj.weight": "not the text model"}
    stored = {name for name in made.operands if name.startswith("mtp.")}
    assert len(stored) == 15 + 4 + 2  # biases, and the gate's rows and bias apart from the query's


def test_the_halves_of_the_projection_are_pinned_by_the_checkpoint_s_bytes(tmp_path: Path) -> None:
    made = container(tmp_path)
    stored = made.operands["mtp.draft_input/projection.weight"]
    expected = draft_tensors(recorded(NAME)[0])["mtp.fc.weight"]
    raw = b"".join(made.segment(stored.segment).chunks(stored.tensor))
    assert raw == expected.tobytes()


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_the_model_does_not_notice_its_draft_head(
    tmp_path: Path, plain: Container, backend: str
) -> None:
    expected = logits(plain, backend)
    assert logits(container(tmp_path / "with"), backend) == expected
    assert logits(container(tmp_path / "without", drafts=False), backend) == expected


def test_running_a_draft_by_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedRefusal, match="component 'mtp' drafts for another one"):
        make_plan(container(tmp_path), "mtp", Full())


@pytest.mark.parametrize("drop", ["mtp.fc.weight", "mtp.layers.0.self_attn.k_norm.weight"])
def test_an_incomplete_draft_head_is_left_by_name(
    tmp_path: Path, plain: Container, drop: str
) -> None:
    made = container(tmp_path, drop=drop)
    assert made.index.components == ("target",)
    assert made.graph.edges == ()
    left = made.index.source["left"]
    assert isinstance(left, dict)
    problem = f"tensor {drop} is missing from the checkpoint"
    assert left["mtp.norm.weight"] == problem
    assert f"warning: the draft head was left behind: {problem}" in made.index.notes
    assert not any(name.startswith("mtp") for name in made.operands)
    assert verify_container(made, SilentProgress()) == []
    assert logits(made, "reference") == logits(plain, "reference")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mtp_num_hidden_layers": 2}, "`text_config.mtp_num_hidden_layers` is 2"),
        ({"mtp_num_hidden_layers": 0}, "`text_config.mtp_num_hidden_layers` is 0"),
        ({"mtp_use_dedicated_embeddings": True}, "`text_config.mtp_use_dedicated_embeddings` is"),
    ],
)
def test_other_draft_heads_are_refused(
    tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        container(tmp_path, **keys)


def test_a_tensor_of_the_draft_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    config, tensors = recorded(NAME)
    extra = {"mtp.layers.1.mlp.up_proj.weight": np.ones((2, 2), np.float32)}
    outer, inside = nested(changed(config, {"attention_bias": False}), tensors)
    without = {name: value for name, value in inside.items() if not name.endswith("_proj.bias")}
    tensors = {**without, **draft_tensors(config), **extra}
    with pytest.raises(CompileError, match=r"mtp\.layers\.1\.mlp\.up_proj\.weight"):
        make_container(write_safetensors_dir(tmp_path / "m", outer, tensors), tmp_path / "c")
