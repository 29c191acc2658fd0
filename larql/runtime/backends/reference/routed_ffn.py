"""Routed experts in float64, one position at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from larql.errors import BindingDefect
from larql.format.graph import ExpertBank, RoutedFfn, Router
from larql.runtime.backends.reference.arithmetic import Arithmetic, Float64
from larql.runtime.backends.reference.dense_ffn import ACTIVATIONS, dense_ffn
from larql.runtime.taps import BlockTaps, Routing

__all__ = ["choose", "routed_ffn"]


def routed_ffn(
    mixer: RoutedFfn,
    inputs: list[Float64],
    taps: BlockTaps | None,
    arithmetic: Arithmetic,
) -> list[Float64]:
    """Return the operation's output for each position.

    Raises
    ------
    BindingDefect
        If a router's scores are not finite.
    """
    router = mixer.router
    read = [arithmetic.norm(router.norm, x) for x in inputs]
    logits = [row * router.factor for row in arithmetic.linear(router.scores, read)]
    rows = [arithmetic.norm(mixer.norm, x) for x in inputs]
    correction = None if router.correction is None else arithmetic.vector(router.correction)
    factors = None if router.expert_scale is None else arithmetic.vector(router.expert_scale)
    overall = 1.0 if router.global_scale is None else arithmetic.vector(router.global_scale)[0]
    found = [choose(router, row, correction, factors, overall) for row in logits]
    choices = [(ranks, chosen, weights) for ranks, chosen, weights, _ in found]
    sinks = [weights for *_, weights in found]
    wanted: dict[int, list[int]] = {}
    for t, (_, chosen, _) in enumerate(choices):
        for expert in chosen:
            wanted.setdefault(int(expert), []).append(t)
    made: dict[tuple[int, int], Float64] = {}
    for expert, positions in wanted.items():
        given = _expert(mixer.bank, expert, [rows[t] for t in positions], arithmetic)
        made.update(((t, expert), y) for t, y in zip(positions, given, strict=True))
    outputs = []
    for t, (_, chosen, weights) in enumerate(choices):
        output = np.zeros_like(inputs[t])
        for expert, weight in zip(chosen, weights, strict=True):
            output = output + weight * made[t, int(expert)]
        outputs.append(arithmetic.norm(mixer.post_norm, output))
    if mixer.shared is not None:
        beside = [arithmetic.norm(mixer.shared.norm, x) for x in inputs]
        shared = dense_ffn(mixer.shared.ffn, beside, (), 0, None, arithmetic)
        if mixer.shared.gate is not None:
            gates = arithmetic.linear(mixer.shared.gate, inputs)
            pairs = zip(gates, shared, strict=True)
            shared = [ACTIVATIONS["sigmoid"](gate) * output for gate, output in pairs]
        shared = [arithmetic.norm(mixer.shared.post_norm, row) for row in shared]
        outputs = [output + more for output, more in zip(outputs, shared, strict=True)]
    for number, ffn in enumerate(mixer.weighted or ()):
        beside = dense_ffn(ffn, inputs, (), 0, None, arithmetic)
        for t, more in enumerate(beside):
            outputs[t] = outputs[t] + sinks[t][number] * more
    if taps is not None:
        taps.routing = Routing(
            np.stack([ranks for ranks, _, _ in choices]).astype(np.float32),
            np.stack([chosen for _, chosen, _ in choices]),
            np.stack([weights for _, _, weights in choices]).astype(np.float32),
        )
    return outputs


def choose(
    router: Router,
    logits: Float64,
    correction: Float64 | None,
    factors: Float64 | None,
    overall: float = 1.0,
) -> tuple[Float64, npt.NDArray[np.int64], Float64, Float64]:
    """Choose experts for one position.

    Parameters
    ----------
    router : Router
    logits : float64 ``[experts + sinks]``
    correction, factors : float64 ``[experts]`` or None
        Added for choosing; multiplied with the weights.
    overall : float
        Factor of all weights.

    Returns
    -------
    tuple
        Ranks ``[experts]``, chosen experts ``[top]`` in the order of their selection, their
        weights ``[top]``, and those of the sinks ``[sinks]``.

    Raises
    ------
    BindingDefect
        If a rank is not finite.
    """
    every, logits = logits, logits[: router.experts]
    if router.score == "softmax":
        powers = np.exp(logits - logits.max())
        scores = powers / powers.sum()
    else:
        scores = ACTIVATIONS["sigmoid"](logits)
    # A softmax keeps the order, and its smallest values may no longer tell it.
    ordered = logits if router.ranks_by_logits else scores
    ranks = ordered if correction is None else ordered + correction
    if not (np.isfinite(ranks).all() and np.isfinite(every).all()):
        raise BindingDefect(
            f"{router.scores.weight}: the router's scores are not finite, so no expert can be "
            f"chosen; the weights before it are damaged, or overflow"
        )
    open_to = ranks.copy()
    groups = router.groups
    if groups is not None:
        by_group = ranks.reshape(groups.count, -1)
        best = np.sort(by_group, axis=1)[:, ::-1]
        group_scores = best[:, 0] if groups.score == "max" else best[:, 0] + best[:, 1]
        kept = np.lexsort((np.arange(groups.count), -group_scores))[: groups.kept]
        closed = np.setdiff1d(np.arange(groups.count), kept)
        open_to.reshape(groups.count, -1)[closed] = -np.inf
    chosen = np.lexsort((np.arange(len(ranks)), -open_to))[: router.top].astype(np.int64)
    weights, beside = scores[chosen], np.empty(0)
    if router.sinks is not None:
        joined = -np.logaddexp(0.0, -np.append(logits[chosen], every[router.experts :]))
        powers = np.exp(joined - joined.max())
        weights, beside = np.split(powers / powers.sum(), [router.top])
    elif router.renormalise:
        weights = weights / (weights.sum() + router.renormalise_eps)
    weights, beside = (part * (router.scale * overall) for part in (weights, beside))
    if factors is not None:
        weights = weights * factors[chosen]
    return ranks, chosen, weights, beside


def _expert(
    bank: ExpertBank, expert: int, inputs: list[Float64], arithmetic: Arithmetic
) -> list[Float64]:
    """Return one expert's output for some positions."""

    def product(name: str, vectors: list[Float64]) -> list[Float64]:
        return arithmetic.product_of(arithmetic.expert(name, expert), vectors)

    def vector(name: str | None) -> Float64 | float:
        return 0.0 if name is None else arithmetic.vector_of(arithmetic.expert(name, expert))

    if bank.gate_up is None:
        assert bank.gate is not None and bank.up is not None
        pairs = list(zip(product(bank.gate, inputs), product(bank.up, inputs), strict=True))
    else:
        bias = vector(bank.gate_up_bias)
        fused = [row + bias for row in product(bank.gate_up, inputs)]
        if bank.fused_rows == "interleaved":
            pairs = [(row[0::2], row[1::2]) for row in fused]
        else:
            pairs = [(row[: bank.width], row[bank.width :]) for row in fused]
    inner = []
    for gate, up in pairs:
        if bank.limit is not None:
            gate = np.minimum(gate, bank.limit)
            up = np.clip(up, -bank.limit, bank.limit)
        if bank.slope == 1.0:
            gate = ACTIVATIONS[bank.activation](gate)
        else:
            gate = gate * ACTIVATIONS["sigmoid"](bank.slope * gate)
        inner.append(gate * (up + bank.up_offset))
    bias = vector(bank.down_bias)
    return [row + bias for row in product(bank.down, inner)]
