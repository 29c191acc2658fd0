"""Backends against a float64 forward pass that knows neither containers nor graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import CompileError, UsageError
from larql.format.container import Container
from larql.format.graph import Rope, SoftmaxAttention
from larql.runtime.backends.reference.backend import ReferenceBackend
from larql.runtime.backends.reference.rotation import frequencies as rope_frequencies
from larql.runtime.backends.reference.rotation import rotate
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from tests.builders.containers import (
    copy_container,
    edit_graph,
    edit_index,
    make_container,
    read_json,
)
from tests.builders.models import (
    GemmaSpec,
    LlamaSpec,
    Scaling,
    Type,
    Weights,
    gemma_weights,
    interleave,
    llama_weights,
    stored_weights,
    write_gemma_gguf,
    write_gemma_safetensors,
    write_llama_gguf,
    write_llama_safetensors,
)
from tests.naive.decoder import (
    Array,
    LayerNumbers,
    Numbers,
    forward,
    frequencies,
    gemma_numbers,
    llama_numbers,
)

Logits = npt.NDArray[np.float32]
TOKENS = [int(t) for t in np.random.default_rng(7).integers(0, 256, 20)]
CLOSE = 1e-5
"""Of the largest logit. A carrier is float32, so a correct run is within some 1e-7."""


def logits(
    container: Container,
    tokens: Sequence[int] = TOKENS,
    *,
    backend: str = "reference",
    chunk: int | None = None,
) -> Logits:
    run = open_run(container, RunOptions(backend=backend))
    session = Session(run.prepared, len(tokens), chunk)
    return session.logits(session.advance(tokens))


def difference(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """Largest difference relative to the largest logit."""
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max() / np.abs(expected).max())


LLAMAS: dict[str, LlamaSpec] = {
    "t0": LlamaSpec(),
    "tied": LlamaSpec(tied=True),
    "biases": LlamaSpec(attention_bias=True, mlp_bias=True),
    "head-dim": LlamaSpec(head_dim=32, kv_heads=1),
    "no-sharing": LlamaSpec(kv_heads=4, layers=1),
    "groups-of-six": LlamaSpec(heads=12, kv_heads=2, hidden=96, layers=1),
    "linear": LlamaSpec(scaling=Scaling("linear", 4.0)),
    "llama3": LlamaSpec(scaling=Scaling("llama3", 8.0, 1.0, 4.0, 64), style="new"),
    "bf16-sharded": LlamaSpec(dtype="bf16", shards=3, eps=1e-2, theta=500.0),
    "f16": LlamaSpec(dtype="f16", layers=3),
}
GEMMAS: dict[str, GemmaSpec] = {
    "plain": GemmaSpec(),
    "linear": GemmaSpec(factor=8.0, style="new"),
    "nested-bf16": GemmaSpec(factor=2.0, nested=True, dtype="bf16", shards=2),
    "two-full-layers": GemmaSpec(layers=12, window=7, kv_heads=2, theta=1000.0),
}


def weights_of(spec: LlamaSpec | GemmaSpec) -> Weights:
    return gemma_weights(spec) if isinstance(spec, GemmaSpec) else llama_weights(spec)


def numbers_of(spec: LlamaSpec | GemmaSpec) -> Numbers:
    return gemma_numbers(spec) if isinstance(spec, GemmaSpec) else llama_numbers(spec)


def write_safetensors(path: Path, spec: LlamaSpec | GemmaSpec) -> Path:
    if isinstance(spec, GemmaSpec):
        return write_gemma_safetensors(path, spec)
    return write_llama_safetensors(path, spec)


def write_gguf(path: Path, spec: LlamaSpec | GemmaSpec) -> Path:
    if isinstance(spec, GemmaSpec):
        return write_gemma_gguf(path, spec)
    return write_llama_gguf(path, spec)


@pytest.mark.parametrize(
    "spec",
    [*LLAMAS.values(), *GEMMAS.values()],
    ids=[*(f"llama-{name}" for name in LLAMAS), *(f"gemma-{name}" for name in GEMMAS)],
)
def test_both_formats_agree_with_the_oracle_and_each_other(
    tmp_path: Path, spec: LlamaSpec | GemmaSpec
) -> None:
    expected = forward(weights_of(spec), numbers_of(spec), TOKENS)
    safetensors = logits(make_container(write_safetensors(tmp_path / "m", spec), tmp_path / "a"))
    gguf = logits(make_container(write_gguf(tmp_path / "m.gguf", spec), tmp_path / "b"))
    assert difference(safetensors, expected) < CLOSE
    assert difference(gguf, expected) < CLOSE
    assert difference(gguf, safetensors) < CLOSE


@pytest.mark.parametrize(
    "kind",
    ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"],
)
def test_every_encoding_is_run_on_its_decoded_values(tmp_path: Path, kind: Type) -> None:
    spec = LlamaSpec(layers=1, hidden=256, ffn=256, tied=True, gguf_type=kind)
    container = make_container(write_llama_gguf(tmp_path / "m.gguf", spec), tmp_path / "out")
    expected = forward(stored_weights(spec), llama_numbers(spec), TOKENS)
    assert difference(logits(container), expected) < CLOSE
    assert difference(forward(llama_weights(spec), llama_numbers(spec), TOKENS), expected) > CLOSE


@pytest.mark.parametrize("kind", ["q8_0", "q4_1"])
def test_norms_and_windows_hold_in_quantised_files(tmp_path: Path, kind: Type) -> None:
    spec = GemmaSpec(gguf_type=kind)
    container = make_container(write_gemma_gguf(tmp_path / "m.gguf", spec), tmp_path / "out")
    expected = forward(stored_weights(spec), gemma_numbers(spec), TOKENS)
    assert difference(logits(container), expected) < CLOSE


@pytest.mark.parametrize(
    "spec",
    [LLAMAS["biases"], LLAMAS["llama3"], LLAMAS["head-dim"], GEMMAS["linear"]],
    ids=["biases", "llama3", "head-dim", "gemma"],
)
def test_production_agrees_with_the_oracle(tmp_path: Path, spec: LlamaSpec | GemmaSpec) -> None:
    """Within what float32 arithmetic costs; the smallest mistake known moves logits by 0.03."""
    expected = forward(weights_of(spec), numbers_of(spec), TOKENS)
    for write in (write_safetensors, write_gguf):
        source = write(tmp_path / f"{write.__name__}.gguf", spec)
        container = make_container(source, tmp_path / f"{write.__name__}.out")
        assert difference(logits(container, backend="production"), expected) < 1e-4


# --- the oracle can tell ----------------------------------------------------------------------


def change_layers(n: Numbers, change: Callable[[LayerNumbers], LayerNumbers]) -> Numbers:
    return replace(n, layers=tuple(change(layer) for layer in n.layers))


def wrong_layer(layer: LayerNumbers, by: int) -> LayerNumbers:
    return layer if layer.window is None else replace(layer, window=layer.window + by)


GEMMA = GemmaSpec(factor=8.0)
MISTAKES: dict[str, Callable[[Numbers], Numbers]] = {
    "norm offset left out": lambda n: replace(n, norm_offset=0.0),
    "norm offset added twice": lambda n: replace(n, norm_offset=2.0),
    "window one short": lambda n: change_layers(n, lambda layer: wrong_layer(layer, -1)),
    "window one long": lambda n: change_layers(n, lambda layer: wrong_layer(layer, 1)),
    "no window": lambda n: change_layers(n, lambda layer: replace(layer, window=None)),
    "scale of another width": lambda n: replace(n, scale=64**-0.5),
    "embedding not scaled": lambda n: replace(n, embed_scale=1.0),
    "another activation": lambda n: replace(n, gelu=False),
    "linear scaling on windowed layers": lambda n: change_layers(
        n,
        lambda layer: replace(
            layer, frequencies=layer.frequencies / (1 if layer.window is None else 8)
        ),
    ),
    "no linear scaling on full layers": lambda n: change_layers(
        n,
        lambda layer: replace(
            layer, frequencies=layer.frequencies * (8 if layer.window is None else 1)
        ),
    ),
    "global base everywhere": lambda n: change_layers(
        n, lambda layer: replace(layer, frequencies=n.layers[5].frequencies)
    ),
    "last layer dropped": lambda n: replace(n, layers=n.layers[:-1]),
    "eps of another family": lambda n: replace(n, eps=1e-2),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_each_single_mistake_would_show(mistake: Callable[[Numbers], Numbers]) -> None:
    weights, right = gemma_weights(GEMMA), gemma_numbers(GEMMA)
    expected = forward(weights, right, TOKENS)
    assert difference(forward(weights, mistake(right), TOKENS), expected) > 100 * CLOSE


@pytest.mark.parametrize("part", ["self_attn.k_proj.weight", "self_attn.q_proj.weight"])
@pytest.mark.parametrize("heads", [None, 1, 2, 4])
def test_rows_in_any_other_order_would_show(part: str, heads: int | None) -> None:
    """K is permuted by its own heads: by the query's, by none or not at all differs."""
    spec = LlamaSpec(layers=1)
    weights = llama_weights(spec)
    name = f"model.layers.0.{part}"
    expected = forward(weights, llama_numbers(spec), TOKENS)
    rows = weights[name]
    weights[name] = rows[::-1] if heads is None else interleave(rows, heads)
    assert difference(forward(weights, llama_numbers(spec), TOKENS), expected) > 100 * CLOSE


