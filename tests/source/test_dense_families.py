"""What the dense families' configurations may say, and what is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from larql.format.graph import Component, SoftmaxAttention
from tests.builders.gguf import f32, u32
from tests.builders.gguf_names import POST_NORMS, Conversion, write_as_gguf
from tests.oracles.recorded import OWN
from tests.source.test_compiler_llama import refusal, rope, target

FULL, SLIDING = "full_attention", "sliding_attention"
ABSENT = object()


def edited(tmp_path: Path, name: str, changes: Mapping[str, object]) -> Path:
    """A copy of an oracle's checkpoint with other keys in ``config.json``; ABSENT takes one out."""
    path = tmp_path / "checkpoint"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(OWN / name / "checkpoint", path)
    config = json.loads((path / "config.json").read_text())
    for key, value in changes.items():
        if value is ABSENT:
            del config[key]
        else:
            config[key] = value
    (path / "config.json").write_text(json.dumps(config))
    return path


def mixers(component: Component) -> list[SoftmaxAttention]:
    found = [layer.blocks[0].mixer for layer in component.layers]
    assert all(isinstance(mixer, SoftmaxAttention) for mixer in found)
    return found  # type: ignore[return-value]


def windows(tmp_path: Path, name: str, changes: Mapping[str, object]) -> list[int | None]:
    return [mixer.window for mixer in mixers(target(edited(tmp_path, name, changes)))]


YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "smollm3", "olmo2", "gemma2"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_sparsity": 0.5}, "`attention_sparsity`: unknown to this family"),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "`rope_parameters.rope_type`"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "number of positions seen"),
        ({"rope_theta": 12345.0}, "`rope_theta` is 12345.0 but `rope_parameters.rope_theta` is"),
        ({"quantization_config": {"quant_method": "awq"}}, "`quantization_config`"),
        ({"num_hidden_layers": 1}, "nothing in the"),
        ({"intermediate_size": 48}, "expected [48, 32]"),
    ],
)
def test_every_family_refuses_by_name(
    tmp_path: Path, name: str, changes: dict[str, object], words: str
) -> None:
    if "num_hidden_layers" in changes:
        changes = {**changes, "layer_types": ABSENT} if name in ("qwen2", "gemma2") else changes
        if name in ("qwen3", "smollm3"):
            changes, words = dict(changes), "must agree"
    if "intermediate_size" in changes and name == "phi3":
        words = "expected [96, 32]"
    refusal(edited(tmp_path, name, changes), words)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_names_the_width_of_which_no_pairs_can_be_made(
    tmp_path: Path, name: str
) -> None:
    # Where only a share of them turns, that is what leaves too many.
    key = "partial_rotary_factor" if name == "phi3" else "head_dim"
    refusal(edited(tmp_path, name, {"head_dim": 7}), f"{key}` leaves", "expected an even count")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_refuses_an_unknown_activation(tmp_path: Path, name: str) -> None:
    key = "hidden_activation" if name == "gemma2" else "hidden_act"
    refusal(edited(tmp_path, name, {key: "xielu"}), f"`{key}` is 'xielu'", "silu")


def test_a_window_may_be_null_or_left_out(tmp_path: Path) -> None:
    assert windows(tmp_path, "mistral", {}) == [7] * 3
    assert windows(tmp_path, "mistral", {"sliding_window": None}) == [None] * 3
    assert windows(tmp_path, "mistral", {"sliding_window": ABSENT}) == [4096] * 3
    assert windows(tmp_path, "phi3", {"sliding_window": ABSENT}) == [None] * 2


