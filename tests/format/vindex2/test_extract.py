"""Extraction: exact bytes, levels, equal bytes twice, and nothing left behind."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from larql.errors import CompileError, ContainerError, LarqlError, OutputError, UsageError
from larql.format.codec import ENCODINGS, decode, encode
from larql.format.container import open_container, verify_container
from larql.format.lyrw.v1 import LayerWeights
from larql.format.progress import SilentProgress
from larql.format.source.checkpoint import open_checkpoint
from larql.format.source.compiler import compile_checkpoint
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.write_entries import write_experts
from tests.builders.containers import copy_container, edit_index, file_bytes
from tests.builders.experts import clamped, mixture
from tests.builders.lyrw import u32, u64
from tests.builders.models import (
    LlamaSpec,
    llama_weights,
    stored_weights,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.builders.vindex2 import NaiveTokens, down_meta, extract_v2, make_v2, vouch_v2
from tests.builders.zeros import write_zeros

ONE = LlamaSpec(layers=2, hidden=8, heads=2, kv_heads=1, ffn=4, vocab=6, attention_bias=True)
BROWSE = {"index.json", "gate_vectors.bin", "embeddings.bin", "down_meta.bin"}
TEXT = {"source_config.json"}
LEVELS = {
    "browse": set(),
    "attention": {"attn_weights.bin", "norms.bin", "weight_manifest.json"},
    "inference": {"up_weights.bin", "down_weights.bin"},
    "all": {"lm_head.bin"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama_safetensors(tmp_path_factory.mktemp("s") / "m", ONE)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixture(tmp_path_factory.mktemp("s") / "m", layers=2, experts=3)


def lines(directory: Path) -> list[str]:
    return [d.line() for d in verify_container(open_container(directory), SilentProgress())]


def f32(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def padded(*tensors: bytes) -> bytes:
    data = b""
    for tensor in tensors:
        data += bytes(-len(data) % 64) + tensor
    return data


def test_exact_bytes_of_every_file(source: Path, tmp_path: Path) -> None:
    made = make_v2(source, tmp_path / "v")
    weights, files = llama_weights(ONE), file_bytes(made.path)
    layers = [f"model.layers.{i}." for i in range(2)]
    gates = [f32(weights[f"{at}mlp.gate_proj.weight"]) for at in layers]
    assert files["gate_vectors.bin"] == b"".join(gates)
    assert files["embeddings.bin"] == f32(weights["model.embed_tokens.weight"])
    assert files["lm_head.bin"] == f32(weights["lm_head.weight"])
    attention = [
        f32(weights[f"{at}self_attn.{part}_proj.{kind}"])
        for at in layers
        for part in "qkvo"
        for kind in ("weight", "bias")
    ]
    assert files["attn_weights.bin"] == padded(*attention)
    norms = [
        f32(weights[f"{at}{name}_layernorm.weight"])
        for at in layers
        for name in ("input", "post_attention")
    ]
    assert files["norms.bin"] == padded(*norms, f32(weights["model.norm.weight"]))
    for part in ("up", "down"):
        stored = [f32(weights[f"{at}mlp.{part}_proj.weight"]) for at in layers]
        assert files[f"{part}_weights.bin"] == padded(*stored)
    records = []
    head = weights["lm_head.weight"].astype(np.float64)
    for at in layers:
        for column in weights[f"{at}mlp.down_proj.weight"].T:
            scores = (head @ column).astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            records.append([(int(t), float(scores[t])) for t in order])
    assert files["down_meta.bin"] == down_meta(2, 10, records)
    index = json.loads(files["index.json"])
    assert index["checksums"] == {
        name: hashlib.sha256(data).hexdigest()
        for name, data in files.items()
        if name != "index.json"
    }
    assert index["layers"] == [
        {"layer": i, "num_features": 4, "offset": 128 * i, "length": 128} for i in range(2)
    ]
    assert list(index)[:6] == ["version", "model", "family", "dtype", "source", "checksums"]
    assert index["version"] == 2
    assert index["source"]["extracted_at"] is None
    assert lines(made.path) == []


def test_exact_bytes_of_a_layer_file(routed: Path, tmp_path: Path) -> None:
    """Experts that are tensors of their own reach the layer file: gate rows, up rows, down."""
    made = make_v2(routed, tmp_path / "v")
    from safetensors.numpy import load_file

    tensors = load_file(routed / "model.safetensors")
    for layer in range(2):
        at = f"model.layers.{layer}.block_sparse_moe.experts."
        payload = b"".join(
            f32(tensors[f"{at}{e}.{name}.weight"]) for e in range(3) for name in ("w1", "w3", "w2")
        )
        start, both, down = 24 + 3 * 32, 2 * 16 * 32 * 4, 32 * 16 * 4
        rows = [start + e * (both + down) for e in range(3)]
        table = b"".join(u64(at, both, at + both, down) for at in rows)
        head = bytes.fromhex("5752594c") + u32(1, 0, 3, 16, 32)
        data = (made.path / f"layers/layer_{layer:02d}.weights").read_bytes()
        assert data == head + table + payload
    assert [e.num_features for e in made.details.layers] == [0, 0]
    assert made.details.intermediate_size == 16
    assert made.layer_weights(1).gate(2).view("<f4").shape == (16, 32)
    assert {e.file for e in made.manifest if "router" in e.key} == {"router_weights.bin"}


def test_fused_experts_reach_the_layer_file_gate_rows_first(tmp_path: Path) -> None:
    """The checkpoint has the rows of gate and up in turn, and a bias for them in that order."""
    source = clamped(tmp_path / "m", "float")
    made = make_v2(source, tmp_path / "v")
    from safetensors.numpy import load_file

    tensors = load_file(source / "model.safetensors")
    both = tensors["model.layers.1.mlp.experts.gate_up_proj"][2].T
    layer = made.layer_weights(1)
    assert layer.gate(2).tobytes() == f32(both[0::2])
    assert layer.up(2).tobytes() == f32(both[1::2])
    bias = tensors["model.layers.1.mlp.experts.gate_up_proj_bias"]
    key = next(e.key for e in made.manifest if "001" in e.key and e.shape == bias.shape)
    stored = made.tensor(key).rows(0, 3)
    assert np.array_equal(stored, np.concatenate([bias[:, 0::2], bias[:, 1::2]], axis=1))


def test_each_level_has_all_of_the_one_before(source: Path, tmp_path: Path) -> None:
    expected = BROWSE | TEXT
    before: dict[str, bytes] = {}
    for level, more in LEVELS.items():
        expected = expected | more
        made = make_v2(source, tmp_path / level, level=level)
        files = file_bytes(made.path)
        assert set(files) == expected
        same = set(before) - {"index.json", "weight_manifest.json"}
        assert {name: files[name] for name in same} == {name: before[name] for name in same}
        assert lines(made.path) == []
        assert made.details.level.value == level
        assert made.details.has_model_weights == (level in ("inference", "all"))
        before = files


@pytest.mark.parametrize("per_layer", [False, True])
def test_extracting_twice_gives_identical_bytes(
    source: Path, tmp_path: Path, per_layer: bool
) -> None:
    for name in "ab":
        extract_v2(copy_container(source, tmp_path / name / "m"), tmp_path / f"{name}.v",
                   per_layer=per_layer)  # fmt: skip
    assert file_bytes(tmp_path / "a.v") == file_bytes(tmp_path / "b.v")


def test_a_time_is_recorded_where_one_is_set(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    made = make_v2(source, tmp_path / "v", level="browse")
    assert made.details.source["extracted_at"] == "1970-01-02T00:00:00Z"
    for wrong in ("soon", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is"):
            extract_v2(source, tmp_path / "w")
    assert not (tmp_path / "w").exists()


def test_dense_networks_in_layer_files(source: Path, tmp_path: Path) -> None:
    made = make_v2(source, tmp_path / "v", per_layer=True)
    assert "up_weights.bin" not in made.listed
    layer, weights = made.layer_weights(1), llama_weights(ONE)
    assert layer.shape.num_entries == 1
    for part, stored in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
        assert stored(0).tobytes() == f32(weights[f"model.layers.1.mlp.{part}_proj.weight"])
    assert made.gate(1).data.tobytes() == layer.gate(0).tobytes()
    assert lines(made.path) == []
    assert made.parts["ffn"] == ("layers/layer_00.weights", "layers/layer_01.weights")  # type: ignore[index]


def test_numbers_are_carried_exactly(tmp_path: Path) -> None:
    """f16 where all matrices are f16; else f32, which holds bf16 and blocks."""
    spec = dataclasses.replace(ONE, hidden=64, ffn=32, vocab=32)
    for dtype, expected in (("f16", "f16"), ("bf16", "f32"), ("f32", "f32")):
        one = dataclasses.replace(spec, dtype=dtype)  # type: ignore[arg-type]
        made = make_v2(write_llama_safetensors(tmp_path / dtype, one), tmp_path / f"{dtype}.v")
        assert made.details.dtype.name == expected
        gate = llama_weights(one)["model.layers.1.mlp.gate_proj.weight"]
        assert np.array_equal(made.gate(1).rows(0, 32), gate)
    one = dataclasses.replace(spec, gguf_type="q4_0")
    made = make_v2(write_llama_gguf(tmp_path / "m.gguf", one), tmp_path / "q.v")
    assert made.details.dtype.name == "f32"
    assert made.details.source["format"] == "gguf"
    gate = stored_weights(one)["model.layers.1.mlp.gate_proj.weight"]
    assert np.array_equal(made.gate(1).rows(0, 32), gate)


def test_quant_re_encodes_what_is_multiplied_and_says_so(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, hidden=256, heads=4, kv_heads=2, ffn=320, vocab=32)
    made = make_v2(write_llama_safetensors(tmp_path / "m", spec), tmp_path / "v", quant="q4_k")
    dtypes = {entry.key.split("/")[1]: entry.dtype.name for entry in made.manifest}
    assert dtypes["attention.q.weight"] == dtypes["ffn.up.weight"] == "q4_k"
    assert dtypes["ffn.down.weight"] == "q5_0"  # 320 columns are no whole blocks of 256
    assert {d for k, d in dtypes.items() if "norm" in k} == {"f32"}
    assert made.details.quant == "q4_k"
    assert made.gate(0).encoding.name == made.embeddings().encoding.name == "f32"
    up = llama_weights(spec)["model.layers.0.mlp.up_proj.weight"]
    q4_k = ENCODINGS["q4_k"]
    key = "target.layer.000/ffn.up.weight"
    expected = decode(q4_k, encode(q4_k, up), 256)
    assert np.array_equal(made.tensor(key).rows(0, 320), expected)
    assert any("q5_0 instead of q4_k" in note for note in made.details.notes)
    assert lines(made.path) == []


def test_what_stands_there_is_not_replaced_unless_told(source: Path, tmp_path: Path) -> None:
    extract_v2(source, tmp_path / "v", level="browse")
    with pytest.raises(OutputError):
        extract_v2(source, tmp_path / "v")
    extract_v2(source, tmp_path / "v", level="attention", force=True)
    assert (tmp_path / "v" / "norms.bin").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(OutputError):
        extract_v2(source, tmp_path / "other", force=True)
    assert (tmp_path / "other" / "mine.txt").read_text() == "x"


def test_a_failure_on_the_way_leaves_nothing(source: Path, tmp_path: Path) -> None:
    class Failing(NaiveTokens):
        def of(self, directions: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
            raise LarqlError("stopped")

    with pytest.raises(LarqlError, match="stopped"):
        extract_v2(source, tmp_path / "v", tokens=Failing())
    assert [p.name for p in tmp_path.iterdir() if "v" in p.name] == []


SLOW = """
import sys, time
from pathlib import Path
from tests.builders.vindex2 import NaiveTokens, extract_v2
class Slow(NaiveTokens):
    def of(self, directions, top):
        time.sleep(60)
