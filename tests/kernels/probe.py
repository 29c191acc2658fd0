"""Run a few kernels in a process of their own and print a hash of the results of each.

Usage: python probe.py DIRECTORY-OF-PACKAGE THREADS [assembly] [few]; the level and the cache come
from the environment.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings

sys.path.insert(0, sys.argv[1])

import numpy as np

from larql.kernels import setup

CODED = ("q4_1", "q8_0", "q5_0", "q4_k", "q6_k", "iq4_nl", "f16")


def hashes(found: dict[str, np.ndarray]) -> dict[str, str]:  # type: ignore[type-arg]
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in found.items()}


def digests(few: bool) -> dict[str, str]:
    """Return a hash of each kernel's result on fixed operands; of the first ones where `few`."""
    from larql.kernels import (
        activation,
        attention,
        convolution,
        divergence,
        elementwise,
        expert_rows,
        forgetting,
        latent,
        lengthening,
        norm,
        parts,
        product,
        product_q8,
        recurrence,
        ring,
        rope,
        rounding,
        routing,
        survey,
    )
    from larql.kernels.encodings import BLOCKS

    generator = np.random.default_rng(5)

    def floats(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
        return generator.standard_normal(shape).astype(np.float32)

    found = {}
    for encoding in CODED[:1] if few else CODED:
        size = BLOCKS[encoding].row_bytes(256)
        raw = generator.integers(0, 124, (11, size), np.uint8)  # no scale is infinite
        x, out = floats(5, 256), np.empty((5, 11), np.float32)
        product.products([parts.Part(raw, encoding, 11, 256, out)], x)
        found[encoding] = out
        one = np.empty((1, 11), np.float32)
        product.products([parts.Part(raw, encoding, 11, 256, one)], x[:1])
        found[f"{encoding}, one vector"] = one
    if few:
        return hashes(found)
    for encoding in ("q4_1", "q8_0", "q6_k", "iq4_xs", "q2_k"):
        raw = generator.integers(0, 124, (9, BLOCKS[encoding].row_bytes(256)), np.uint8)
        x = floats(19, 256)
        for count in (3, 19):
            out = np.empty((count, 9), np.float32)
            part = parts.Part(raw, encoding, 9, 256, out)
            product_q8.products_q8([part], rounding.quantize_rows(x[:count]))
            found[f"{encoding} in integers, {count} vectors"] = out
    for encoding in ("q8_0_r16", "q4_1_r16", "q5_k_r16", "q6_k_r16"):
        raw = generator.integers(0, 124, (32, BLOCKS[encoding].row_bytes(256)), np.uint8)
        for count in (1, 3, 19):
            x, out = floats(count, 256), np.empty((count, 32), np.float32)
            product.products([parts.Part(raw, encoding, 32, 256, out)], x)
            found[f"{encoding}, {count} vectors"] = out
            out = np.empty((count, 32), np.float32)
            part = parts.Part(raw, encoding, 32, 256, out)
            product_q8.products_q8([part], rounding.quantize_rows(x))
            found[f"{encoding} in integers, {count} vectors"] = out
    x = floats(3, 50)
    found["norm"] = np.empty_like(x)
    norm.rms_norm(x, floats(50), 1.0, 1e-5, found["norm"])
    found["gate"] = np.empty_like(x)
    activation.gate(x, floats(3, 50), "gelu_tanh", found["gate"])
    table = np.empty((4, 8), np.float32), np.empty((4, 8), np.float32)
    rope.rotation_table(rope.inverse_frequencies(1e4, 16), 9000, 4, *table)
    found["table"] = table[1]
    rows, q = (floats(90, 2, 20), floats(90, 2, 72)), floats(20, 8, 20)
    words = generator.integers(0, 1 << 32, (64, 2, 80), np.uint32).view(np.float32)
    for kind in ("f32", "f16"):
        keys, values = ring.empty_keys(2, 2, 20, kind), ring.empty_values(2, 2, 72, kind)
        ring.write_rows(*rows, keys, values, 0)
        for tokens in (1, 20):
            out = found[f"attention, {kind}, {tokens}"] = np.empty((tokens, 8, 72), np.float32)
            attention.attend(q[:tokens], keys, values, 90 - tokens, 0, 0.25, 2.0, None, out)
        profiles = attention.padded_profiles(generator.standard_normal((3, 30)))
        near = attention.Distances(floats(20, 8, 3), profiles)
        out = found[f"attention to distances, {kind}"] = np.empty((20, 8, 72), np.float32)
        attention.attend(q, keys, values, 70, 0, 0.25, 0.0, None, out, near)
        keys, values = ring.empty_keys(1, 2, 80, kind), ring.empty_values(1, 2, 80, kind)
        ring.write_rows(words, words, keys, values, 0)
        found[f"kept keys, {kind}"], found[f"kept values, {kind}"] = keys, values
    found["lengthened"] = floats(5, 37)
    lengthening.lengthen(found["lengthened"], 90, 7, 0.3)
    raw = generator.integers(0, 124, (8 * 5, BLOCKS["q4_k"].row_bytes(256)), np.uint8)
    found["absorbed"] = np.empty((20, 8, 261), np.float32)
    latent.absorb(floats(20, 8, 5), floats(20, 8, 5), raw, "q4_k", 256, found["absorbed"])
    found["raised"] = np.empty((20, 8, 5), np.float32)
    latent.raise_heads(floats(20, 8, 256), raw, "q4_k", found["raised"])
    found["clamped"] = floats(3, 50)
    elementwise.clamp(found["clamped"], 0.5)
    x, y, weight = floats(5, 37), np.empty((5, 37), np.float32), floats(4, 37)
    kept = found["kept inputs"] = floats(2, 3, 37)
    turn, gates = np.zeros(1, np.int64), (floats(5, 37), floats(5, 37))
    part = convolution.Convolved(x, kept, turn, weight, y, floats(37), *gates)
    convolution.convolve([part], "silu")
    found["convolution"] = y
    steps, decays = found["steps"], found["decays"] = np.empty_like(x), np.empty_like(x)
    forgetting.forget(x * 9, weight[0], weight[1], (0.25, 8.0), steps, decays)
    rows, heads = (floats(5, 2, 11), floats(5, 2, 11), floats(5, 4, 20)), floats(5, 4)
    for rule, decay in (("delta", floats(5, 4, 11)), ("delta", heads), ("sum", heads)):
        name = f"{rule}, {decay.ndim}"
        state = found[f"state, {name}"] = np.zeros((2, 4, 2, 11, 16), np.float32)
        out = found[f"recurrence, {name}"] = np.empty((5, 4, 20), np.float32)
        recurrence.recur(rule, *rows, decay, heads, heads[0].copy(), state, turn, out)
    select = routing.Selection(5, "sigmoid", False, True, 1e-9, 1.3, 3, 2, "top2_sum")
    choice = routing.choose(floats(4, 21), select, floats(21), floats(21))
    found |= {"ranked": choice.ranks, "chosen": choice.chosen, "weights": choice.weights}
    sunk = routing.Selection(3, "sigmoid", False, True, 0.0, 1.3, sinks=2)
    choice_of_all = routing.choose(floats(4, 21), sunk, floats(19), None)
    found |= {"weights with sinks": choice_of_all.weights, "sinks": choice_of_all.shared}
    plain = routing.Selection(4, "softmax", True, False, 0.0, 1.0)
    found["softmax of experts"] = routing.choose(floats(4, 37), plain, None, None).weights
    found["experts added"] = np.empty((4, 37), np.float32)
    routing.add_chosen(floats(21, 37), choice.chosen, choice.weights, found["experts added"])
    found["biased"] = floats(4, 37)
    expert_rows.add_rows_of(found["biased"], floats(21, 37), np.array([3, 20, 3, 0]))
    once = rounding.quantize_rows(floats(9, 64), apart=True)
    found["rounded once"] = rounding.gather_rounded(once, np.arange(9)).values
    found["cut gates"] = floats(4, 37)
    routing.clamped_gate(floats(4, 37), found["cut gates"], limit=1.0, slope=1.7, offset=1.0)
    routing.scale_rows(found["cut gates"], floats(4))
    logits = floats(3, 203) * np.float32(9)
    seen = survey.Survey.begin(np.array([3, 200]), logits[:, [3, 200]], 5)
    for first in range(0, 203, 100):
        survey.survey(np.ascontiguousarray(logits[:, first : first + 100]), first, seen)
    found |= {"survey": seen.total, "ranks": seen.before, "top": seen.top()[0]}
    found["divergence"] = divergence.weighted_difference(logits, floats(3, 203), seen.largest)
    return hashes(found)


def assembly() -> str:
    """Return the machine code of the kernels run above, as text."""
    from larql.kernels import (
        activation,
        attention,
        attention_block,
        convolution,
        divergence,
        elementwise,
        expert_rows,
        forgetting,
        integer_slab_product,
        latent,
        lengthening,
        norm,
        product,
        recurrence,
        ring,
        rope,
        rounding,
        routing,
        slab_product,
        survey,
        unit_product,
    )
    from larql.kernels import product_q8 as integers

    kernels = (
        rounding._quantize,
        rounding._gather,
        expert_rows._add_rows_of,
        routing._choose,
        routing._add_chosen,
        routing._clamped_gate,
        routing._scale_rows,
        integers._rows,
        integers._unpack,
        integers._panel,
        product._coded_rows,
        product._expand_row,
        product._panel,
        slab_product._floats,
        slab_product._expand,
        integer_slab_product._integers,
        integer_slab_product._unpack,
        integer_slab_product._many,
        unit_product._one_of_packed,
        unit_product._one_of_plain,
        unit_product._spread_packed,
        unit_product._spread_plain,
        unit_product._many,
        norm._rms,
        activation._gate,
        rope._table,
        attention._attend_tokens,
        attention._attend_blocks,
        attention_block._block,
        ring._write,
        latent._absorb,
        latent._raise,
        elementwise._clamp,
        lengthening._lengthen,
        survey._row,
        divergence._row,
        convolution._convolve,
        forgetting._forget,
        recurrence._recur,
    )
    return "\n".join(
        text
        for kernel in kernels
        for text in kernel.inspect_asm().values()  # type: ignore[attr-defined]
    )


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    chosen = setup.configure(int(sys.argv[2]))
    report: dict[str, object] = {"level": chosen.level, "digests": digests("few" in sys.argv)}
    report["cache"] = None if chosen.cache_directory is None else str(chosen.cache_directory)
    if "assembly" in sys.argv:
        report["assembly"] = assembly()
report["warnings"] = [str(w.message) for w in caught if w.category is setup.KernelCacheWarning]
print(json.dumps(report))