# --- sliding window ---------------------------------------------------------------------------


def windowed(directory: Path, window: int | None) -> Container:
    """Give every attention of a container a window, as its graph would have been made."""

    def change(graph: Any) -> None:
        (component,) = graph["components"]
        for layer in component["layers"]:
            layer["blocks"][0]["mixer"]["window"] = window
        for row in component["state"]:
            row |= {"span": "window", "window": window}

    return Container(edit_graph(directory, change))


@pytest.fixture
def one_layer(tmp_path: Path) -> Path:
    spec = LlamaSpec(layers=1)
    return make_container(write_llama_safetensors(tmp_path / "m", spec), tmp_path / "one").path


@pytest.mark.parametrize("window", [1, 2, 4, 19, 20, 21, 1000])
def test_a_window_hides_what_lies_before_it(one_layer: Path, window: int) -> None:
    found = logits(windowed(one_layer, window))
    spec = LlamaSpec(layers=1)
    expected = forward(llama_weights(spec), llama_numbers(spec, window=window), TOKENS)
    assert difference(found, expected) < CLOSE


@pytest.mark.parametrize("backend", ["reference", "production"])
def test_a_window_of_four_ends_between_positions_three_and_four(
    one_layer: Path, backend: str
) -> None:
    container = windowed(one_layer, 4)
    before = logits(container, backend=backend)
    after = logits(container, [TOKENS[0] ^ 1, *TOKENS[1:]], backend=backend)
    changed = [a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True)]
    assert changed == [True] * 4 + [False] * 16


