"""What a walk is asked for, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.moe.authority import Authority
from larql.format.moe.findings import Diagnosis
from larql.runtime.walk.queries import Query

__all__ = ["BankFeatures", "Feature", "Walk", "WalkOptions"]


@dataclass(frozen=True)
class WalkOptions:
    """What is asked for.

    Attributes
    ----------
    top : int
        Features of each bank.
    writes : int
        Tokens of each feature; 0: none, and no down projection is read.
    layers : (int, int) or None
        Half-open range of layers; None: all.
    partial : bool
        Search what is here, and tell what was dropped.
    threads : int or None
    component : str
    profile : str or None
        Which selects among representations; None: as for a run.
    """

    top: int = 10
    writes: int = 3
    layers: tuple[int, int] | None = None
    partial: bool = False
    threads: int | None = None
    component: str = "target"
    profile: str | None = None


@dataclass(frozen=True)
class Feature:
    """One feature that fires.

    Attributes
    ----------
    feature : int
        In the flattened space of its bank.
    expert : int or None
        To which it belongs, where the bank is one of experts.
    score : float
        The gate's product with the query.
    tokens : tuple of (int, float)
        That it writes, and the products of their rows in the head with what it writes.
    """

    feature: int
    expert: int | None
    score: float
    tokens: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class BankFeatures:
    """A bank, and the features of it that fire most.

    Attributes
    ----------
    bank : str
    layer : int
    searched, features : int
        How many features were searched, and how many the bank has.
    hits : tuple of Feature
        By descending score, then ascending feature.
    """

    bank: str
    layer: int
    searched: int
    features: int
    hits: tuple[Feature, ...]


@dataclass(frozen=True)
class Walk:
    """The answer.

    Attributes
    ----------
    query : Query
    profile : str or None
        None: the container's document as it stands.
    banks : tuple of BankFeatures
    dropped : tuple of Diagnosis
        Why banks, or parts of them, were not searched.
    authority : Authority
        Of rows and query.
    notes : tuple of str
    seconds, token_seconds : float
        Spent ranking, and telling tokens.
    """

    query: Query
    profile: str | None
    banks: tuple[BankFeatures, ...]
    dropped: tuple[Diagnosis, ...]
    authority: Authority
    notes: tuple[str, ...]
    seconds: float
    token_seconds: float
