"""Defects of a manifest: each found, none that follows only from another."""

from __future__ import annotations

import dataclasses

import pytest

from larql.format.moe.defects import DefectKind, ManifestDefect, manifest_defects
from larql.format.moe.manifest import (
    Dims,
    ExpertBank,
    GroupedTopK,
    Manifest,
    MoeLayer,
    Storage,
    TopK,
)
from tests.format.moe.manifests import ALL, GROUPED, OWN_INPUT, SINK, STORAGES, bank

K = DefectKind


def defects(*layers: MoeLayer) -> list[tuple[str, int | None, str | None]]:
    """Give kind, layer and bank of each defect of some layers."""
    return [
        (defect.kind.value, defect.layer, defect.bank)
        for defect in manifest_defects(Manifest(layers, STORAGES))
    ]


def routed(layer: MoeLayer, **changes: object) -> MoeLayer:
    return dataclasses.replace(
        layer,
        routed_bank=dataclasses.replace(layer.routed_bank, **changes),  # type: ignore[arg-type]
    )


def selecting(layer: MoeLayer, selection: TopK | GroupedTopK) -> MoeLayer:
    return dataclasses.replace(layer, router=dataclasses.replace(layer.router, selection=selection))


def with_dense_sinks(count: int) -> MoeLayer:
    """Give the layer with a sink shared experts of the graph in place of its bank."""
    router = dataclasses.replace(SINK.router, dense_sinks=count)
    return dataclasses.replace(SINK, router=router, shared_bank=None)


def test_sound_manifests_have_none() -> None:
    assert manifest_defects(ALL) == ()
    assert manifest_defects(Manifest(())) == ()


def test_a_shared_bank_needs_no_sink() -> None:
    assert GROUPED.shared_bank is not None
    assert not GROUPED.router.shared_sink
    assert defects(GROUPED) == []


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (routed(OWN_INPUT, programme="mystery"), [("unknown_programme", 0, "routed")]),
        (
            dataclasses.replace(SINK, transforms=None),
            [("latent_without_transforms", 3, "routed")],
        ),
        (routed(OWN_INPUT, input_space="latent"), [("input_space_contradiction", 0, "routed")]),
        (routed(SINK, input_space="hidden"), [("input_space_contradiction", 3, "routed")]),
        (selecting(OWN_INPUT, TopK(9)), [("top_k_above_population", 0, "routed")]),
        (selecting(OWN_INPUT, TopK(8)), []),
        (
            selecting(GROUPED, GroupedTopK(65, 4, 2, "max")),
            [("top_k_above_population", 2, "routed")],
        ),
        (dataclasses.replace(SINK, shared_bank=None), [("sink_without_shared_bank", 3, None)]),
        (
            dataclasses.replace(SINK, shared_bank=None, combine="replace"),
            [("sink_without_shared_bank", 3, None)],
        ),
        (with_dense_sinks(0), [("sink_without_shared_bank", 3, None)]),
        (with_dense_sinks(2), []),
        (routed(OWN_INPUT, storage=""), [("empty_storage", 0, "routed")]),
        (routed(OWN_INPUT, storage=" "), [("empty_storage", 0, "routed")]),
        (routed(OWN_INPUT, storage="z"), [("unknown_storage", 0, "routed")]),
        (routed(OWN_INPUT, experts=0), [("zero_experts", 0, "routed")]),
        (routed(OWN_INPUT, dims=Dims(0, 1, 1)), [("zero_dims", 0, "routed")]),
        (routed(OWN_INPUT, dims=Dims(1, 0, 0)), [("zero_dims", 0, "routed")]),
        (
            dataclasses.replace(SINK, shared_bank=bank("f", 0, "mystery")),
            [("unknown_programme", 3, "shared"), ("zero_experts", 3, "shared")],
        ),
    ],
)
def test_each_defect_is_found(
    layer: MoeLayer, expected: list[tuple[str, int | None, str | None]]
) -> None:
    assert defects(layer) == expected


def test_an_unknown_programme_hides_only_what_depends_on_it() -> None:
    """The transforms and the input space are not judged; all the rest is."""
    broken = dataclasses.replace(
        selecting(SINK, TopK(200)),
        transforms=None,
        shared_bank=None,
        routed_bank=ExpertBank(112, "mystery", " ", Dims(0, 1, 1), "latent"),
    )
    assert defects(broken) == [
        ("unknown_programme", 3, "routed"),
        ("zero_dims", 3, "routed"),
        ("empty_storage", 3, "routed"),
        ("top_k_above_population", 3, "routed"),
        ("sink_without_shared_bank", 3, None),
    ]


def test_a_layer_stands_once() -> None:
    again = routed(OWN_INPUT, storage="b")
    assert defects(OWN_INPUT, SINK, again) == [("duplicate_layer", 0, None)]
    text = manifest_defects(Manifest((OWN_INPUT, again, again), STORAGES))[0].message
    assert text == "layer 0 stands 3 times, expected once"


def test_two_banks_do_not_share_a_storage() -> None:
    other = dataclasses.replace(OWN_INPUT, layer=5)
    assert defects(OWN_INPUT, other) == [("same_storage", 5, "routed")]
    within = dataclasses.replace(GROUPED, shared_bank=bank("c", 1))
    assert defects(within) == [("same_storage", 2, "shared")]


def test_two_blank_storages_are_empty_and_not_the_same() -> None:
    one, other = routed(OWN_INPUT, storage=""), routed(SINK, storage="")
    assert defects(one, other) == [("empty_storage", 0, "routed"), ("empty_storage", 3, "routed")]


def test_a_schema_that_is_not_known_hides_everything() -> None:
    broken = Manifest((routed(OWN_INPUT, experts=0),), (), schema=2)
    assert manifest_defects(broken) == (
        ManifestDefect(
            K.UNSUPPORTED_SCHEMA, None, None, "manifest schema 2 is not known, expected 1"
        ),
    )


def test_messages_name_layer_and_bank_and_differ() -> None:
    layer = dataclasses.replace(
        selecting(SINK, TopK(200)),
        transforms=None,
        shared_bank=None,
        routed_bank=ExpertBank(112, "latent-moe-v1", "z", Dims(0, 1, 1), "hidden"),
    )
    found = manifest_defects(Manifest((layer,), (Storage("e", (), 0),)))
    texts = [defect.message for defect in found]
    assert len(set(texts)) == len(texts) == 6
    assert all(text.startswith("layer 3") and "\n" not in text for text in texts)
    assert [defect.kind for defect in found] == [
        K.INPUT_SPACE_CONTRADICTION,
        K.LATENT_WITHOUT_TRANSFORMS,
        K.ZERO_DIMS,
        K.UNKNOWN_STORAGE,
        K.TOP_K_ABOVE_POPULATION,
        K.SINK_WITHOUT_SHARED_BANK,
    ]


def test_defects_come_in_one_order() -> None:
    layers = (routed(OWN_INPUT, experts=0), routed(SINK, programme="x"), OWN_INPUT)
    first = manifest_defects(Manifest(layers, STORAGES))
    assert first == manifest_defects(Manifest(layers, tuple(reversed(STORAGES))))
    assert [d.kind.value for d in first] == [
        "zero_experts",
        "unknown_programme",
        "duplicate_layer",
        "same_storage",
    ]
