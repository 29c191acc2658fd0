"""A VINDEX2 directory is executed by the same runtime, and its numbers are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from larql.errors import BindingDefect, EncodingError, UsageError
from larql.format.container import Container, open_container
from larql.format.encoding import ENCODINGS
from larql.format.lyrw.v1 import LayerWeights
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.feature_tokens import KernelTokens
from larql.runtime.run import RunOptions, open_run
from tests.builders.containers import file_bytes, make_container
from tests.builders.experts import clamped, mixture
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.builders.vindex2 import NaiveTokens, extract_v2, make_v2
from tests.oracles.recorded import MIXTURES, OWN

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
WIDE = LlamaSpec(layers=1, hidden=256, heads=4, kv_heads=2, ffn=512, vocab=64)


def logits(container: Container, **options: Any) -> bytes:
    session = open_run(container, RunOptions(threads=1, **options)).session(16)
    found = session.logits(session.advance(TOKENS))
    assert np.isfinite(found).all()
    return found.tobytes()


def sources(at: Path) -> dict[str, Path]:
    return {
        "dense": write_llama_safetensors(at / "dense", LlamaSpec(attention_bias=True)),
        "tied": write_gemma_safetensors(at / "tied", GemmaSpec()),
        "turned rows": write_llama_gguf(at / "m.gguf", LlamaSpec()),
        "separate experts": mixture(at / "separate", layers=2),
        "packed experts": clamped(at / "packed", "float"),
    }


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_the_same_values_give_the_same_bits(tmp_path: Path, backend: str) -> None:
    for name, source in sources(tmp_path).items():
        expected = logits(make_container(source, tmp_path / f"{name}.3"), backend=backend)
        for per_layer in (False, True):
            at = tmp_path / f"{name}.{per_layer}"
            found = logits(make_v2(source, at, per_layer=per_layer), backend=backend)
            assert found == expected, name


@pytest.mark.parametrize("name", MIXTURES)
def test_every_mixture_decodes_from_layer_files(name: str, tmp_path: Path) -> None:
    """Separate or packed in the checkpoint: experts reach ``layers/``, and they run from there."""
    source = OWN / name / "checkpoint"
    made = make_v2(source, tmp_path / "v")
    files = [LayerWeights(p) for p in sorted((made.path / "layers").iterdir())]
    assert files and all(file.shape.num_entries > 1 for file in files)
    assert logits(made) == logits(make_container(source, tmp_path / "c"))


def test_re_encoded_values_give_the_same_bits_too(tmp_path: Path) -> None:
    """With dense networks in layer files all products are of q4_k, as in VINDEX3; but the head."""
    source = write_llama_safetensors(tmp_path / "m", WIDE)
    made = make_v2(source, tmp_path / "v", quant="q4_k", per_layer=True)
    other = make_container(source, tmp_path / "c", quant="q4_k")
    kinds = {v.operand: v.encoding.name for v in made.index.representations.values()}
    expected = {v.operand: v.encoding.name for v in other.index.representations.values()}
    assert kinds == expected | {"target.embedding/weight": "f32"}
    at = "target.layer.000/"
    for operand in (f"{at}ffn.gate.weight", f"{at}ffn.down.weight", f"{at}attention.q.weight"):
        stored = made.index.representations[operand]
        theirs = other.index.representations[operand]
        assert np.array_equal(
            made.segment(stored.segment).bytes_of(stored.tensor),
            other.segment(theirs.segment).bytes_of(theirs.tensor),
        )
    assert logits(made) == logits(make_v2(source, tmp_path / "w", quant="q4_k", per_layer=True))


def test_padded_experts_keep_their_padding_out(tmp_path: Path) -> None:
    """16 columns of blocks of 256 are stored as 256, where that is not smaller it is refused."""
    source = OWN / "inkling" / "checkpoint"
    made = make_v2(source, tmp_path / "v", quant="q4_k")
    assert any("instead of q4_k" in note for note in made.details.notes)
    assert logits(made)


@pytest.mark.parametrize(
    ("level", "missing", "needed"),
    [
        ("browse", "attn_weights.bin|norms.bin", "attention"),
        ("attention", "up_weights.bin|down_weights.bin", "inference"),
        ("inference", "lm_head.bin", "all"),
    ],
)
def test_a_level_without_the_operands_is_refused_by_name(
    tmp_path: Path, level: str, missing: str, needed: str
) -> None:
    made = make_v2(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "v",
                   level=level)  # fmt: skip
    with pytest.raises(BindingDefect) as found:
        open_run(made, RunOptions())
    text = str(found.value)
    assert any(f"it belongs to {file}" in text for file in missing.split("|")), text
    assert f"this directory is of level {level}; extract with --level {needed}" in text
    assert "operand target." in text


def test_schema_1_is_read_with_defaults_and_run(tmp_path: Path) -> None:
    made = make_v2(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "v")
    expected = logits(made)
    path = made.path / "index.json"
    document = json.loads(path.read_text())
    kept = ("model", "num_layers", "hidden_size", "vocab_size", "layers", "model_config")
    path.write_text(json.dumps({"version": 1} | {key: document[key] for key in kept}))
    assert logits(open_container(made.path)) == expected


def test_a_tied_head_needs_no_head_of_its_own(tmp_path: Path) -> None:
    source = write_gemma_safetensors(tmp_path / "m", GemmaSpec())
    whole = make_v2(source, tmp_path / "all")
    assert logits(make_v2(source, tmp_path / "v", level="inference")) == logits(whole)
    assert not (whole.path / "lm_head.bin").exists()


def test_some_experts_only(tmp_path: Path) -> None:
    made = make_v2(mixture(tmp_path / "m", layers=1, experts=4), tmp_path / "v")
    run = open_run(made, RunOptions(experts=ExpertAccess(shard=(0, 4))))
    session = run.session(16)
    assert session.logits(session.advance(TOKENS)).tobytes() == logits(made)


def test_there_are_no_profiles(tmp_path: Path) -> None:
    made = make_v2(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "v")
    with pytest.raises(UsageError, match="there is no profile 'packed'"):
        open_run(made, RunOptions(profile="packed"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    made = make_v2(write_llama_safetensors(tmp_path / "m", LlamaSpec()), tmp_path / "v")
    (made.path / "up_weights.bin").unlink()
    with pytest.raises(BindingDefect, match=r"up_weights\.bin"):
        open_run(open_container(made.path), RunOptions())


# --- the tokens of features ---------------------------------------------------------------------


def test_tokens_are_those_of_the_naive_twin() -> None:
    generator = np.random.default_rng(5)
    rows = generator.standard_normal((9000, 32)).astype(np.float32)  # more than one block of rows
    directions = generator.standard_normal((7, 32)).astype(np.float32)
    found, naive = KernelTokens(1), NaiveTokens()
    for tokens in (found, naive):
        tokens.begin(ENCODINGS["f32"], (9000, 32), rows.reshape(-1).view(np.uint8))
    (ours, scores), (theirs, expected) = found.of(directions, 5), naive.of(directions, 5)
    assert np.array_equal(ours, theirs)
    assert ours.dtype == np.uint32 and scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_of_equals_the_smaller_token_comes_first() -> None:
    rows = np.array([[1, 0], [2, 0], [2, 0], [-1, 5], [2, 0]], np.float32)
    tokens = KernelTokens(1)
    tokens.begin(ENCODINGS["f32"], (5, 2), rows.reshape(-1).view(np.uint8))
    found, scores = tokens.of(np.array([[3, 0]], np.float32), 4)
    assert found.tolist() == [[1, 2, 4, 0]]
    assert scores.tolist() == [[6, 6, 6, 3]]


def test_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    rows = np.array([[1, 0], [np.inf, 0]], np.float32)
    tokens = KernelTokens(1)
    tokens.begin(ENCODINGS["f32"], (2, 2), rows.reshape(-1).view(np.uint8))
    with pytest.raises(EncodingError, match="number 0 of them gives 1 scores"):
        tokens.of(np.array([[1, 0]], np.float32), 1)


EXTRACT = """
import sys
from pathlib import Path
from larql.runtime.feature_tokens import KernelTokens
from tests.builders.vindex2 import extract_v2
extract_v2(Path(sys.argv[1]), Path(sys.argv[2]), tokens=KernelTokens(2))
"""


def test_bytes_do_not_depend_on_threads_or_instruction_set(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1))
    for threads in (1, 2):
        extract_v2(source, tmp_path / f"v{threads}", tokens=KernelTokens(threads))
    subprocess.run(
        [sys.executable, "-c", EXTRACT, str(source), str(tmp_path / "portable")],
        check=True,
        env={
            **os.environ,
            "LARQL_ISA": "portable",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    expected = file_bytes(tmp_path / "v1")
    assert file_bytes(tmp_path / "v2") == file_bytes(tmp_path / "portable") == expected
    # What the kernels add up in another order than the naive twin differs in some last bit.
    extract_v2(source, tmp_path / "naive")
    differing = {n for n, d in file_bytes(tmp_path / "naive").items() if d != expected[n]}
    assert differing <= {"down_meta.bin", "index.json"}