@pytest.mark.parametrize("backend", ["reference", "production"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 20])
def test_steps_across_the_edge_of_the_window_equal_the_whole(
    one_layer: Path, backend: str, chunk: int
) -> None:
    container = windowed(one_layer, 4)
    whole = logits(container, backend=backend)
    assert logits(container, backend=backend, chunk=chunk).tobytes() == whole.tobytes()


def test_only_the_windowed_layers_of_a_gemma_forget(tmp_path: Path) -> None:
    """With a full layer the first token is seen from everywhere, without one it is not."""
    for layers, seen in ((6, 20), (5, 1 + 5 * 3)):
        spec = GemmaSpec(layers=layers)
        container = make_container(
            write_gemma_safetensors(tmp_path / f"{layers}", spec), tmp_path / f"{layers}.out"
        )
        before, after = logits(container), logits(container, [TOKENS[0] ^ 1, *TOKENS[1:]])
        changed = [a.tobytes() != b.tobytes() for a, b in zip(before, after, strict=True)]
        assert changed == [True] * seen + [False] * (20 - seen)


# --- rotary embedding -------------------------------------------------------------------------

REAL_LLAMA3 = LlamaSpec(
    layers=1, head_dim=128, theta=500000.0, scaling=Scaling("llama3", 8.0, 1.0, 4.0, 8192)
)


def rotation(container: Container, layer: int = 0) -> tuple[Rope, Array]:
    """A layer's rotary settings and the radians per position that the backend makes of them."""
    run = open_run(container, RunOptions(backend="reference"))
    mixer = container.component("target").layers[layer].blocks[0].mixer
    assert isinstance(mixer, SoftmaxAttention)
    assert mixer.rope is not None
    backend = run.prepared.backend
    assert isinstance(backend, ReferenceBackend)
    return mixer.rope, rope_frequencies(mixer.rope, backend._arithmetic)