@pytest.mark.parametrize("model_type", ["mistral", "ministral"])
def test_layers_with_a_window_and_without(tmp_path: Path, model_type: str) -> None:
    def found(*kinds: str, **changes: object) -> list[int | None]:
        stated = {"model_type": model_type, "layer_types": list(kinds), **changes}
        return windows(tmp_path, "mistral", stated)

    assert found(FULL, SLIDING, FULL) == [None, 7, None]
    assert found(*[SLIDING] * 3) == [7] * 3
    assert found(*[FULL] * 3) == found(*[FULL] * 3, sliding_window=None) == [None] * 3
    assert found(FULL, SLIDING, SLIDING, sliding_window=ABSENT) == [None, 4096, 4096]
    assert found(layer_types=None) == [7] * 3
    for changes, words in (
        ({"layer_types": [FULL] * 2}, ("`layer_types` is '2 entries'", "must agree")),
        ({"layer_types": [FULL, "chunked", FULL]}, ("`layer_types` holds 'chunked'",)),
        (
            {"layer_types": [FULL, SLIDING, FULL], "sliding_window": None},
            ("`layer_types` is", "`sliding_window` is None"),
        ),
    ):
        refusal(edited(tmp_path, "mistral", {"model_type": model_type, **changes}), *words)


def test_windows_of_the_later_layers(tmp_path: Path) -> None:
    by_number: dict[str, object] = {"layer_types": ABSENT}
    assert windows(tmp_path, "qwen2", {}) == [None, 6, 6]
    assert windows(tmp_path, "qwen2", by_number) == [None, 6, 6]
    assert windows(tmp_path, "qwen2", {**by_number, "max_window_layers": 2}) == [None, None, 6]
    assert windows(tmp_path, "qwen2", {**by_number, "max_window_layers": 0}) == [6, 6, 6]
    assert windows(tmp_path, "qwen2", {**by_number, "use_sliding_window": False}) == [None] * 3
    assert windows(tmp_path, "qwen2", {**by_number, "sliding_window": None}) == [None] * 3
    for changes in ({"use_sliding_window": False}, {"sliding_window": None}):
        refusal(edited(tmp_path, "qwen2", changes), "`layer_types`", "`use_sliding_window`")
    refusal(edited(tmp_path, "qwen2", {"layer_types": [FULL] * 4}), "`layer_types`", "4 entries")
    refusal(edited(tmp_path, "qwen2", {"layer_types": [FULL, "chunked", FULL]}), "'chunked'")
    refusal(
        edited(tmp_path, "qwen2", {"max_window_layers": 2}),
        "`layer_types` is 'sliding at [1, 2]' but `max_window_layers` is 2",
    )
    assert windows(tmp_path, "qwen2", {"max_window_layers": 28}) == [None, 6, 6]


def test_layers_without_positions(tmp_path: Path) -> None:
    def turning(changes: Mapping[str, object]) -> list[bool]:
        found = mixers(target(edited(tmp_path, "smollm3", {"layer_types": ABSENT, **changes})))
        return [mixer.rope is not None for mixer in found]

    assert turning({}) == [False, True, False]
    assert turning({"no_rope_layers": None, "no_rope_layer_interval": 2}) == [True, False, True]
    assert turning({"no_rope_layers": ABSENT, "no_rope_layer_interval": ABSENT}) == [True] * 3
    assert windows(tmp_path, "smollm3", {"layer_types": ABSENT}) == [6, None, 6]
    assert windows(tmp_path, "smollm3", {"layer_types": [FULL, SLIDING, FULL]}) == [None, 6, None]
    refusal(edited(tmp_path, "smollm3", {"use_sliding_window": False}), "`layer_types`")
    refusal(
        edited(tmp_path, "smollm3", {"no_rope_layers": [1], "layer_types": ABSENT}),
        "`no_rope_layers`",
        "1 entries",
    )
    refusal(edited(tmp_path, "smollm3", {"no_rope_layers": [1, 0, -1]}), "`no_rope_layers`")
    refusal(
        edited(tmp_path, "smollm3", {"no_rope_layer_interval": 2}),
        "`no_rope_layers` is '0 at [0, 2]' but `no_rope_layer_interval` is 2",
    )


