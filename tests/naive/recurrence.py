"""NumPy twins of convolutions and recurrent states, one position after the other."""

from __future__ import annotations

import numpy as np

from tests.naive.kernels import F32, F, fma


def convolve(
    x: F32, rows: F32, weight: F32, bias: F32 | None, before: F32 | None, after: F32 | None
) -> tuple[F32, F32]:
    """x [T, C], rows [taps - 1, C], weight [taps, C] -> what comes out, and the rows kept."""
    inputs = np.concatenate([rows, x if before is None else before * x])
    out = np.empty_like(x)
    for t in range(len(x)):
        total = np.zeros(x.shape[1], F) if bias is None else bias
        for tap, factor in enumerate(weight):
            total = fma(inputs[t + tap], factor, total)
        out[t] = total if after is None else total * after[t]
    return out, inputs[len(x) :]


def recur(
    rule: str,
    q: F32,
    k: F32,
    v: F32,
    decay: F32,
    beta: F32,
    skip: F32 | None,
    state: F32,
    tiled: bool = False,
) -> tuple[F32, F32]:
    """q, k [T, G, K], v [T, H, V], state [H, K, V] -> outputs [T, H, V], and the state."""
    heads = v.shape[1]
    state, out = state.copy(), np.empty_like(v)
    for t in range(len(v)):
        for head in range(heads):
            group = head % q.shape[1] if tiled else head // (heads // q.shape[1])
            key, value, s = k[t, group], v[t, head], state[head]
            s *= decay[t, head][..., None]
            change = value * beta[t, head]
            if rule == "delta":
                change = (value - _read(key, s)) * beta[t, head]
            s[...] = fma(key[:, None], np.broadcast_to(change, s.shape), s)
            out[t, head] = _read(q[t, group], s)
            if skip is not None:
                out[t, head] = fma(np.full_like(value, skip[head]), value, out[t, head])
    return out, state


def _read(vector: F32, state: F32) -> F32:
    """vector [K] times state [K, V] in four chains; what is left over goes to the first."""
    chains = [np.zeros(state.shape[1], F) for _ in range(4)]
    whole = len(vector) // 4 * 4
    for i, row in enumerate(state):
        chain = i % 4 if i < whole else 0
        chains[chain] = fma(np.full_like(row, vector[i]), row, chains[chain])
    total: F32 = (chains[0] + chains[1]) + (chains[2] + chains[3])
    return total