def turned(rope: Rope, frequency: Array, head: Array, position: int) -> Array:
    """One head turned by the backend, its elements in the order of Hugging Face."""
    if rope.layout == "half":
        whole: Array = rotate(head[None], rope, frequency, position)[0]
        return whole
    pairs = head.reshape(2, -1).T.reshape(1, -1)
    out = rotate(pairs, rope, frequency, position)[0]
    return np.concatenate([out[0::2], out[1::2]])


def test_llama3_scaling_is_the_closed_form_in_all_three_ranges(tmp_path: Path) -> None:
    source = write_llama_safetensors(tmp_path / "m", REAL_LLAMA3)
    _rope, found = rotation(make_container(source, tmp_path / "out"))
    expected = frequencies(REAL_LLAMA3.theta, 128, REAL_LLAMA3.scaling)
    assert np.allclose(found, expected, rtol=1e-14, atol=0)
    ratio = frequencies(REAL_LLAMA3.theta, 128) / expected
    kept, divided = ratio == 1.0, np.isclose(ratio, 8.0, rtol=1e-12)
    between = ~kept & ~divided
    assert kept.sum() > 20
    assert divided.sum() > 20
    assert between.sum() > 3
    assert (np.diff(ratio) >= 0).all()


def test_rotary_factors_of_a_gguf_file_agree_at_position_9000(tmp_path: Path) -> None:
    containers = [
        make_container(write_llama_safetensors(tmp_path / "m", REAL_LLAMA3), tmp_path / "a"),
        make_container(write_llama_gguf(tmp_path / "m.gguf", REAL_LLAMA3), tmp_path / "b"),
    ]
    rotations = [rotation(container) for container in containers]
    assert [rope.layout for rope, _ in rotations] == ["half", "adjacent"]
    assert rotations[0][0].scaling is not None
    assert rotations[1][0].factors is not None
    head = np.random.default_rng(3).standard_normal(128)
    angle = 9000 * frequencies(REAL_LLAMA3.theta, 128, REAL_LLAMA3.scaling)
    expected = np.exp(1j * angle) * (head[:64] + 1j * head[64:])
    expected = np.concatenate([expected.real, expected.imag])
    for rope, frequency in rotations:
        assert np.abs(turned(rope, frequency, head, 9000) - expected).max() < 1e-5
    plain = frequencies(REAL_LLAMA3.theta, 128)
    assert np.abs(turned(rotations[0][0], plain, head, 9000) - expected).max() > 0.1


def test_a_linear_scaling_divides_on_full_layers_only(tmp_path: Path) -> None:
    for source in (
        write_gemma_safetensors(tmp_path / "m", GemmaSpec(factor=8.0)),
        write_gemma_gguf(tmp_path / "m.gguf", GemmaSpec(factor=8.0)),
    ):
        container = make_container(source, tmp_path / f"{source.name}.out")
        for layer in range(6):
            _rope, found = rotation(container, layer)
            expected = frequencies(1e6, 32) / 8.0 if layer == 5 else frequencies(1e4, 32)
            assert np.allclose(found, expected, rtol=1e-14, atol=0)


def test_part_of_a_head_turns_and_the_rest_does_not(tmp_path: Path) -> None:
    rope = Rope(layout="half", dims=8, theta=100.0)
    head = np.arange(1.0, 17.0)
    found = rotate(head[None], rope, frequencies(100.0, 8), 3)[0]
    angle = 3 * frequencies(100.0, 8)
    assert np.allclose(found[:4], head[:4] * np.cos(angle) - head[4:8] * np.sin(angle))
    assert (found[8:] == head[8:]).all()


# --- tied heads, multipliers, softcaps --------------------------------------------------------