extract_v2(Path(sys.argv[1]), Path(sys.argv[2]), tokens=Slow(), force=True)
"""


@pytest.mark.parametrize("replaces", [False, True])
def test_a_killed_extraction_leaves_nothing_that_opens(
    source: Path, tmp_path: Path, replaces: bool
) -> None:
    out = tmp_path / "v"
    old = extract_v2(source, out, level="browse").fingerprint if replaces else None
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), str(out)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".v.tmp-*/down_meta.bin")):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = tmp_path.glob(".v.tmp-*")
    with pytest.raises(ContainerError, match=r"index\.json: no such file"):
        open_container(left)
    assert (open_container(out).fingerprint if replaces else None) == old
    assert out.exists() == replaces
    extract_v2(source, out, force=replaces)
    assert lines(out) == []
    assert not list(tmp_path.glob(".v.tmp-*"))


# --- what contradicts -------------------------------------------------------------------------


def test_partial_experts_are_an_error_that_names_both_counts(routed: Path, tmp_path: Path) -> None:
    """A layer file of another population is found by verify, and refused when it is bound."""
    more = mixture(tmp_path / "m4", layers=2, experts=4)
    directory = make_v2(routed, tmp_path / "v").path
    other = make_v2(more, tmp_path / "w").path
    name = "layers/layer_01.weights"
    (directory / name).write_bytes((other / name).read_bytes())
    vouch_v2(directory, name)
    problem = "has 4 experts, the model has 3; a layer must have all of its experts"
    assert lines(directory) == [f"{name}: {problem}"]
    selection = Vindex2(directory).select(None)
    with pytest.raises(LarqlError, match=f"{name} {problem}"):
        selection.serving("target.layer.001/experts.down", "d")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"offset": 1 << 40}, "but is said to hold"),
        ({"shape": [2, 8], "length": 64}, "of shape [2, 8], the model has [8, 8]"),
        ({"file": "norms.bin", "offset": 288}, "in norms.bin, it belongs to attn_weights.bin"),
        ({"key": "target.layer.000/other"}, "weight_manifest.json does not list it"),
    ],
    ids=["out of range", "shape", "file", "key"],
)
def test_a_manifest_that_contradicts_the_model(
    source: Path, tmp_path: Path, change: dict[str, object], match: str
) -> None:
    directory = copy_container(make_v2(source, tmp_path / "v").path, tmp_path / "c")
    path = directory / "weight_manifest.json"
    document = json.loads(path.read_text())
    entry = next(e for e in document["tensors"] if e["key"].endswith("attention.q.weight"))
    entry.update(change)
    path.write_text(json.dumps(document))
    vouch_v2(directory, path.name)
    found = lines(directory)
    assert any(match in line for line in found), found
    assert lines(directory) == found


def test_sizes_that_contradict_the_graph(source: Path, tmp_path: Path) -> None:
    directory = make_v2(source, tmp_path / "v").path
    edit_index(directory, lambda d: d.update(vocab_size=5))
    assert "index.json: vocab_size is 5, model_config says 6" in lines(directory)


def test_features_that_contradict_the_graph(source: Path, tmp_path: Path) -> None:
    directory = make_v2(source, tmp_path / "v", level="attention").path

    def fewer(index: dict[str, list[dict[str, int]]]) -> None:
        index["layers"][1].update(num_features=3, length=96)

    edit_index(directory, fewer)
    found = lines(directory)
    assert "gate_vectors.bin: has 3 features of layer 1, the model has 4" in found


def test_a_layer_file_of_the_other_generation(routed: Path, tmp_path: Path) -> None:
    directory = make_v2(routed, tmp_path / "v").path
    path = directory / "layers/layer_00.weights"
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)
    vouch_v2(directory, "layers/layer_00.weights")
    (line,) = lines(directory)
    assert "LYRW format version 2 requires the VINDEX3 loader" in line
    with pytest.raises(LarqlError, match="VINDEX3 loader"):
        LayerWeights(path)


def test_no_gate_no_layer_file(tmp_path: Path) -> None:
    from larql.format.graph import DenseFfn, Linear
    from larql.format.vindex2.layout import FfnLayout
    from larql.format.vindex2.placement import Form, places

    made = make_v2(write_llama_safetensors(tmp_path / "m", ONE), tmp_path / "v")
    component = made.graph.components[0]
    up, down = Linear("l/up", 4, 8), Linear("l/down", 8, 4)
    ungated = DenseFfn("relu", up, down)
    layer = dataclasses.replace(
        component.layers[0],
        blocks=(dataclasses.replace(component.layers[0].blocks[1], mixer=ungated),),
    )
    one = dataclasses.replace(component, layers=(layer,))
    found = places(one, None)
    assert (found["l/up"].form, found["l/up"].file) == (Form.FEATURES, "gate_vectors.bin")
    with pytest.raises(CompileError, match="layer 0: its feed-forward network has no gate"):
        places(one, FfnLayout.PER_LAYER)


MEMORY = """
import re, sys
from pathlib import Path
import numpy as np
from tests.builders.vindex2 import extract_v2
class NoTokens:
    def begin(self, encoding, shape, data):
        pass
    def of(self, directions, top):
        return np.zeros((len(directions), top), "u4"), np.zeros((len(directions), top), "f4")
