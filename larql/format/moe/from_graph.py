"""The manifest that a component's own operations imply; the graph is the authority of the two."""

from __future__ import annotations

from collections.abc import Mapping

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

__all__ = ["ROUTED_BANK", "bank_files_of", "manifest_of"]

ROUTED_BANK = 0
"""Id of the routed experts' bank in each file."""


def bank_files_of(
    component: Component, representations: Mapping[str, Representation]
) -> dict[int, str]:
    """Return by layer the file in which the operands of its experts begin.

    Parameters
    ----------
    component : Component
    representations : mapping
        Those of a container, by whatever key. Layers of which it holds no experts are left out.
    """
    segments: dict[str, str] = {}
    for value in representations.values():
        segments.setdefault(value.operand, value.segment)
    found = {}
    for layer in component.layers:
        for block in layer.blocks:
            if isinstance(block.mixer, RoutedFfn):
                named = (
                    segments[contract.name]
                    for contract in block.mixer.bank.contracts(layer.index, block.mixer.router.top)
                    if contract.name in segments
                )
                first = next(named, None)
                if first is not None:
                    found[layer.index] = first
    return found


def manifest_of(component: Component, files: Mapping[int, str]) -> Manifest | None:
    """Return the manifest of a component's experts, None if it holds none.

    Parameters
    ----------
    component : Component
    files : mapping
        The file of each routed layer's banks. Layers without one are not in the manifest: their
        experts are elsewhere.
    """
    layers = []
    storages = []
    for layer in component.layers:
        for block in layer.blocks:
            if isinstance(block.mixer, RoutedFfn) and layer.index in files:
                key = f"layer_{layer.index:03d}"
                layers.append(_layer(layer.index, block.mixer, key))
                storages.append(Storage(key, (files[layer.index],), ROUTED_BANK))
    return Manifest(tuple(layers), tuple(storages)) if layers else None


def _layer(index: int, mixer: RoutedFfn, key: str) -> MoeLayer:
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
    )