def test_null_is_not_the_default_where_it_would_mean_something_else(tmp_path: Path) -> None:
    refusal(edited(tmp_path, "granite", {"attention_multiplier": None}), "`attention_multiplier`")
    rope = {"rope_type": None, "rope_theta": 500.0}
    for name in ("llama", "granite"):
        refusal(edited(tmp_path, name, {"rope_parameters": rope}), "rope_type` is null")


def test_soft_caps_may_be_null_or_left_out(tmp_path: Path) -> None:
    def caps(value: object) -> tuple[float | None, float | None]:
        keys = ("attn_logit_softcapping", "final_logit_softcapping")
        component = target(edited(tmp_path, "gemma2", dict.fromkeys(keys, value)))
        return mixers(component)[0].softcap, component.head.softcap

    assert caps(None) == (None, None)
    assert caps(ABSENT) == (50.0, 30.0)
    assert caps(3) == (3.0, 3.0)


def test_what_else_the_alternating_windows_refuse(tmp_path: Path) -> None:
    refusal(edited(tmp_path, "gemma2", {"sliding_window": None}), "`sliding_window` is null")
    refusal(edited(tmp_path, "gemma2", {"head_dim": None}), "`head_dim` is null")
    refusal(edited(tmp_path, "gemma2", {"hidden_act": "silu"}), "`hidden_act`", "must agree")
    assert target(edited(tmp_path, "gemma2", {"hidden_act": "gelu_pytorch_tanh"}))
    refusal(edited(tmp_path, "gemma2", {"use_bidirectional_attention": True}), "bidirectional")
    refusal(edited(tmp_path, "qwen3", {"head_dim": None}), "`head_dim` is null")


def test_multipliers_left_out_are_1(tmp_path: Path) -> None:
    keys = [f"{part}_multiplier" for part in ("attention", "embedding", "residual")]
    component = target(
        edited(tmp_path, "granite", dict.fromkeys([*keys, "logits_scaling"], ABSENT))
    )
    assert mixers(component)[0].scale == component.embed.scale == component.head.multiplier == 1.0
    assert component.layers[0].blocks[1].residual_scale == 1.0


# --- rotary settings --------------------------------------------------------------------------


def yarn(tmp_path: Path, **changes: object) -> Any:
    settings = {key: value for key, value in {**YARN, **changes}.items() if value is not ABSENT}
    return rope(edited(tmp_path, "mistral", {"rope_parameters": settings})).scaling


