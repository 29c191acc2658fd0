"""What ``moe_manifest.json`` says about the experts of each layer. A dense layer is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from larql.format.moe.programmes import InputSpace
from larql.format.names import layer_text

__all__ = [
    "MANIFEST_SCHEMA",
    "Dims",
    "ExpertBank",
    "GroupedTopK",
    "Manifest",
    "MoeLayer",
    "Router",
    "RouterInput",
    "Storage",
    "TopK",
    "Transforms",
]

MANIFEST_SCHEMA = 1


@dataclass(frozen=True)
class TopK:
    """Choose the ``k`` experts of the highest scores; equal scores by ascending id."""

    k: int


@dataclass(frozen=True)
class GroupedTopK:
    """Keep the best groups of consecutive experts, then choose ``k`` inside them.

    Attributes
    ----------
    k : int
        Experts chosen.
    groups, kept : int
        Groups of equal size, and how many are kept.
    group_score : str
        A group's score: the highest of its experts, or the sum of the two highest.
    """

    k: int
    groups: int
    kept: int
    group_score: Literal["max", "top2_sum"]


@dataclass(frozen=True)
class RouterInput:
    """What becomes of the vector that the router reads, apart from what experts read.

    ``x / sqrt(mean(x^2) + eps) * scale * factor``, the first step only where ``eps`` is given.

    Attributes
    ----------
    source : str
        ``expert_input``, or ``residual``: the carrier before the block's norm.
    eps : float or None
        Of the router's own root-mean-square norm.
    scale : str or None
        Operand ``[hidden]``.
    factor : float
    """

    source: Literal["expert_input", "residual"] = "expert_input"
    eps: float | None = None
    scale: str | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Router:
    """How experts are chosen and weighted.

    Attributes
    ----------
    scores : str
        Operand ``[experts, hidden]``; with a sink, ``[experts + shared experts, hidden]``.
    score : str
        Function of the scores.
    scored : str
        Whether it is applied to all scores before the selection, or to the selected ones after.
    selection : TopK or GroupedTopK
    renormalise : bool
        Whether the weights of the selected are divided by their sum.
    gate_bias : str or None
        Operand ``[experts]``, added to the scores.
    correction_bias : str or None
        Operand ``[experts]``, added for choosing only and not in the weights.
    quantile_balance : str or None
        Operand ``[experts]``: thresholds of quantile balancing, for choosing only.
    route_scale : float
        Factor of all weights.
    global_scale : str or None
        Operand of one element, a factor of all weights.
    expert_scale : str or None
        Operand ``[experts]``, a factor of each expert's weight; over the whole population.
    shared_sink : bool
        Whether shared experts take part in the normalisation of the routed ones.
    dense_sinks : int or None
        How many shared experts of the graph take part, where no bank holds them.
    input : RouterInput
    """

    scores: str
    score: Literal["softmax", "sigmoid"]
    scored: Literal["before", "after"]
    selection: TopK | GroupedTopK
    renormalise: bool
    gate_bias: str | None = None
    correction_bias: str | None = None
    quantile_balance: str | None = None
    route_scale: float = 1.0
    global_scale: str | None = None
    expert_scale: str | None = None
    shared_sink: bool = False
    dense_sinks: int | None = None
    input: RouterInput = RouterInput()


@dataclass(frozen=True)
class Transforms:
    """Matrices around the routed experts.

    Attributes
    ----------
    routed_input : str
        Operand ``[latent, hidden]``.
    routed_output : str
        Operand ``[hidden, latent]``.
    """

    routed_input: str
    routed_output: str


@dataclass(frozen=True)
class Dims:
    """Logical widths of a bank; the stored ones may be wider."""

    input: int
    intermediate: int
    output: int


@dataclass(frozen=True)
class ExpertBank:
    """One population of experts.

    Attributes
    ----------
    experts : int
        The population, of which only a part may be resident.
    programme : str
        Name in the registry.
    storage : str
        Key of the manifest's storages.
    dims : Dims
    input_space : str
        What the experts read.
    fused_rows : str or None
        How gate and up lie in a fused region, where the bank has one.
    """

    experts: int
    programme: str
    storage: str
    dims: Dims
    input_space: InputSpace = "hidden"
    fused_rows: Literal["contiguous_halves", "interleaved"] | None = None


@dataclass(frozen=True)
class MoeLayer:
    """The experts of one layer.

    Attributes
    ----------
    layer : int
    router : Router
    routed_bank : ExpertBank
    transforms : Transforms or None
    shared_bank : ExpertBank or None
    reduction : str
        How the outputs of the selected experts become one: their weighted sum.
    routed_output_norm : str or None
        Operand ``[hidden]``: weight of a norm of the reduced output.
    combine : str
        What is done with it: ``add`` it to the shared output, or ``replace``, without one.
    component : str or None
        Whose layer it is; None: that of the graph's first component, the model proper.
    """

    layer: int
    router: Router
    routed_bank: ExpertBank
    transforms: Transforms | None = None
    shared_bank: ExpertBank | None = None
    reduction: Literal["weighted_sum"] = "weighted_sum"
    routed_output_norm: str | None = None
    combine: Literal["add", "replace"] = "add"
    component: str | None = None

    @property
    def text(self) -> str:
        """For a message."""
        return layer_text(self.layer, self.component)


@dataclass(frozen=True)
class Storage:
    """Where a bank lies.

    Attributes
    ----------
    key : str
        What banks call it.
    files : tuple of str
        LYRW files of the layer that hold its entries.
    bank_id : int
        The bank in these files.
    group_width : int or None
        Entries of a group that is worth fetching at once.
    """

    key: str
    files: tuple[str, ...]
    bank_id: int
    group_width: int | None = None


@dataclass(frozen=True)
class Manifest:
    """The whole document.

    Attributes
    ----------
    layers : tuple of MoeLayer
    storages : tuple of Storage
    schema : int
    """

    layers: tuple[MoeLayer, ...]
    storages: tuple[Storage, ...] = ()
    schema: int = MANIFEST_SCHEMA
