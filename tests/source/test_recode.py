"""Asking for another encoding: each choice, what falls back and how that is recorded."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from larql.errors import EncodingError, UsageError
from larql.format.codec import ENCODINGS, decode, encode
from larql.format.container import Container, verify_container
from larql.format.index import Representation
from larql.format.progress import SilentProgress
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import SourceTensor
from larql.format.source.recode import QUANT_CHOICES, Recoding, choose_recoding
from tests.builders.containers import make_container
from tests.builders.models import (
    LlamaSpec,
    Type,
    Weights,
    llama_weights,
    stored_weights,
    write_llama_gguf,
    write_llama_safetensors,
)

WIDE = LlamaSpec(layers=1, hidden=256, ffn=512, heads=4, kv_heads=2)
"""Columns of 256 and 512: whole blocks of every encoding."""
MIXED = LlamaSpec(layers=1, hidden=64, ffn=256, heads=4, kv_heads=2)
"""Only ``down`` has columns that are a multiple of 256."""
ODD = LlamaSpec(layers=1, hidden=40, ffn=72, heads=4, kv_heads=2, head_dim=16)
"""Columns of 40 and 72: not even whole blocks of 32; only ``o`` has 64."""


def tensor(columns: int, encoding: str = "f32", *, axes: int = 2) -> Binding:
    enc = ENCODINGS[encoding]
    shape = (4, columns) if axes == 2 else (columns,)
    source = SourceTensor("t", shape, encoding.upper(), enc, "m", 0, enc.nbytes(shape))
    return Binding("target.layer.000/ffn.up.weight", source, source.shape)


@pytest.mark.parametrize("quant", QUANT_CHOICES)
@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "q4_1", "q6_k"])
def test_a_choice_is_taken_where_its_blocks_divide_a_row(quant: str, source: str) -> None:
    found = choose_recoding(tensor(512, source), quant)
    assert found == Recoding(ENCODINGS[quant], verbatim=quant == source)
    assert found.fidelity == ("source-exact" if quant == source else "numerically-approximate")


@pytest.mark.parametrize(
    ("quant", "columns", "stored", "requested"),
    [
        ("q4_k", 64, "q5_0", "q4_k"),
        ("q6_k", 64, "q8_0", "q6_k"),
        ("q4_k", 320, "q5_0", "q4_k"),
        ("q8_0", 64, "q8_0", None),
        ("q4_0", 64, "q4_0", None),
        ("q4_k", 40, "f32", "q4_k"),
        ("q6_k", 40, "f32", "q6_k"),
        ("q8_0", 40, "f32", "q8_0"),
        ("q4_0", 40, "f32", "q4_0"),
    ],
)
def test_where_blocks_do_not_divide_a_row_the_next_width_is_taken(
    quant: str, columns: int, stored: str, requested: str | None
) -> None:
    expected = Recoding(ENCODINGS[stored], verbatim=stored == "f32", requested=requested)
    assert choose_recoding(tensor(columns), quant) == expected


def test_a_fallback_that_is_the_source_is_carried() -> None:
    found = choose_recoding(tensor(64, "q5_0"), "q4_k")
    assert found == Recoding(ENCODINGS["q5_0"], verbatim=True, requested="q4_k")
    assert found.fidelity == "source-exact"


@pytest.mark.parametrize("quant", [None, *QUANT_CHOICES])
def test_vectors_are_always_carried(quant: str | None) -> None:
    assert choose_recoding(tensor(256, axes=1), quant) == Recoding(ENCODINGS["f32"], verbatim=True)


def test_without_a_choice_everything_is_carried() -> None:
    for source in (name for name, enc in ENCODINGS.items() if enc.unpacked is None):
        found = choose_recoding(tensor(512, source), None)
        assert found == Recoding(ENCODINGS[source], verbatim=True)


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("source", ["f32", "q5_k"])
@pytest.mark.parametrize("quant", ["q5_k", "f32", "", "Q8_0", "q8_0 ", "q8_0_r16"])
def test_an_unknown_choice_is_refused_even_where_it_would_do_nothing(
    quant: str, source: str, axes: int
) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--quant {quant!r}: expected one of q8_0")):
        choose_recoding(tensor(512, source, axes=axes), quant)


def matrices(container: Container) -> dict[str, Representation]:
    found = container.index.representations.values()
    return {r.source.tensor: r for r in found if len(r.shape) > 1}


def values(container: Container, representation: Representation) -> np.ndarray:
    data = container.segment(representation.segment).bytes_of(representation.tensor)
    rows = data.reshape(*representation.shape[:-1], -1)
    return decode(representation.encoding, rows, representation.shape[-1])


def errors(container: Container, weights: Weights) -> list[float]:
    """Root mean square error of each matrix, relative to its own."""
    found = []
    for name, representation in matrices(container).items():
        difference = values(container, representation) - weights[name]
        found.append(float(np.sqrt(np.mean(difference**2) / np.mean(weights[name] ** 2))))
    return found


@pytest.mark.parametrize(
    ("quant", "worst"), [("q8_0", 0.01), ("q6_k", 0.025), ("q4_k", 0.1), ("q4_0", 0.12)]
)
def test_each_choice_is_stored_and_close(tmp_path: Path, quant: str, worst: float) -> None:
    source = write_llama_safetensors(tmp_path / "m", WIDE)
    container = make_container(source, tmp_path / "out", quant=quant)
    assert verify_container(container, SilentProgress()) == []
    found = matrices(container)
    assert {r.encoding.name for r in found.values()} == {quant}
    assert {r.fidelity for r in found.values()} == {"numerically-approximate"}
    assert {r.source.encoding for r in found.values()} == {"f32"}
    vectors = [r for r in container.index.representations.values() if len(r.shape) == 1]
    assert {(r.encoding.name, r.fidelity) for r in vectors} == {("f32", "source-exact")}
    assert worst / 4 < max(errors(container, llama_weights(WIDE))) < worst
    assert not any("whose block" in note for note in container.index.notes)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_values_are_encoded_from_any_float(tmp_path: Path, dtype: str) -> None:
    spec = LlamaSpec(layers=1, dtype="f16" if dtype == "f16" else "bf16")
    source = write_llama_safetensors(tmp_path / "m", spec)
    container = make_container(source, tmp_path / "out", quant="q8_0")
    weights = llama_weights(spec)
    for name, representation in matrices(container).items():
        expected = encode(ENCODINGS["q8_0"], weights[name])
        data = container.segment(representation.segment).bytes_of(representation.tensor)
        assert data.tobytes() == expected.tobytes()


@pytest.mark.parametrize("stored", ["q4_0", "q6_k", "q8_0"])
def test_a_quantised_source_is_decoded_first(tmp_path: Path, stored: Type) -> None:
    spec = LlamaSpec(layers=1, hidden=256, ffn=256, tied=True, gguf_type=stored)
    container = make_container(
        write_llama_gguf(tmp_path / "m.gguf", spec), tmp_path / "out", quant="q8_0"
    )
    weights = stored_weights(spec)
    found = container.operands["target.layer.000/ffn.down.weight"]
    expected = encode(ENCODINGS["q8_0"], weights["model.layers.0.mlp.down_proj.weight"])
    data = container.segment(found.segment).bytes_of(found.tensor)
    assert data.tobytes() == expected.tobytes() or stored == "q8_0"
    assert found.fidelity == ("source-exact" if stored == "q8_0" else "numerically-approximate")
    assert found.source.encoding == stored


@pytest.mark.parametrize(("quant", "narrower"), [("q4_k", "q5_0"), ("q6_k", "q8_0")])
def test_a_fallback_is_recorded_by_tensor_and_counted(
    tmp_path: Path, quant: str, narrower: str
) -> None:
    source = write_llama_safetensors(tmp_path / "m", MIXED)
    container = make_container(source, tmp_path / "out", quant=quant)
    assert verify_container(container, SilentProgress()) == []
    found = matrices(container)
    down = found.pop("model.layers.0.mlp.down_proj.weight")
    assert (down.encoding.name, down.requested) == (quant, None)
    assert {(r.encoding.name, r.requested) for r in found.values()} == {(narrower, quant)}
    notes = [note for note in container.index.notes if "whose block" in note]
    assert notes == [
        f"{len(found)} tensors are {narrower} instead of {quant}, whose block does not divide "
        f"their rows"
    ]
    shares = {share.encoding: share.tensors for share in container.census()}
    assert shares == {narrower: len(found), quant: 1, "f32": 3}


@pytest.mark.parametrize("quant", QUANT_CHOICES)
def test_rows_are_never_padded(tmp_path: Path, quant: str) -> None:
    source = write_llama_safetensors(tmp_path / "m", ODD)
    container = make_container(source, tmp_path / "out", quant=quant)
    assert verify_container(container, SilentProgress()) == []
    weights = llama_weights(ODD)
    for name, representation in matrices(container).items():
        assert representation.shape == weights[name].shape
        if name.endswith("o_proj.weight"):
            assert representation.encoding.is_block
            continue
        assert (representation.encoding.name, representation.fidelity) == ("f32", "source-exact")
        assert representation.requested == quant
        assert np.array_equal(values(container, representation), weights[name])
    assert f"are f32 instead of {quant}" in "".join(container.index.notes)


def test_many_row_blocks_encode_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from larql.format.source import recode

    spec = LlamaSpec(layers=1, hidden=256, heads=2, kv_heads=1, head_dim=16, ffn=64, vocab=32)
    source = write_llama_safetensors(tmp_path / "m", spec)
    whole = make_container(source, tmp_path / "all", quant="q4_k").fingerprint
    for number, nbytes in enumerate((1, 7 * 4 * 256)):
        monkeypatch.setattr(recode, "_CHUNK", nbytes)
        again = make_container(source, tmp_path / str(number), quant="q4_k")
        assert again.fingerprint == whole


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_that_cannot_be_encoded_are_refused_by_tensor(tmp_path: Path, value: float) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    wrong = llama_weights(WIDE)[name].copy()
    wrong[3, 5] = value
    source = write_llama_safetensors(tmp_path / "m", WIDE, extra={name: wrong})
    with pytest.raises(EncodingError) as caught:
        make_container(source, tmp_path / "out", quant="q8_0")
    assert f"model.safetensors: tensor {name}: q8_0: row 3" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]
    make_container(source, tmp_path / "out")