def test_numbers_of_yarn(tmp_path: Path) -> None:
    plain = yarn(tmp_path)
    assert (plain.beta_fast, plain.beta_slow, plain.truncate) == (32.0, 1.0, True)
    assert plain.magnitude == pytest.approx(0.1 * math.log(4.0) + 1.0, rel=1e-15)
    assert yarn(tmp_path, attention_factor=1.0).magnitude is None
    assert yarn(tmp_path, mscale=1.0, mscale_all_dim=1.0).magnitude is None
    found = yarn(tmp_path, mscale=1.0, mscale_all_dim=0.5).magnitude
    assert found == pytest.approx((0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1), rel=1e-15)
    # One of the two alone says nothing.
    assert yarn(tmp_path, mscale=0.5).magnitude == plain.magnitude
    assert yarn(tmp_path, original_max_position_embeddings=ABSENT).original_context == 64
    assert yarn(tmp_path, factor=ABSENT).factor == 64 / 16


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"beta_fast": -1.0}, "`rope_parameters.beta_fast`"),
        ({"beta_fast": 1.0}, "beta_fast is 1.0, expected more than 1.0"),
        ({"truncate": 1}, "`rope_parameters.truncate`"),
        ({"attention_factor": 0.0}, "`rope_parameters.attention_factor`"),
        ({"short_factor": [1.0]}, "`rope_parameters.short_factor`"),
        ({"original_max_position_embeddings": 0}, "`rope_parameters.original_max"),
        ({"partial_rotary_factor": 0.5}, "`rope_parameters.partial_rotary_factor`"),
        ({"rope_theta": 1.0}, "rope theta is 1.0"),
    ],
)
def test_numbers_of_yarn_that_do_not_fit(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    settings = {**YARN, **changes}
    refusal(edited(tmp_path, "mistral", {"rope_parameters": settings}), words)


def test_the_original_context_is_stated_once(tmp_path: Path) -> None:
    key = "original_max_position_embeddings"
    refusal(
        edited(tmp_path, "mistral", {"rope_parameters": YARN, key: 32}),
        f"`rope_parameters.{key}` is 16",
        "is 32; they must agree",
    )
    # Without it beside the lists, programs that read such models disagree.
    refusal(edited(tmp_path, "phi3-long", {key: ABSENT}), f"`{key}` is missing")


@pytest.mark.parametrize("alias", ["su", "yarn"])
def test_older_names_of_the_two_lists(tmp_path: Path, alias: str) -> None:
    path = edited(tmp_path, "phi3-short", {})
    config = json.loads((path / "config.json").read_text())
    expected = rope(path)
    settings = config["rope_scaling"]
    del settings["rope_type"]
    assert rope(edited(tmp_path, "phi3-short", {"rope_scaling": {**settings, "type": alias}})) == (
        expected
    )
    for key, value, words in (
        ("short_factor", [1.0] * 7, "`rope_scaling.short_factor` has 7 entries, expected 8"),
        ("long_factor", [1.0] * 7 + [0.0], "`rope_scaling.long_factor`"),
        ("long_factor", 2.0, "`rope_scaling.long_factor`"),
        ("long_mscale", 1.2, "`rope_scaling.long_mscale`"),
    ):
        changed = {**settings, "type": alias, key: value}
        refusal(edited(tmp_path, "phi3-short", {"rope_scaling": changed}), words)


def test_a_part_of_a_head_must_be_even_and_no_more_than_all(tmp_path: Path) -> None:
    for share, words in ((0.7, "partial_rotary_factor` leaves 11 of"), (1.5, "at most 1")):
        settings = {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": share}
        refusal(edited(tmp_path, "phi3", {"rope_parameters": settings}), words)
    refusal(edited(tmp_path, "phi3", {"partial_rotary_factor": 0.5}), "must agree")


def test_what_published_files_repeat(tmp_path: Path) -> None:
    config = json.loads((OWN / "gemma2" / "checkpoint" / "config.json").read_text())
    window = config["sliding_window"]
    target(edited(tmp_path, "gemma2", {"sliding_window_size": window}))
    refusal(
        edited(tmp_path, "gemma2", {"sliding_window_size": window + 1}),
        "`sliding_window_size`",
        "must agree",
    )
    target(edited(tmp_path, "smollm3", {"max_window_layers": 28}))


# --- GGUF -------------------------------------------------------------------------------------


def test_what_gguf_files_say_otherwise(tmp_path: Path) -> None:
    path = write_as_gguf(
        OWN / "phi3" / "checkpoint",
        tmp_path / "m.gguf",
        Conversion("phi3", keys=lambda config: {"rope.scaling.attn_factor": f32(1.25)}),
    )
    refusal(path, "`phi3.rope.scaling.attn_factor` is 1.25", "rope_factors_short.weight")
    path = write_as_gguf(
        OWN / "qwen3-yarn" / "checkpoint",
        tmp_path / "m.gguf",
        Conversion("qwen3", keys=lambda config: {"attention.sliding_window": u32(4)}),
    )
    refusal(path, "`qwen3.attention.sliding_window`")
    path = write_as_gguf(
        OWN / "gemma2-older" / "checkpoint",
        tmp_path / "m.gguf",
        Conversion("gemma2", names=POST_NORMS, keys=lambda config: {"block_count": u32(46)}),
    )
    refusal(path, "`gemma2.block_count` is 46")
