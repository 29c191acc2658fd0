"""exp, tanh, erf and the activations, sixteen lanes at a time, with the same bits everywhere.

Built from fused multiply-adds, exactly rounded division and integer operations, so that no result
hangs on a libm. Largest errors, in units in the last place against float64, over all finite
arguments: exp 1.1 (results below 2^-126 within one subnormal step more), tanh 1.6, erf 1.3,
sigmoid 2.6. The tests hold these bounds. Polynomials are least-maximum fits made for this module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from larql.kernels.jit import device
from larql.kernels.vector import bits, fma, select, splat

__all__ = ["erf", "exp", "gelu_erf", "gelu_tanh", "relu", "relu2", "sigmoid", "silu", "tanh"]

Lanes = Any  # sixteen float32; a Numba type outside Python's type system

_F = np.float32
_I = np.int32
_ZERO, _HALF, _ONE, _TWO = _F(0), _F(0.5), _F(1), _F(2)
_LOG2_E = _F(1.44269504)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
# Adding and subtracting 1.5 * 2^23 rounds to the nearest integer; its bits then hold the integer.
_ROUND = _F(12582912.0)
_EXP_LEAST, _EXP_MOST = _F(-104.0), _F(89.0)
_E2, _E3, _E4, _E5, _E6 = _F(0.5), _F(0.16666518), _F(0.041666206), _F(0.008368954), _F(0.00139506)
_T0, _T1, _T2, _T3, _T4 = (
    _F(-0.3333328068), _F(0.1333142519), _F(-0.05373761058), _F(0.02063040622), _F(-0.00569351437)
)  # fmt: skip
_TANH_SMALL = _F(0.625)
_R0, _R1, _R2, _R3, _R4, _R5 = (
    _F(0.1283791512), _F(-0.3761249483), _F(0.1128180251), _F(-0.02676556632), _F(0.004990980495),
    _F(-0.000597689534),
)  # fmt: skip
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = (
    _F(1.758738214e-4), _F(-1.129520774), _F(-0.6333346367), _F(-0.1082939357), _F(0.02512861788),
    _F(-0.004174640402), _F(4.352183314e-4), _F(-2.116185533e-5),
)  # fmt: skip
_ERF_SMALL, _ERF_MOST = _F(0.9375), _F(4.0)
_SIGN, _MANTISSA_BITS, _BIAS = _I(-(1 << 31)), _I(23), _I(127)
_SQRT_HALF, _GELU_RATE, _GELU_CUBE = _F(0.70710678), _F(1.59576912), _F(0.044715)


@device
def exp(x: Lanes) -> Lanes:
    """Return e to the power x; NaN stays NaN."""
    x = select(x < splat(_EXP_LEAST), splat(_EXP_LEAST), x)
    x = select(x > splat(_EXP_MOST), splat(_EXP_MOST), x)
    shifted = fma(x, splat(_LOG2_E), splat(_ROUND))
    count = shifted - splat(_ROUND)
    r = fma(count, splat(-_LN2_HIGH), x)
    r = fma(count, splat(-_LN2_LOW), r)
    p = fma(splat(_E6), r, splat(_E5))
    p = fma(p, r, splat(_E4))
    p = fma(p, r, splat(_E3))
    p = fma(p, r, splat(_E2))
    p = fma(p * r, r, r) + splat(_ONE)
    power = bits(shifted) - bits(splat(_ROUND))
    first = power >> splat(_I(1))  # two steps: 2^power itself may not be a normal number
    second = power - first
    low = bits((first + splat(_BIAS)) << splat(_MANTISSA_BITS))
    high = bits((second + splat(_BIAS)) << splat(_MANTISSA_BITS))
    return p * low * high


@device
def _magnitude(x: Lanes) -> Lanes:
    return bits(bits(x) & splat(_I(0x7FFFFFFF)))


@device
def _with_sign(magnitude: Lanes, x: Lanes) -> Lanes:
    return bits(bits(magnitude) | (bits(x) & splat(_SIGN)))


@device
def tanh(x: Lanes) -> Lanes:
    """Return the hyperbolic tangent of x."""
    size = _magnitude(x)
    square = x * x
    p = fma(splat(_T4), square, splat(_T3))
    p = fma(p, square, splat(_T2))
    p = fma(p, square, splat(_T1))
    p = fma(p, square, splat(_T0))
    small = fma(p * square, x, x)
    large = splat(_ONE) - splat(_TWO) / (exp(size + size) + splat(_ONE))
    return select(size < splat(_TANH_SMALL), small, _with_sign(large, x))


@device
def erf(x: Lanes) -> Lanes:
    """Return the error function of x."""
    size = _magnitude(x)
    square = x * x
    p = fma(splat(_R5), square, splat(_R4))
    p = fma(p, square, splat(_R3))
    p = fma(p, square, splat(_R2))
    p = fma(p, square, splat(_R1))
    p = fma(p, square, splat(_R0))
    small = fma(p, x, x)
    t = select(size > splat(_ERF_MOST), splat(_ERF_MOST), size)
    q = fma(splat(_C7), t, splat(_C6))
    q = fma(q, t, splat(_C5))
    q = fma(q, t, splat(_C4))
    q = fma(q, t, splat(_C3))
    q = fma(q, t, splat(_C2))
    q = fma(q, t, splat(_C1))
    q = fma(q, t, splat(_C0))
    large = splat(_ONE) - exp(q)
    return select(size < splat(_ERF_SMALL), small, _with_sign(large, x))


@device
def sigmoid(x: Lanes) -> Lanes:
    """Return 1 / (1 + e^-x), from e^-|x| so that no intermediate overflows."""
    power = exp(bits(bits(x) | splat(_SIGN)))
    return select(x < splat(_ZERO), power, splat(_ONE)) / (splat(_ONE) + power)


@device
def silu(x: Lanes) -> Lanes:
    """Return x * sigmoid(x)."""
    return x * sigmoid(x)


@device
def gelu_tanh(x: Lanes) -> Lanes:
    """Return x/2 * (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), as x * sigmoid(2u)."""
    inner = fma(splat(_GELU_CUBE) * x * x, x, x)
    return x * sigmoid(splat(_GELU_RATE) * inner)


@device
def gelu_erf(x: Lanes) -> Lanes:
    """Return x/2 * (1 + erf(x / sqrt 2))."""
    return splat(_HALF) * x * (splat(_ONE) + erf(x * splat(_SQRT_HALF)))


@device
def relu(x: Lanes) -> Lanes:
    """Return x, or 0 where x is negative."""
    return select(x < splat(_ZERO), splat(_ZERO), x)


@device
def relu2(x: Lanes) -> Lanes:
    """Return the square of relu(x)."""
    positive = relu(x)
    return positive * positive
