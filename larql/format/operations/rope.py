"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from larql.format.operations.contract import Defect, OperandContract, above_0, at_least_1

__all__ = ["Rope", "RopeScaling"]


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched; f is the frequency of a pair, i its number.

    ``linear``: f / factor. ``llama3``: f / factor where the wavelength exceeds
    ``original_context / low_freq_factor``, f where it is below
    ``original_context / high_freq_factor``, a blend between. ``yarn`` (arXiv:2309.00071): f for
    pairs that turn more than ``beta_fast`` times in the original context, f / factor for those that
    turn less than ``beta_slow`` times, a ramp over i between. ``longrope`` (arXiv:2402.13753):
    f divided by a list of numbers, one list up to the original context and one beyond.

    Attributes
    ----------
    kind : {"linear", "llama3", "yarn", "longrope"}
    factor : float
        How much longer the context has become.
    low_freq_factor, high_freq_factor : float or None
        Of llama3.
    original_context : int or None
        Positions before stretching; not of linear.
    beta_fast, beta_slow : float or None
        Of yarn: the ramp's ends, in turns.
    truncate : bool or None
        Of yarn: whether the ramp's ends are rounded outwards to whole pairs.
    magnitude : float or None
        Of yarn and longrope: cos and sin are multiplied by it.
    divisors, long_divisors : tuple of float or None
        Of longrope, unless the rope names operands for them: a number for each pair, the second
        list for sessions with room for more than ``original_context`` positions.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope"]
    factor: float
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_context: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    magnitude: float | None = None
    divisors: tuple[float, ...] | None = None
    long_divisors: tuple[float, ...] | None = None

    def defects(self, pairs: int, where: str) -> Iterator[Defect]:
        """Yield what is wrong with stretching the frequencies of so many pairs."""
        yield from above_0(where, ("rope factor", self.factor), ("rope magnitude", self.magnitude))
        stated = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        needed, optional = _NUMBERS[self.kind]
        for name in sorted(needed - stated):
            yield Defect(where, f"{self.kind} rope scaling lacks {name}")
        for name in sorted(stated - needed - optional - {"kind", "factor"}):
            yield Defect(where, f"{self.kind} rope scaling has {name}, a number of another kind")
        yield from at_least_1(where, ("original_context", self.original_context))
        yield from above_0(
            where, ("low_freq_factor", self.low_freq_factor), ("beta_slow", self.beta_slow)
        )
        for first, second in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            low, high = getattr(self, first), getattr(self, second)
            if low is not None and high is not None and not high > low:
                yield Defect(where, f"{second} is {high}, expected more than {low}")
        for name, found in (("divisors", self.divisors), ("long_divisors", self.long_divisors)):
            if found is not None and len(found) != pairs:
                yield Defect(where, f"rope {name} are {len(found)}, expected {pairs}")
            yield from above_0(where, *((f"rope {name}", number) for number in found or ()))

    def words(self) -> str:
        """Return its numbers in a few words."""
        text = f"{self.kind} ÷{self.factor:.9g}"
        return text if self.magnitude is None else f"{text} × {self.magnitude:.9g}"


_NUMBERS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "linear": (frozenset(), frozenset()),
    "llama3": (
        frozenset({"low_freq_factor", "high_freq_factor", "original_context"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"original_context", "beta_fast", "beta_slow", "truncate"}),
        frozenset({"magnitude"}),
    ),
    "longrope": (
        frozenset({"original_context"}),
        frozenset({"magnitude", "divisors", "long_divisors"}),
    ),
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding over the first ``dims`` of a head.

    Attributes
    ----------
    layout : {"half", "adjacent"}
        Which element is turned with element i: ``i + dims/2``, or the neighbour ``2i, 2i+1``.
    dims : int
        Number of leading dimensions that turn.
    theta : float
        Pair i turns by ``theta ** (-2 i / dims)`` radians per position.
    scaling : RopeScaling or None
        Closed-form stretching of the frequencies.
    factors : str or None
        Operand of shape ``[dims / 2]`` that divides the frequencies.
    turning : int or None
        Only so many leading pairs turn and the others stand still; None: all of them.
    long_factors : str or None
        Operand of shape ``[dims / 2]`` that takes the place of ``factors`` in sessions with room
        for more positions than the scaling's original context.
    """

    layout: Literal["half", "adjacent"]
    dims: int
    theta: float
    scaling: RopeScaling | None = None
    factors: str | None = None
    turning: int | None = None
    long_factors: str | None = None

    def contracts(self, layer: int | None, use: str) -> Iterator[OperandContract]:
        """Yield the operands that it reads."""
        for name, part in ((self.factors, "factors"), (self.long_factors, "long_factors")):
            if name is not None:
                yield OperandContract(name, (self.dims // 2,), layer, f"{use}.{part}")

    def defects(self, key_dim: int, where: str) -> Iterator[Defect]:
        """Yield what is wrong with turning heads of ``key_dim``."""
        if self.dims % 2 or not 0 < self.dims <= key_dim:
            yield Defect(where, f"rope turns {self.dims} dims, expected an even count ≤ {key_dim}")
        if self.turning is not None and not 0 <= self.turning <= self.dims // 2:
            yield Defect(where, f"{self.turning} of {self.dims // 2} rope pairs cannot turn")
        yield from above_0(where, ("rope theta", self.theta))
        if self.scaling is not None:
            yield from self.scaling.defects(self.dims // 2, where)
            if self.scaling.kind == "yarn" and self.theta == 1.0:
                yield Defect(where, "rope theta is 1.0, at which yarn's ramp has no place")
        lists = self.scaling is not None and self.scaling.kind == "longrope"
        if self.long_factors is not None and not lists:
            yield Defect(where, "long rope factors belong to longrope scaling")
        if lists and self._lists() not in ("operands", "numbers"):
            yield Defect(
                where, "longrope scaling needs two lists, both of numbers or both of operands"
            )

    def _lists(self) -> str:
        assert self.scaling is not None
        numbers = (self.scaling.divisors, self.scaling.long_divisors)
        operands = (self.factors, self.long_factors)
        if None not in operands and numbers == (None, None):
            return "operands"
        return "numbers" if None not in numbers and operands == (None, None) else "mixed"

    @property
    def limit(self) -> int | None:
        """Most positions of a session for which the first of two lists holds; None: any."""
        chosen = self.scaling is None or self.scaling.kind != "longrope" or self._settled()
        return None if chosen or self.scaling is None else self.scaling.original_context

    def _settled(self) -> bool:
        assert self.scaling is not None
        return self.scaling.long_divisors is None and self.long_factors is None

    def settled(self, context: int) -> Rope:
        """Return the rope of a session with room for ``context`` positions: one list is left."""
        if self.limit is None or self.scaling is None:
            return self
        numbers, operand = self.scaling.divisors, self.factors
        if context > self.limit:
            numbers, operand = self.scaling.long_divisors, self.long_factors
        scaling = replace(self.scaling, divisors=numbers, long_divisors=None)
        return replace(self, scaling=scaling, factors=operand, long_factors=None)

    def words(self) -> str:
        """Return its numbers in a few words."""
        text = f"rope {self.layout} {self.dims} θ {self.theta:.9g}"
        if self.scaling is not None:
            text += f" {self.scaling.words()}"
        if self.turning is not None:
            text += f", first {self.turning} pairs"
        return text + (" with factors" if self.factors is not None else "")
