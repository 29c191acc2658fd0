"""Measure kernels against what the machine can do, in one run.

Products with one vector are set against the rate at which the same threads read memory; products
with many against NumPy's float32 matrix product on one thread. Each kernel is timed in turn with
its yardstick, so that a busy machine slows both; medians of the ratios are what to look at.

    python scripts/bench/kernels.py --threads 2 --encodings q4_1,q8_0
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from larql.kernels import setup

RATIOS = 15


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--encodings", default="q4_1,q8_0,q5_0,q4_k,q6_k,f16,f32")
    parser.add_argument("--megabytes", type=int, default=96, help="weights of a one-vector product")
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--vectors", type=int, default=512)
    return parser.parse_args()


OPTIONS = arguments()
setup.configure(OPTIONS.threads)

from larql.kernels.attention import attend  # noqa: E402
from larql.kernels.encodings import BLOCKS  # noqa: E402
from larql.kernels.jit import Variant, compiled_address, kernel  # noqa: E402
from larql.kernels.memory import load, load_i64, store_f32  # noqa: E402
from larql.kernels.parts import Part  # noqa: E402
from larql.kernels.product import products  # noqa: E402
from larql.kernels.product_q8 import INTEGERS, products_q8  # noqa: E402
from larql.kernels.ring import empty_keys, empty_values, write_rows  # noqa: E402
from larql.kernels.rounding import quantize_rows  # noqa: E402
from larql.kernels.softmax import BLOCK  # noqa: E402
from larql.kernels.threads import launch  # noqa: E402
from larql.kernels.vector import lane_sum, splat  # noqa: E402

SHARE = 1 << 20
ZERO = np.float32(0)


@kernel
def read(variant: Any, p: int, task: int, worker: int) -> None:
    """Load a mebibyte."""
    source = load_i64(p) + task * SHARE
    a, b = splat(ZERO), splat(ZERO)
    for at in range(0, SHARE, 128):
        a = a + load(source + at)
        b = b + load(source + at + 64)
    store_f32(load_i64(p + 8) + task * 4, lane_sum(a + b))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def paired(call: Callable[[], object], yardstick: Callable[[], object]) -> tuple[list[float], ...]:
    """Return times of `call` and of `yardstick`, taken in turn."""
    call(), yardstick()
    pairs = [(seconds(call), seconds(yardstick)) for _ in range(RATIOS)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:7.2f} ({low:.2f}..{high:.2f})"


def reader(size: int) -> Callable[[], None]:
    data = np.ones(size // 4 + SHARE, np.float32)
    tasks = size // SHARE
    out = np.empty(tasks, np.float32)
    words = np.array([data.ctypes.data, out.ctypes.data])
    code = compiled_address(read, Variant(setup.current().level))
    return lambda: (launch(code, words, tasks), data)[0]


def one_vector(encoding: str, generator: np.random.Generator, rounded: bool) -> None:
    columns = OPTIONS.columns
    row_bytes = BLOCKS[encoding].row_bytes(columns)
    rows = OPTIONS.megabytes * SHARE // row_bytes
    weight = generator.integers(0, 100, rows * row_bytes, np.uint8)
    x, out = generator.standard_normal((1, columns)).astype(np.float32), np.empty((1, rows), "f4")
    part = Part(weight, encoding, rows, columns, out)
    if rounded:
        eight = quantize_rows(x)
        call = lambda: products_q8([part], eight)  # noqa: E731
    else:
        call = lambda: products([part], x)  # noqa: E731
    mine, theirs = paired(call, reader(weight.nbytes))
    rates = [weight.nbytes / t / 1e9 for t in mine]
    reads = [weight.nbytes // SHARE * SHARE / t / 1e9 for t in theirs]
    ratios = [a / b for a, b in zip(rates, reads, strict=True)]
    name = f"{encoding} q8" if rounded else encoding
    print(f"{name:7} x 1   GB/s {spread(rates)}  read {spread(reads)}  ratio {spread(ratios)}")


def many_vectors(encoding: str, generator: np.random.Generator, rounded: bool) -> None:
    columns, count, rows = OPTIONS.columns, OPTIONS.vectors, 1024
    weight = generator.integers(0, 100, rows * BLOCKS[encoding].row_bytes(columns), np.uint8)
    x = generator.standard_normal((count, columns)).astype(np.float32)
    dense = generator.standard_normal((columns, rows)).astype(np.float32)
    out = np.empty((count, rows), np.float32)
    part = Part(weight, encoding, rows, columns, out)
    if rounded:
        call = lambda: products_q8([part], quantize_rows(x))  # noqa: E731
    else:
        call = lambda: products([part], x)  # noqa: E731
    mine, theirs = paired(call, lambda: x @ dense)
    work = 2 * rows * columns * count / 1e9
    rates, blas = [work / t for t in mine], [work / t for t in theirs]
    ratios = [a / b for a, b in zip(rates, blas, strict=True)]
    name = f"{encoding} q8" if rounded else encoding
    print(
        f"{name:7} x {count} GFLOP/s {spread(rates)}  NumPy, one thread {spread(blas)}  "
        f"ratio {spread(ratios)}"
    )


def attention(generator: np.random.Generator, tokens: int, context: int, kv: str) -> None:
    heads, kv_heads, dims = 9, 3, 64
    q = generator.standard_normal((tokens, heads, dims)).astype(np.float32)
    rows = generator.standard_normal((context, kv_heads, dims)).astype(np.float32)
    keys = empty_keys(-(-context // BLOCK), kv_heads, dims, kv)
    values = empty_values(-(-context // BLOCK), kv_heads, dims, kv)
    write_rows(rows, rows, keys, values, 0)
    out = np.empty_like(q)

    def call() -> None:
        attend(q, keys, values, context - tokens, 0, 0.125, 0.0, None, out)

    call()
    micros = spread([1e6 * seconds(call) for _ in range(RATIOS)])
    print(
        f"attention of {tokens} on {context} {kv}, {heads}/{kv_heads} heads of {dims}, in µs: "
        f"{micros}"
    )


def main() -> None:
    print({k: v for k, v in setup.features().items() if v is not None})
    generator = np.random.default_rng(0)
    for encoding in OPTIONS.encodings.split(","):
        one_vector(encoding, generator, False)
        if encoding in INTEGERS:
            one_vector(encoding, generator, True)
    for encoding in OPTIONS.encodings.split(",")[:3]:
        many_vectors(encoding, generator, False)
        if encoding in INTEGERS:
            many_vectors(encoding, generator, True)
    for kv in ("f32", "f16"):
        attention(generator, 1, 1024, kv)
        attention(generator, 1, 4096, kv)
        attention(generator, 512, 512, kv)


if __name__ == "__main__":
    main()
