"""What recurrent operations are made of, by kernels: convolutions, unit vectors and gated norms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from larql.format.graph import Activation, Convolution, Norm
from larql.kernels.activation import Kind, gate
from larql.kernels.convolution import NONE, Convolved, convolve
from larql.kernels.elementwise import add_scaled
from larql.kernels.norm import rms_norm
from larql.runtime.backends.production.arithmetic import Arithmetic, Float32
from larql.runtime.regions import Region
from larql.runtime.whole_regions import WholeRegion

__all__ = ["convolved", "gated", "gated_norm", "kind_of", "unit", "whole"]


def kind_of(activation: Activation) -> Kind:
    """Return the kernels' name of an activation."""
    return "gelu_erf" if activation == "gelu" else activation


def whole(regions: Sequence[Region]) -> list[WholeRegion]:
    """Return an operation's regions, all of which change with every position."""
    found = [region for region in regions if isinstance(region, WholeRegion)]
    assert len(found) == len(regions)
    return found


def convolved(
    convolutions: Sequence[tuple[Convolution, WholeRegion, Float32]],
    arithmetic: Arithmetic,
    before: Float32 | None = None,
    after: Float32 | None = None,
) -> list[Float32]:
    """Convolve inputs, and keep the last ones.

    Parameters
    ----------
    convolutions : sequence of (Convolution, rows, inputs)
        Inputs are float32 ``[T, channels]``.
    arithmetic : Arithmetic
        Holds the operands.
    before, after : float32 ``[T, channels]`` or None
        Factors of the inputs and of the outputs.

    Returns
    -------
    list of float32 ``[T, channels]``
    """
    parts: dict[str, list[Convolved]] = {}
    made = []
    for conv, rows, inputs in convolutions:
        out = arithmetic.memory.take(inputs.shape)
        bias = None if conv.bias is None else arithmetic.vectors[conv.bias]
        part = Convolved(
            inputs, rows.halves, rows.turn, arithmetic.columns(conv.weight), out, bias, before,
            after,
        )  # fmt: skip
        name = NONE if conv.activation is None else kind_of(conv.activation)
        parts.setdefault(name, []).append(part)
        made.append(out)
    for name, alike in parts.items():
        convolve(alike, name)
    for (conv, _, inputs), out in zip(convolutions, made, strict=True):
        if conv.residual:
            add_scaled(out, inputs, 1.0)
    return made


def unit(x: Float32, heads: int, eps: float, scale: float) -> Float32:
    """Divide each head by ``sqrt(sum(x^2) + eps)`` and multiply by ``scale``, in place.

    That is an RMS norm whose eps is ``eps / dim`` and whose weight is ``scale / sqrt(dim)``.

    Returns
    -------
    float32 ``[T, heads, dim]``
    """
    rows = x.reshape(len(x) * heads, -1)
    dim = rows.shape[1]
    weight = np.full(dim, scale / dim**0.5, np.float32)
    rms_norm(rows, weight, 0.0, eps / dim, rows)
    return rows.reshape(len(x), heads, dim)


def gated(x: Float32, factor: Float32, activation: Activation) -> Float32:
    """Multiply ``x`` by ``activation(factor)`` in place; both float32 ``[T, width]``."""
    gate(factor, x, kind_of(activation), x)
    return x


def gated_norm(
    norm: Norm, x: Float32, factor: Float32, activation: Activation, arithmetic: Arithmetic
) -> Float32:
    """Return ``norm(x) * activation(factor)``, each head of x ``[T, heads, dim]`` normalised."""
    count, heads, dim = x.shape
    normed = arithmetic.norm(norm, x.reshape(count * heads, dim))
    return gated(normed.reshape(count, -1), factor, activation)
