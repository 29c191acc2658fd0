"""exp, tanh, erf and the activations, sixteen lanes at a time, with the same bits everywhere.

Built from fused multiply-adds, exactly rounded division and integer operations, so that no result
hangs on a libm. Largest errors, in units in the last place against float64, over all finite
arguments: exp 1.1 (results below 2^-126 within one subnormal step more), tanh 1.6, erf 1.3,
sigmoid 2.6, softplus 2.4. The tests hold these bounds. Polynomials are least-maximum fits made for
this module, but for the series of atanh.
"""

from __future__ import annotations

from larql.kernels.trace import Lanes, bits, fma, number, select, traced, whole

__all__ = [
    "erf", "exp", "gelu_erf", "gelu_tanh", "relu", "relu2", "sigmoid", "silu", "softplus", "tanh",
]  # fmt: skip

_LOG2_E = 1.44269504
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# Adding and subtracting 1.5 * 2^23 rounds to the nearest integer; its bits then hold the integer.
_ROUND = 12582912.0
_EXP_LEAST, _EXP_MOST = -104.0, 89.0
# Highest power first.
_EXP = (0.00139506, 0.008368954, 0.041666206, 0.16666518, 0.5)
_TANH = (-0.00569351437, 0.02063040622, -0.05373761058, 0.1333142519, -0.3333328068)
_ERF = (-0.000597689534, 0.004990980495, -0.02676556632, 0.1128180251, -0.3761249483, 0.1283791512)
_LOG_ERFC = (
    *(-2.116185533e-5, 4.352183314e-4, -0.004174640402, 0.02512861788, -0.1082939357),
    *(-0.6333346367, -1.129520774, 1.758738214e-4),
)
_TANH_SMALL, _ERF_SMALL, _ERF_MOST = 0.625, 0.9375, 4.0
# 1 / (2 n + 1): the series of atanh(s) / s in powers of s^2.
_ATANH = (1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3)
_SIGN, _SIZE = -(1 << 31), 0x7FFFFFFF
_SQRT_HALF, _GELU_RATE, _GELU_CUBE = 0.70710678, 1.59576912, 0.044715


def _polynomial(x: Lanes, coefficients: tuple[float, ...]) -> Lanes:
    value = number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = fma(value, x, number(x, coefficient))
    return value


def _exp(x: Lanes) -> Lanes:
    x = select(x < number(x, _EXP_LEAST), number(x, _EXP_LEAST), x)
    x = select(x > number(x, _EXP_MOST), number(x, _EXP_MOST), x)
    shifted = fma(x, number(x, _LOG2_E), number(x, _ROUND))
    count = shifted - number(x, _ROUND)
    r = fma(count, number(x, -_LN2_HIGH), x)
    r = fma(count, number(x, -_LN2_LOW), r)
    p = fma(_polynomial(r, _EXP) * r, r, r) + number(x, 1.0)
    power = bits(shifted) - bits(number(x, _ROUND))
    first = power >> 1  # two steps: 2^power itself may not be a normal number
    second = power - first
    low = bits((first + whole(x, 127)) << 23)
    high = bits((second + whole(x, 127)) << 23)
    return p * low * high


def _with_sign(magnitude: Lanes, x: Lanes) -> Lanes:
    return bits(bits(magnitude) | (bits(x) & whole(x, _SIGN)))


def _tanh(x: Lanes) -> Lanes:
    one = number(x, 1.0)
    size, square = bits(bits(x) & whole(x, _SIZE)), x * x
    small = fma(_polynomial(square, _TANH) * square, x, x)
    large = one - number(x, 2.0) / (_exp(size + size) + one)
    return select(size < number(x, _TANH_SMALL), small, _with_sign(large, x))


def _erf(x: Lanes) -> Lanes:
    size = bits(bits(x) & whole(x, _SIZE))
    small = fma(_polynomial(x * x, _ERF), x, x)
    t = select(size > number(x, _ERF_MOST), number(x, _ERF_MOST), size)
    large = number(x, 1.0) - _exp(_polynomial(t, _LOG_ERFC))
    return select(size < number(x, _ERF_SMALL), small, _with_sign(large, x))


def _sigmoid(x: Lanes) -> Lanes:
    one = number(x, 1.0)
    power = _exp(bits(bits(x) | whole(x, _SIGN)))  # of -|x|: no intermediate overflows
    return select(x < number(x, 0.0), power, one) / (one + power)


def _softplus(x: Lanes) -> Lanes:
    power = _exp(bits(bits(x) | whole(x, _SIGN)))  # of -|x|
    s = power / (power + number(x, 2.0))
    square = s * s
    log = fma(_polynomial(square, _ATANH) * square, s, s)
    return fma(number(x, 2.0), log, _relu(x))


def _relu(x: Lanes) -> Lanes:
    return select(x < number(x, 0.0), number(x, 0.0), x)


@traced
def exp(x: Lanes) -> Lanes:
    """Return e to the power x; NaN stays NaN."""
    return _exp(x)


@traced
def tanh(x: Lanes) -> Lanes:
    """Return the hyperbolic tangent of x."""
    return _tanh(x)


@traced
def erf(x: Lanes) -> Lanes:
    """Return the error function of x."""
    return _erf(x)


@traced
def sigmoid(x: Lanes) -> Lanes:
    """Return 1 / (1 + e^-x)."""
    return _sigmoid(x)


@traced
def softplus(x: Lanes) -> Lanes:
    """Return log(1 + e^x)."""
    return _softplus(x)


@traced
def silu(x: Lanes) -> Lanes:
    """Return x * sigmoid(x)."""
    return x * _sigmoid(x)


@traced
def gelu_tanh(x: Lanes) -> Lanes:
    """Return x/2 * (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), as x * sigmoid(2u)."""
    inner = fma(number(x, _GELU_CUBE) * x * x, x, x)
    return x * _sigmoid(number(x, _GELU_RATE) * inner)


@traced
def gelu_erf(x: Lanes) -> Lanes:
    """Return x/2 * (1 + erf(x / sqrt 2))."""
    return number(x, 0.5) * x * (number(x, 1.0) + _erf(x * number(x, _SQRT_HALF)))


@traced
def relu(x: Lanes) -> Lanes:
    """Return x, or 0 where x is negative."""
    return _relu(x)


@traced
def relu2(x: Lanes) -> Lanes:
    """Return the square of relu(x)."""
    positive = _relu(x)
    return positive * positive
