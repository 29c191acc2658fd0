"""Block decoders, element by element, after ggml's reference loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

F = np.float32
U8 = npt.NDArray[np.uint8]

ELEMENTS = {"f32": 1, "f16": 1, "bf16": 1}
SIZES = {
    "q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
    "iq4_nl": (32, 18), "mxfp4": (32, 17), "q2_k": (256, 84), "q3_k": (256, 110),
    "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "iq4_xs": (256, 136),
}  # fmt: skip
FLOATS = {"f32": 4, "f16": 2, "bf16": 2}
IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FP4 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]


def half(b: U8, at: int) -> F:
    return F(b[at : at + 2].copy().view(np.float16)[0])


def q8_0(b: U8) -> list[F]:
    return [half(b, 0) * F(q) for q in b[2:].view(np.int8)]


def nibbles(q: U8) -> list[int]:
    return [int(v) & 15 for v in q] + [int(v) >> 4 for v in q]


def q4_0(b: U8) -> list[F]:
    return [half(b, 0) * F(q - 8) for q in nibbles(b[2:])]


def q4_1(b: U8) -> list[F]:
    return [half(b, 0) * F(q) + half(b, 2) for q in nibbles(b[4:])]


def fives(b: U8, at: int) -> list[int]:
    high = int.from_bytes(b[at : at + 4].tobytes(), "little")
    return [q | (high >> j & 1) << 4 for j, q in enumerate(nibbles(b[at + 4 :]))]


def q5_0(b: U8) -> list[F]:
    return [half(b, 0) * F(q - 16) for q in fives(b, 2)]


def q5_1(b: U8) -> list[F]:
    return [half(b, 0) * F(q) + half(b, 2) for q in fives(b, 4)]


def iq4_nl(b: U8) -> list[F]:
    return [half(b, 0) * F(IQ4[q]) for q in nibbles(b[2:])]


def mxfp4(b: U8) -> list[F]:
    e = int(b[0])
    scale = np.array([0x00200000 << e if e < 2 else (e - 1) << 23], np.uint32).view(F)[0]
    return [scale * F(FP4[q]) for q in nibbles(b[1:])]


def k_scale(s: U8, j: int) -> tuple[int, int]:
    if j < 4:
        return int(s[j]) & 63, int(s[j + 4]) & 63
    low, top = int(s[j + 4]), int(s[j - 4]) >> 6
    return (low & 15) | top << 4, (low >> 4) | (int(s[j]) >> 6) << 4


def q4_k(b: U8) -> list[F]:
    out = []
    for j in range(8):
        scale, least = k_scale(b[4:16], j)
        for q in b[16 + 32 * (j // 2) :][:32]:
            value = int(q) >> 4 if j % 2 else int(q) & 15
            out.append(half(b, 0) * F(scale) * F(value) - half(b, 2) * F(least))
    return out


def q5_k(b: U8) -> list[F]:
    out = []
    for j in range(8):
        scale, least = k_scale(b[4:16], j)
        for i, q in enumerate(b[48 + 32 * (j // 2) :][:32]):
            value = (int(q) >> 4 if j % 2 else int(q) & 15) + 16 * (int(b[16 + i]) >> j & 1)
            out.append(half(b, 0) * F(scale) * F(value) - half(b, 2) * F(least))
    return out


def q6_k(b: U8) -> list[F]:
    out = np.zeros(256, F)
    scales = b[192:208].view(np.int8)
    for n in range(2):
        low, high = b[64 * n :], b[128 + 32 * n :]
        for i in range(32):
            h, at, s = int(high[i]), 128 * n, 8 * n + i // 16
            q = [
                (int(low[i]) & 15) | (h & 3) << 4,
                (int(low[i + 32]) & 15) | (h >> 2 & 3) << 4,
                (int(low[i]) >> 4) | (h >> 4 & 3) << 4,
                (int(low[i + 32]) >> 4) | (h >> 6 & 3) << 4,
            ]
            for k in range(4):
                out[at + 32 * k + i] = half(b, 208) * F(scales[s + 2 * k]) * F(q[k] - 32)
    return list(out)


def q2_k(b: U8) -> list[F]:
    out = []
    for g in range(16):
        n, shift, part = g // 8, 2 * (g % 8 // 2), g % 2
        scale, least = int(b[g]) & 15, int(b[g]) >> 4
        for q in b[16 + 32 * n + 16 * part :][:16]:
            value = int(q) >> shift & 3
            out.append(half(b, 80) * F(scale) * F(value) - half(b, 82) * F(least))
    return out


def q3_k(b: U8) -> list[F]:
    s = b[96:108]
    out = []
    for g in range(16):
        n, j, part = g // 8, g % 8 // 2, g % 2
        low = int(s[g % 8]) >> 4 if g >= 8 else int(s[g % 8]) & 15
        scale = (low | (int(s[8 + g % 4]) >> 2 * (g // 4) & 3) << 4) - 32
        for i in range(16):
            value = int(b[32 + 32 * n + 16 * part + i]) >> 2 * j & 3
            if not int(b[16 * part + i]) >> (g // 2) & 1:
                value -= 4
            out.append(half(b, 108) * F(scale) * F(value))
    return out


def iq4_xs(b: U8) -> list[F]:
    high = int(b[2]) | int(b[3]) << 8
    out = []
    for g in range(8):
        low = int(b[4 + g // 2]) >> 4 * (g % 2) & 15
        scale = half(b, 0) * F((low | (high >> 2 * g & 3) << 4) - 32)
        out += [scale * F(IQ4[q]) for q in nibbles(b[8 + 16 * g :][:16])]
    return out


BLOCKS: dict[str, Callable[[U8], list[F]]] = {
    f.__name__: f
    for f in (q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, mxfp4, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_xs)
}


def decode(encoding: str, row: U8) -> npt.NDArray[np.float32]:
    """Stored bytes of one row -> its weights."""
    if encoding == "f32":
        return row.copy().view(F)
    if encoding == "f16":
        return row.copy().view(np.float16).astype(F)
    if encoding == "bf16":
        return (row.copy().view(np.uint16).astype(np.uint32) << 16).view(F)
    _, size = SIZES[encoding]
    with np.errstate(all="ignore"):
        blocks = [BLOCKS[encoding](part) for part in row.reshape(-1, size)]
    return np.array(blocks, F).reshape(-1)


# where each encoding keeps binary16 scales, so that random bytes can be given finite ones
HALVES = {
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "iq4_nl": (0,),
    "mxfp4": (), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    "iq4_xs": (0,),
}  # fmt: skip


def random_rows(
    generator: np.random.Generator, encoding: str, rows: int, columns: int, plain: bool = True
) -> U8:
    """Stored bytes [rows, row_bytes]; `plain` keeps scales finite and of ordinary size."""
    if encoding in FLOATS:
        if plain:
            values = generator.standard_normal((rows, columns)).astype(F)
            if encoding == "bf16":
                return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            return values.astype(np.float16 if encoding == "f16" else F).view(np.uint8)
        return generator.integers(0, 256, (rows, columns * FLOATS[encoding]), np.uint8)
    elements, size = SIZES[encoding]
    data = generator.integers(0, 256, (rows, columns // elements, size), np.uint8)
    if plain:
        for at in HALVES[encoding]:
            scale = generator.uniform(-0.05, 0.05, data.shape[:2]).astype(np.float16)
            data[..., at : at + 2] = scale[..., None].view(np.uint8)
        if encoding == "mxfp4":
            data[..., 0] = generator.integers(118, 130, data.shape[:2])
    return data.reshape(rows, -1)