def test_tied_heads_bind_what_they_should(tmp_path: Path) -> None:
    spec = LlamaSpec(layers=1, tied=True)
    tied, other = llama_weights(spec), llama_weights(LlamaSpec(layers=1))["lm_head.weight"]
    embedding = tied["model.embed_tokens.weight"]
    numbers = llama_numbers(spec)
    expected = forward(tied, numbers, TOKENS)
    for name, extra, wanted in (
        ("absent", {}, expected),
        ("identical", {"lm_head.weight": embedding}, expected),
        (
            "different",
            {"lm_head.weight": other},
            forward({**tied, "lm_head.weight": other}, numbers, TOKENS),
        ),
    ):
        source = write_llama_safetensors(tmp_path / name, spec, extra=extra)
        container = make_container(source, tmp_path / f"{name}.out")
        assert difference(logits(container), wanted) < CLOSE
        stored = (container.path / "segments" / "target.output_head.safetensors").exists()
        assert stored == (name == "different")
        notes = [note for note in container.index.notes if "lm_head" in note]
        assert len(notes) == (0 if name == "absent" else 1)
    source = write_llama_safetensors(
        tmp_path / "untied", spec, config={"tie_word_embeddings": False}
    )
    with pytest.raises(CompileError, match=r"lm_head\.weight is missing"):
        make_container(source, tmp_path / "untied.out")


def edited(one_layer: Path, tmp_path: Path, change: Callable[[Any], object]) -> Container:
    copy = copy_container(one_layer, tmp_path / "edited")
    return Container(edit_graph(copy, lambda graph: change(graph["components"][0])))


@pytest.mark.parametrize("backend", ["reference", "production"])
def test_a_multiplier_of_an_eighth_divides_logits_by_exactly_eight(
    one_layer: Path, tmp_path: Path, backend: str
) -> None:
    plain = logits(Container(one_layer), backend=backend)
    container = edited(one_layer, tmp_path, lambda c: c["head"].update(multiplier=0.125))
    assert (logits(container, backend=backend) * np.float32(8)).tobytes() == plain.tobytes()


def test_a_residual_scale_applies_to_both_blocks(one_layer: Path, tmp_path: Path) -> None:
    def change(component: Any) -> None:
        for block in component["layers"][0]["blocks"]:
            block["residual_scale"] = 0.22

    spec = LlamaSpec(layers=1)
    numbers = replace(llama_numbers(spec), residual_scale=0.22)
    expected = forward(llama_weights(spec), numbers, TOKENS)
    assert difference(logits(edited(one_layer, tmp_path, change)), expected) < CLOSE


def test_softcaps_bound_scores_and_logits(tmp_path: Path) -> None:
    spec = GemmaSpec()
    source = write_gemma_safetensors(tmp_path / "m", spec, config={"final_logit_softcapping": 1.5})

    def cap_scores(graph: Any) -> None:
        for layer in graph["components"][0]["layers"]:
            layer["blocks"][0]["mixer"]["softcap"] = 2.0

    made = make_container(source, tmp_path / "out")
    found = logits(Container(edit_graph(made.path, cap_scores)))
    numbers = replace(gemma_numbers(spec), attention_softcap=2.0, logit_softcap=1.5)
    assert difference(found, forward(gemma_weights(spec), numbers, TOKENS)) < CLOSE
    assert np.abs(found).max() < 1.5
    without = replace(numbers, attention_softcap=None)
    assert difference(found, forward(gemma_weights(spec), without, TOKENS)) > 100 * CLOSE


# --- what is not run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rope_scaling": {"rope_type": "mystery", "factor": 2.0}}, "'mystery'"),
        ({"rope_theta": 1.0, "rope_parameters": {"rope_theta": 2.0}}, "must agree"),
        ({"logits_scaling": 8.0}, "`logits_scaling`"),
        ({"hidden_act": "mish"}, "'mish'"),
        ({"model_type": "mystery"}, "'mystery'"),
    ],
)
def test_what_is_not_understood_never_runs(
    tmp_path: Path, config: dict[str, object], words: str
) -> None:
    source = write_llama_safetensors(tmp_path / "m", LlamaSpec(layers=1), config=config)
    with pytest.raises(CompileError, match=words):
        make_container(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("token", [-1, 256, 1 << 40])
def test_tokens_outside_the_vocabulary_are_refused(one_layer: Path, token: int) -> None:
    with pytest.raises(UsageError, match=f"token {token} at position 1"):
        logits(Container(one_layer), [5, token])


def test_a_container_runs_the_same_under_any_name(one_layer: Path, tmp_path: Path) -> None:
    """After extraction nothing depends on family, model or place."""
    plain = logits(Container(one_layer))
    moved = copy_container(one_layer, tmp_path / "elsewhere")
    edit_index(moved, lambda index: index.update(family="mystery", model="x", source={}))
    assert logits(Container(moved)).tobytes() == plain.tobytes()
    assert read_json(moved / "index.json")["family"] == "mystery"
