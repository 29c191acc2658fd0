"""What the codec tests share: names, stored blocks with awkward scales, and kinds of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from larql.format.codec import ENCODINGS, encodable_names

NAMES = tuple(name for name, enc in ENCODINGS.items() if enc.unpacked is None)
PACKED_NAMES = tuple(name for name in ENCODINGS if name not in NAMES)
BLOCK_NAMES = tuple(name for name in NAMES if ENCODINGS[name].is_block)
ENCODED_BLOCKS = tuple(name for name in BLOCK_NAMES if name in encodable_names())

HALF_AT = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
}
"""Byte positions of the float16 scales in a block."""

AWKWARD_HALVES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0xFE00)
"""Zeros, subnormals, the largest, infinities and both kinds of NaN."""


@st.composite
def stored_blocks(draw: st.DrawFn, name: str, count: int) -> npt.NDArray[np.uint8]:
    """Random blocks ``[count, block_bytes]``; scales are awkward as often as not."""
    enc = ENCODINGS[name]
    raw = draw(st.binary(min_size=count * enc.block_bytes, max_size=count * enc.block_bytes))
    blocks = np.frombuffer(raw, np.uint8).reshape(count, enc.block_bytes).copy()
    for at in HALF_AT.get(name, ()):
        for block in blocks:
            word = draw(st.none() | st.sampled_from(AWKWARD_HALVES))
            if word is not None:
                block[at : at + 2] = (word & 255, word >> 8)
    if name == "mxfp4":
        blocks[:, 0] = np.minimum(blocks[:, 0], 254)
    return blocks


KINDS = (
    "normal",
    "heavy",
    "positive",
    "negative",
    "spikes",
    "zeros",
    "constant",
    "level",
    "ties",
    "uneven",
    "tiny",
    "large",
    "minute",
    "denormal",
)


def rows(kind: str, seed: int, count: int, columns: int) -> npt.NDArray[np.float32]:
    """Finite rows ``[count, columns]`` that each fit a float16 scale."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, columns))
    match kind:
        case "heavy":
            x = x**5
        case "positive":
            x = np.abs(x) + 0.5
        case "negative":
            x = -np.abs(x) - 0.5
        case "spikes":
            x = x * (rng.random(x.shape) < 0.05)
        case "zeros":
            x = x * 0.0  # both signs
        case "constant":
            x[...] = x[:, :1]
        case "level":  # fits of such runs are ill-conditioned
            x = np.abs(x[:, ::32]).repeat(32, axis=1) + x * 1e-3
        case "ties":
            x = np.round(x * 4) / 8
        case "uneven":
            x = x * np.exp(rng.uniform(-20, 4, (count, columns // 16))).repeat(16, axis=1)
        case "tiny":
            x = x * 1e-7
        case "minute":
            x = x * 5e-15
        case "large":
            x = x * 1e4
        case "denormal":
            x = x * 1e-41
    return np.ascontiguousarray(x, np.float32)


def same_floats(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    """Bit equality, with any NaN equal to any other."""
    nan = np.isnan(a)
    return bool(
        a.shape == b.shape
        and np.array_equal(nan, np.isnan(b))
        and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])
    )