extract_v2(Path(sys.argv[1]), Path(sys.argv[2]), tokens=NoTokens())
print(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_extraction_takes_the_memory_of_a_piece_of_a_tensor(tmp_path: Path) -> None:
    source = write_zeros(tmp_path / "m", 200)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(source), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (tmp_path / "out" / "embeddings.bin").stat().st_size == 200 << 20
    shutil.rmtree(tmp_path / "out")
    assert int(done.stdout) // 1024 < 100, "megabytes"


def test_a_layer_file_that_is_gone(routed: Path, tmp_path: Path) -> None:
    directory = make_v2(routed, tmp_path / "v").path
    (directory / "layers/layer_00.weights").unlink()
    assert lines(directory) == ["layers/layer_00.weights: no such file"]
    opened = Vindex2(directory)
    assert "target.layer.001/experts.down" in opened.index.representations
    with pytest.raises(LarqlError, match=r"layer_00\.weights: no such file"):
        opened.select(None).serving("target.layer.000/experts.down", "d")


def test_parts_of_different_populations_are_not_written(routed: Path, tmp_path: Path) -> None:
    with open_checkpoint(routed) as checkpoint:
        compiled = compile_checkpoint(checkpoint)
        banks = {b.operand.rsplit(".", 1)[1]: b for b in compiled.banks if b.layer == 1}
        down = banks["down"]
        short = dataclasses.replace(down, shape=(2, *down.shape[1:]), pieces=down.pieces[:2])
        with pytest.raises(CompileError, match=r"layer 1: \w+ is there of 3 experts and down of 2"):
            write_experts(
                tmp_path / "l", checkpoint, banks | {"down": short}, ENCODINGS["f32"], None, [],
                interleaved=False,
            )  # fmt: skip
    assert not (tmp_path / "l").exists()
