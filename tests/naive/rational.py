"""Float32 arithmetic by exact rational numbers: what the other twins are held to."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf

_LEAST, _MOST = -126, 2**24 * Fraction(2) ** 104


def rounded(value: Fraction) -> Fraction | float:
    """The float32 nearest to a number, ties to even; infinite from half a step past the last on."""
    if not value:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, _LEAST) - 23)
    found = round(value / step) * step
    if abs(found) < _MOST:
        return found
    return inf if value > 0 else -inf


def finite(value: Fraction) -> Fraction:
    """The float32 nearest to a number that is not near the largest."""
    found = rounded(value)
    assert isinstance(found, Fraction)
    return found


def unit_product(
    units: Sequence[tuple[Sequence[int], Fraction, Fraction | None]],
    first: int,
    x: Sequence[Fraction],
) -> Fraction:
    """The product of one row of units (bits, scale, shift) and a vector, rounded as it says."""
    total, at = Fraction(0), 0
    for bits, scale, shift in units:
        values = [*x[at : at + len(bits)], *[Fraction(0)] * len(bits)][: len(bits)]
        at += len(bits)
        lanes = [Fraction(0)] * 4
        for i, (bit, value) in enumerate(zip(bits, values, strict=True)):
            lanes[i % 4] = finite(bit * 2 ** (8 * (i % 4)) * value + lanes[i % 4])
        even, odd = finite(lanes[2] / 2**16 + lanes[0]), finite(lanes[3] / 2**16 + lanes[1])
        found = finite(odd / 2**8 + even)
        sums = values[:4]
        for i, value in enumerate(values[4:]):
            sums[i % 4] = finite(sums[i % 4] + value)
        whole = finite(finite(sums[0] + sums[2]) + finite(sums[1] + sums[3]))
        if first:
            found = finite(first * whole + found)
        total = finite(found * scale + total)
        if shift is not None:
            total = finite(whole * shift + total)
    return total
