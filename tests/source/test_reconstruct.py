"""Writing checkpoints back: the same tensors by every recipe, and nothing where some lacks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import (
    BindingDefect,
    ContainerError,
    LarqlError,
    OutputError,
    ResidencyRefusal,
    UnsupportedRefusal,
)
from larql.format.container import Container
from larql.format.index import index_from_json, index_to_json
from larql.format.progress import SilentProgress
from larql.format.quants.mxfp4 import repack, unpack
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.recipes import plan_reconstruction
from larql.format.source.reconstruct import Reconstruction, is_reconstruction, reconstruct
from tests.builders.containers import copy_container, edit_index, file_bytes, make_container
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    llama_weights,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.builders.safetensors import bf16, write_safetensors_dir

ORACLES = Path(__file__).parents[1] / "oracles"
EACH_ONCE = (
    "deepseek_v3",  # joined by heads, split by experts
    "gemma4-embeddings",
    "granitemoehybrid-routed",  # experts in one tensor
    "kimi_linear-delta",  # vectors in tensors of four axes
    "lfm2",
    "phi3",  # projections in one tensor
    "qwen3_5_moe",
)


def write_back(container: Container, to: Path, *, force: bool = False) -> Reconstruction:
    return reconstruct(container, to, force=force, progress=SilentProgress())


def assert_same_tensors(checkpoint: Path, made: Path, left: Mapping[str, str]) -> None:
    with open_checkpoint(checkpoint) as before, open_checkpoint(made) as after:
        assert set(after.tensors) == set(before.tensors) - set(left)
        for name, tensor in after.tensors.items():
            source = before.tensors[name]
            assert (tensor.shape, tensor.dtype) == (source.shape, source.dtype), name
            assert after.read(name).tobytes() == before.read(name).tobytes(), name


def identity(directory: Path) -> Any:
    """The index without what names the files of the checkpoint."""
    index = json.loads((directory / "index.json").read_bytes())
    del index["source"]["weights"]
    return index


def assert_fixed(checkpoint: Path, at: Path) -> Reconstruction:
    container = make_container(checkpoint, at / "a")
    made = write_back(container, at / "checkpoint")
    assert_same_tensors(checkpoint, made.path, made.left)
    again = make_container(made.path, at / "b")
    assert identity(again.path) == identity(container.path)
    mine = {k: v for k, v in file_bytes(container.path).items() if k != "index.json"}
    assert mine == {k: v for k, v in file_bytes(again.path).items() if k != "index.json"}
    return made


# --- every recipe -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EACH_ONCE)
def test_a_checkpoint_comes_back_byte_for_byte(tmp_path: Path, name: str) -> None:
    made = assert_fixed(ORACLES / name / "checkpoint", tmp_path)
    assert (made.authority.level, made.authority.cap) == ("source-exact", "none")
    assert (made.approximate, dict(made.left), made.configuration) == ((), {}, True)


def test_shards_text_and_licence(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(shards=2, tokenizer=True))
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    (source / "LICENSE").write_text("Apache")
    made = assert_fixed(source, tmp_path)
    assert dict(made.recipes) == {"copy": len(llama_weights(LlamaSpec()))}
    names = {path.name for path in made.path.iterdir()}
    assert names == {
        *("model.safetensors", "config.json", "reconstruction.json", "README.md", "LICENSE"),
        *("tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    }
    for name in ("config.json", "tokenizer.json", "LICENSE"):
        assert (made.path / name).read_bytes() == (source / name).read_bytes()


def test_a_repeated_head_is_written_and_a_vision_tower_is_not(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, tied=True)
    embedding = llama_weights(spec)["model.embed_tokens.weight"]
    source = write_llama_safetensors(tmp_path / "m", spec, extra={"lm_head.weight": embedding})
    made = assert_fixed(source, tmp_path)
    assert dict(made.left) == {}
    source = write_gemma_safetensors(tmp_path / "g", GemmaSpec(nested=True))
    container = make_container(source, tmp_path / "g.vindex3")
    made = write_back(container, tmp_path / "h")
    assert set(made.left) == {"vision_tower.patch.weight", "multi_modal_projector.weight"}
    record = json.loads((made.path / "reconstruction.json").read_bytes())
    assert record["left"] == dict(made.left)
    assert record["container"] == container.fingerprint
    assert_same_tensors(source, made.path, made.left)


def test_rows_in_turn_and_rows_that_pad_a_head_come_back(tmp_path: Path) -> None:
    source = ORACLES / "inkling-published" / "checkpoint"
    made = write_back(make_container(source, tmp_path / "c"), tmp_path / "checkpoint")
    assert all(name.startswith(("model.audio.", "model.visual.")) for name in made.left)
    assert_same_tensors(source, made.path, made.left)


def gpt_oss(directory: Path, *, packed: bool) -> Path:
    """One layer of four clamped experts: MXFP4 in two tensors, or floats with turned axes."""
    make = np.random.default_rng(5)

    def floats(*shape: int) -> Any:
        return bf16(make.standard_normal(shape).astype(np.float32))

    at, hidden, width, experts = "model.layers.0.", 64, 32, 4
    tensors: dict[str, Any] = {
        "model.embed_tokens.weight": floats(40, hidden),
        "model.norm.weight": floats(hidden),
        "lm_head.weight": floats(40, hidden),
        f"{at}input_layernorm.weight": floats(hidden),
        f"{at}post_attention_layernorm.weight": floats(hidden),
        f"{at}self_attn.sinks": floats(4),
        f"{at}mlp.router.weight": floats(experts, hidden),
        f"{at}mlp.router.bias": floats(experts),
        f"{at}mlp.experts.gate_up_proj_bias": floats(experts, 2 * width),
        f"{at}mlp.experts.down_proj_bias": floats(experts, hidden),
    }
    for name, rows, columns in (("q", 64, 64), ("k", 32, 64), ("v", 32, 64), ("o", 64, 64)):
        tensors[f"{at}self_attn.{name}_proj.weight"] = floats(rows, columns)
        tensors[f"{at}self_attn.{name}_proj.bias"] = floats(rows)
    for name, rows, columns in (("gate_up", 2 * width, hidden), ("down", hidden, width)):
        key = f"{at}mlp.experts.{name}_proj"
        if packed:
            blocks = columns // 32
            tensors[f"{key}_blocks"] = make.integers(
                0, 256, (experts, rows, blocks, 16), dtype=np.uint8
            )
            tensors[f"{key}_scales"] = make.integers(
                110, 130, (experts, rows, blocks), dtype=np.uint8
            )
        else:
            tensors[key] = floats(experts, columns, rows)
    config = {
        "model_type": "gpt_oss",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "vocab_size": 40,
        "layer_types": ["full_attention"],
        "eos_token_id": 2,
        **({"quantization_config": {"quant_method": "mxfp4"}} if packed else {}),
    }
    write_safetensors_dir(directory, config, tensors)
    return directory


@pytest.mark.parametrize("packed", [True, False])
def test_values_and_scales_part_and_turned_axes_turn_back(tmp_path: Path, packed: bool) -> None:
    made = assert_fixed(gpt_oss(tmp_path / "m", packed=packed), tmp_path)
    assert made.authority.level == "source-equivalent"
    assert all("experts" in region for region in made.authority.regions)
    assert made.recipes["recombine" if packed else "join"] == 4


def test_unpacking_undoes_repacking() -> None:
    make = np.random.default_rng(1)
    nibbles = make.integers(0, 256, (50, 16), dtype=np.uint8)
    scales = make.integers(0, 255, 50, dtype=np.uint8)
    blocks = np.empty((50, 17), np.uint8)
    repack(nibbles, scales, blocks)
    found, found_scales = np.empty_like(nibbles), np.empty_like(scales)
    unpack(blocks, found, found_scales)
    assert (found.tobytes(), found_scales.tobytes()) == (nibbles.tobytes(), scales.tobytes())


def test_what_was_rounded_is_called_so(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, dtype="bf16")
    source = write_llama_safetensors(tmp_path / "m", spec)
    container = make_container(source, tmp_path / "q", quant="q8_0")
    made = write_back(container, tmp_path / "c")
    assert (made.authority.level, made.authority.cap) == ("numerically-approximate", "fidelity")
    assert "model.norm.weight" not in made.approximate
    assert "lm_head.weight" in made.approximate
    with open_checkpoint(source) as before, open_checkpoint(made.path) as after:
        assert set(before.tensors) == set(after.tensors)
        a, b = (
            np.frombuffer(c.read("lm_head.weight").tobytes(), "<u2").astype(np.uint32) << 16
            for c in (before, after)
        )
        x, y = a.view(np.float32), b.view(np.float32)
        assert 0 < np.abs(x - y).max() < 0.02 * np.abs(x).max()
        assert after.tensors["lm_head.weight"].dtype == "BF16"


# --- baselines --------------------------------------------------------------------------------


def test_an_exact_sibling_of_an_equivalent_baseline_is_ignored(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1))
    container = make_container(source, tmp_path / "a")

    def change(index: Any) -> None:
        values = index["representations"]
        for key in list(values):
            sibling = dict(values[key])
            values[key]["fidelity"] = "source-equivalent"
            values[f"{key}#exact"] = sibling

    edit_index(container.path, change)
    made = write_back(Container(container.path), tmp_path / "c")
    assert made.authority.level == "source-equivalent"


# --- refusals ---------------------------------------------------------------------------------

Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("joined")
    return make_container(ORACLES / "phi3" / "checkpoint", at / "a").path


def of(index: Any, part: str) -> Any:
    return next(v for k, v in index["representations"].items() if k.endswith(part))


def lose_shape(index: Any) -> None:
    del of(index, "000/attention.q.weight")["source"]["shape"]


def lose_rows(index: Any) -> None:
    of(index, "000/attention.k.weight")["source"]["rows"][0] += 1


def lose_operand(index: Any) -> None:
    index["representations"].pop("target.layer.000/attention.k.weight")


def other_hash(index: Any) -> None:
    of(index, "000/attention.k.weight")["source"]["sha256"] = "0" * 64


def other_shape(index: Any) -> None:
    shape = of(index, "000/attention.k.weight")["source"]["shape"]
    shape[0] += 1


def false_repeat(index: Any) -> None:
    index["source"]["repeats"] = {"lm_head.weight": "target.nothing/weight"}


def other_format(index: Any) -> None:
    index["source"]["format"] = "pickle"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lose_shape, BindingDefect, r"does not record the shape of tensor .*qkv"),
        (lose_rows, BindingDefect, r"row \d+ is not filled exactly once"),
        (lose_operand, ResidencyRefusal, r"attention.k.weight has no representation"),
        (other_hash, ContainerError, r"attention.k.weight gives bytes of sha256"),
        (other_shape, BindingDefect, r"disagree about tensor .*qkv"),
        (false_repeat, ContainerError, r"which is no operand"),
        (other_format, UnsupportedRefusal, r"'pickle'"),
    ],
)
def test_refused_by_name_and_nothing_is_left(
    tmp_path: Path, joined: Path, change: Change, error: type[LarqlError], words: str
) -> None:
    container = Container(edit_index(copy_container(joined, tmp_path / "c"), change))
    with pytest.raises(error, match=words):
        write_back(container, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_missing_and_a_changed_segment(tmp_path: Path, joined: Path) -> None:
    name = "segments/target.layer.000.safetensors"
    directory = copy_container(joined, tmp_path / "c")
    data = bytearray((directory / name).read_bytes())
    data[-1] ^= 1
    (directory / name).write_bytes(data)
    with pytest.raises(ContainerError, match=r"target.layer.000.safetensors: operand .* sha256"):
        write_back(Container(directory), tmp_path / "out")
    (directory / name).unlink()
    with pytest.raises(ContainerError, match=r"target.layer.000.safetensors"):
        write_back(Container(directory), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gguf_is_refused_by_name(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", LlamaSpec(layers=1))
    with pytest.raises(UnsupportedRefusal, match="metadata of a GGUF file is not carried"):
        write_back(make_container(source, tmp_path / "a"), tmp_path / "out")


def test_only_a_reconstruction_is_replaced(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1))
    container = make_container(source, tmp_path / "a")
    before = file_bytes(source)
    with pytest.raises(OutputError, match="not a reconstructed checkpoint"):
        write_back(container, source, force=True)
    assert file_bytes(source) == before
    made = write_back(container, tmp_path / "c")
    assert is_reconstruction(made.path)
    with pytest.raises(OutputError, match="--force"):
        write_back(container, made.path)
    write_back(container, made.path, force=True)
    with pytest.raises(OutputError, match="holds the source"):
        write_back(container, tmp_path, force=True)


def test_a_container_without_a_configuration_gives_weights(tmp_path: Path) -> None:
    container = make_container(
        write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1)), tmp_path / "a"
    )
    edit_index(container.path, lambda index: index["files"].pop("source_config.json"))
    made = write_back(Container(container.path), tmp_path / "c")
    assert not made.configuration
    assert not (made.path / "config.json").exists()
    shutil.copy(tmp_path / "m" / "config.json", made.path)
    assert_same_tensors(tmp_path / "m", made.path, {})


def test_the_record_of_a_tensor_survives_reading_and_writing(tmp_path: Path) -> None:
    for packed in (True, False):
        container = make_container(
            gpt_oss(tmp_path / f"m{packed}", packed=packed), tmp_path / f"a{packed}"
        )
        document = json.loads((container.path / "index.json").read_bytes())
        assert index_to_json(index_from_json(document, "index")) == document
        forms = {value.source.form for value in container.index.representations.values()}
        assert forms == {"rows", "values_and_scales" if packed else "columns"}
        assert len(plan_reconstruction(container).targets) == len(
            open_checkpoint(tmp_path / f"m{packed}").tensors
        )
