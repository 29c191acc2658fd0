"""The manifest that the components' operations imply; the graph is the authority of the two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from larql.format.graph import Component, RoutedFfn
from larql.format.index import Representation
from larql.format.moe.manifest import (
    Dims,
    ExpertBank,
    GroupedTopK,
    Manifest,
    MoeLayer,
    Router,
    RouterInput,
    Storage,
    TopK,
    Transforms,
)
from larql.format.names import bank_key

__all__ = ["ROUTED_BANK", "Place", "bank_files_of", "manifest_of", "routed_layers"]

ROUTED_BANK = 0
"""Id of the routed experts' bank in each file."""

Place = tuple[str | None, int]
"""Component and layer of a bank; None for the first component."""


def routed_layers(components: Sequence[Component]) -> Iterator[tuple[Place, RoutedFfn]]:
    """Yield the routed layers of a graph's components, in their order."""
    for number, component in enumerate(components):
        for layer in component.layers:
            for block in layer.blocks:
                if isinstance(block.mixer, RoutedFfn):
                    yield (component.id if number else None, layer.index), block.mixer


def bank_files_of(
    components: Sequence[Component], representations: Mapping[str, Representation]
) -> dict[Place, str]:
    """Return by component and layer the file in which the operands of its experts begin.

    Parameters
    ----------
    components : sequence of Component
        Those of a graph.
    representations : mapping
        Those of a container, by whatever key. Layers of which it holds no experts are left out.
    """
    segments: dict[str, str] = {}
    for value in representations.values():
        segments.setdefault(value.operand, value.segment)
    found = {}
    for place, mixer in routed_layers(components):
        contracts = mixer.bank.contracts(place[1], mixer.router.top)
        named = (segments[c.name] for c in contracts if c.name in segments)
        first = next(named, None)
        if first is not None:
            found[place] = first
    return found


def manifest_of(components: Sequence[Component], files: Mapping[Place, str]) -> Manifest | None:
    """Return the manifest of the experts of a graph, None if it holds none.

    Parameters
    ----------
    components : sequence of Component
        Those of a graph.
    files : mapping
        The file of each routed layer's banks. Layers without one are not in the manifest: their
        experts are elsewhere.
    """
    layers = []
    storages = []
    for place, mixer in routed_layers(components):
        if place in files:
            component, layer = place
            key = bank_key(layer, component)
            layers.append(_layer(component, layer, mixer, key))
            storages.append(Storage(key, (files[place],), ROUTED_BANK))
    return Manifest(tuple(layers), tuple(storages)) if layers else None


def _layer(component: str | None, index: int, mixer: RoutedFfn, key: str) -> MoeLayer:
    router, bank, groups = mixer.router, mixer.bank, mixer.router.groups
    return MoeLayer(
        layer=index,
        router=Router(
            scores=router.scores.weight,
            score=router.score,
            scored="before",
            selection=TopK(router.top)
            if groups is None
            else GroupedTopK(router.top, groups.count, groups.kept, groups.score),
            renormalise=router.renormalise,
            gate_bias=router.scores.bias,
            correction_bias=router.correction,
            route_scale=router.scale,
            expert_scale=router.expert_scale,
            global_scale=router.global_scale,
            shared_sink=router.sinks is not None,
            dense_sinks=router.sinks,
            input=RouterInput(
                # A router beside experts with a norm of their own reads what comes before it.
                source="expert_input" if mixer.norm is None else "residual",
                eps=None if router.norm is None else router.norm.eps,
                scale=None if router.norm is None else router.norm.weight,
                factor=router.factor,
            ),
        ),
        routed_bank=ExpertBank(
            experts=bank.experts,
            programme=bank.programme,
            storage=key,
            dims=Dims(bank.hidden, bank.width, bank.hidden),
            input_space="hidden" if mixer.latent is None else "latent",
            fused_rows=bank.fused_rows,
        ),
        transforms=None
        if mixer.latent is None
        else Transforms(mixer.latent.into.weight, mixer.latent.back.weight),
        routed_output_norm=None if mixer.post_norm is None else mixer.post_norm.weight,
        # Experts that every position passes through are dense, and stand in the graph alone.
        combine="replace" if mixer.shared is None and not mixer.weighted else "add",
        component=component,
    )
