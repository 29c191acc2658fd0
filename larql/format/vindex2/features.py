"""The features of a VINDEX2 directory that can be searched: rows of ``gate_vectors.bin``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from larql.format.graph import Component, Norm, RoutedFfn
from larql.format.moe.profiles import Selection
from larql.format.moe.states import Absent, Damaged, Executable, State, Why
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.layout import GATE
from larql.format.vindex2.placement import dense_of, features_of

__all__ = ["FeatureBank", "feature_banks", "feature_state"]


@dataclass(frozen=True)
class FeatureBank:
    """The dense features of one layer. Experts are not among them in this generation.

    Attributes
    ----------
    name : str
        As the same network is called in a VINDEX3 container.
    layer : int
    block : int
        Number of the block that reads, counted over the component; 0 without a graph.
    norms : tuple of Norm
        Between the carrier and what the network reads; none without a graph.
    operand : str
        Whose rows the features are.
    width : int
        Features that the model has in this layer.
    """

    name: str
    layer: int
    block: int
    norms: tuple[Norm, ...]
    operand: str
    width: int


def feature_banks(directory: Vindex2) -> tuple[FeatureBank, ...]:
    """Return the layers that have dense features, ascending: as the graph says, else the index.

    Raises
    ------
    ContainerError, UnsupportedRefusal
        If there is a graph that cannot be read.
    """
    if directory.index.system_graph is not None:
        return tuple(_of_graph(directory.graph.components[0]))
    return tuple(
        FeatureBank(
            f"target.layer.{entry.layer:03d}/ffn",
            entry.layer,
            0,
            (),
            f"{GATE} of layer {entry.layer}",
            entry.num_features,
        )
        for entry in directory.details.layers
        if entry.num_features
    )


def _of_graph(component: Component) -> Iterator[FeatureBank]:
    number = 0
    for layer in component.layers:
        found = features_of(layer)
        for block in layer.blocks:
            if found is not None and dense_of(block) is not None:
                mixer, kind = block.mixer, "ffn"
                norms = [] if block.norm is None else [block.norm]
                if isinstance(mixer, RoutedFfn):
                    kind = "shared"
                    if mixer.shared is not None and mixer.shared.norm is not None:
                        norms.append(mixer.shared.norm)
                yield FeatureBank(
                    f"{component.id}.layer.{layer.index:03d}/{kind}",
                    layer.index,
                    number,
                    tuple(norms),
                    found[0].name,
                    found[0].shape[0],
                )
                found = None  # the first block that has features is the layer's
            number += 1


def feature_state(directory: Vindex2, selection: Selection, bank: FeatureBank) -> State:
    """Return whether a layer's gate vectors are here; none is read."""
    features = directory.details.features(bank.layer)
    held = 0 if features is None else features.num_features
    if GATE not in directory.listed or not held:
        what = f"is not in the directory, nor are layer {bank.layer}'s features"
        if GATE in directory.listed:
            what = f"has no features of layer {bank.layer}"
        return Absent(Why.NOWHERE, f"{GATE} {what}", selection.is_remote(bank.operand))
    assert features is not None
    path = directory.path / GATE
    if held != bank.width:
        return Damaged(f"{path}: has {held} features of layer {bank.layer}, not {bank.width}")
    size = directory.index.files[GATE].size
    if size < features.offset + features.length:
        return Damaged(f"{path}: is {size} bytes, layer {bank.layer} lies behind its end")
    # Rows are carried as the checkpoint has them; without a graph nothing says where from.
    known = directory.index.system_graph is not None
    return Executable("source-equivalent" if known else "numerically-approximate")
