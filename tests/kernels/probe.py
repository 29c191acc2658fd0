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
    from larql.kernels import activation, attention, norm, product, product_q8, rope, survey
    from larql.kernels.encodings import BLOCKS

    generator = np.random.default_rng(5)

    def floats(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
        return generator.standard_normal(shape).astype(np.float32)

    found = {}
    for encoding in CODED[:1] if few else CODED:
        size = BLOCKS[encoding].row_bytes(256)
        raw = generator.integers(0, 124, (11, size), np.uint8)  # no scale is infinite
        x, out = floats(5, 256), np.empty((5, 11), np.float32)
        product.product(raw, encoding, 11, 256, x, out)
        found[encoding] = out
        one = np.empty((1, 11), np.float32)
        product.product(raw, encoding, 11, 256, x[:1], one)
        found[f"{encoding}, one vector"] = one
    if few:
        return hashes(found)
    for encoding in ("q4_1", "q8_0", "q6_k", "iq4_xs"):
        raw = generator.integers(0, 124, (9, BLOCKS[encoding].row_bytes(256)), np.uint8)
        out = np.empty((3, 9), np.float32)
        product_q8.product_q8(raw, encoding, 9, 256, product_q8.quantize_rows(floats(3, 256)), out)
        found[f"{encoding} in integers"] = out
    x = floats(3, 50)
    found["norm"] = np.empty_like(x)
    norm.rms_norm(x, floats(50), 1.0, 1e-5, found["norm"])
    found["gate"] = np.empty_like(x)
    activation.gate(x, floats(3, 50), "gelu_tanh", found["gate"])
    table = np.empty((4, 8), np.float32), np.empty((4, 8), np.float32)
    rope.rotation_table(rope.inverse_frequencies(1e4, 16), 9000, 4, *table)
    found["table"] = table[1]
    found["attention"] = np.empty((3, 4, 16), np.float32)
    ring = floats(90, 2, 16)
    attention.attend(
        floats(3, 4, 16), ring, floats(90, 2, 16), 80, 0, 0.25, 2.0, None, found["attention"]
    )
    rows = floats(3, 203) * np.float32(9)
    seen = survey.Survey.begin(np.array([3, 200]), rows[:, [3, 200]], 5)
    for first in range(0, 203, 100):
        survey.survey(np.ascontiguousarray(rows[:, first : first + 100]), first, seen)
    found |= {"survey": seen.total, "ranks": seen.before, "top": seen.top_columns}
    return hashes(found)


def assembly() -> str:
    """Return the machine code of the kernels run above, as text."""
    from larql.kernels import activation, attention, attention_block, norm, product, rope, survey
    from larql.kernels import product_q8 as integers

    kernels = (
        integers._quantize,
        integers._rows,
        product._coded_rows,
        product._expand_row,
        product._panel,
        norm._rms,
        activation._gate,
        rope._table,
        attention._attend_tokens,
        attention._attend_blocks,
        attention_block._rows,
        survey._row,
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
