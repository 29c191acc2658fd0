"""What is wrong with a manifest, answered without reading a weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from larql.format.moe.manifest import MANIFEST_SCHEMA, ExpertBank, Manifest, MoeLayer
from larql.format.moe.programmes import PROGRAMMES
from larql.format.untrusted import shown

__all__ = ["DefectKind", "ManifestDefect", "manifest_defects"]


class DefectKind(Enum):
    """The kinds of defect; several may be found in one layer."""

    UNSUPPORTED_SCHEMA = "unsupported_schema"
    DUPLICATE_LAYER = "duplicate_layer"
    UNKNOWN_PROGRAMME = "unknown_programme"
    LATENT_WITHOUT_TRANSFORMS = "latent_without_transforms"
    INPUT_SPACE_CONTRADICTION = "input_space_contradiction"
    TOP_K_ABOVE_POPULATION = "top_k_above_population"
    SINK_WITHOUT_SHARED_BANK = "sink_without_shared_bank"
    EMPTY_STORAGE = "empty_storage"
    UNKNOWN_STORAGE = "unknown_storage"
    SAME_STORAGE = "same_storage"
    ZERO_EXPERTS = "zero_experts"
    ZERO_DIMS = "zero_dims"


@dataclass(frozen=True)
class ManifestDefect:
    """One defect.

    Attributes
    ----------
    kind : DefectKind
    layer : int or None
        None where the document as a whole is meant.
    bank : str or None
        ``routed`` or ``shared``; None where the layer is meant.
    message : str
        One sentence without the file's name.
    component : str or None
        Whose layer it is; None: that of the model proper.
    """

    kind: DefectKind
    layer: int | None
    bank: str | None
    message: str
    component: str | None = None


def manifest_defects(manifest: Manifest) -> tuple[ManifestDefect, ...]:
    """Return every defect of a manifest, in document order, then those between layers.

    What depends on an answer that is not to be had is left out, and nothing else: an unknown
    programme hides what its input space would have to be, and a population of zero hides that too
    many of it are chosen. A schema that is not known hides everything.
    """
    if manifest.schema != MANIFEST_SCHEMA:
        return (
            ManifestDefect(
                DefectKind.UNSUPPORTED_SCHEMA,
                None,
                None,
                f"manifest schema {manifest.schema} is not known, expected {MANIFEST_SCHEMA}",
            ),
        )
    keys = {storage.key for storage in manifest.storages}
    found = [defect for layer in manifest.layers for defect in _layer(layer, keys)]
    return (*found, *_duplicates(manifest), *_same_storage(manifest))


def _banks(layer: MoeLayer) -> Iterator[tuple[str, ExpertBank]]:
    yield "routed", layer.routed_bank
    if layer.shared_bank is not None:
        yield "shared", layer.shared_bank


def _layer(layer: MoeLayer, keys: set[str]) -> Iterator[ManifestDefect]:
    for name, bank in _banks(layer):
        for kind, text in _bank(layer, name, bank, keys):
            yield _of(layer, kind, name, f"{layer.text}, {name} bank {text}")
    population, k = layer.routed_bank.experts, layer.router.selection.k
    if 0 < population < k:
        yield _of(
            layer,
            DefectKind.TOP_K_ABOVE_POPULATION,
            "routed",
            f"{layer.text} chooses {k} experts of a population of {population}",
        )
    # The other way round is sound: a shared bank need not take part in the normalisation.
    # Shared experts of the graph are in no bank, and their number is stated in its place.
    if layer.router.shared_sink and layer.shared_bank is None and not layer.router.dense_sinks:
        yield _of(
            layer,
            DefectKind.SINK_WITHOUT_SHARED_BANK,
            None,
            f"{layer.text} lets shared experts take part in the routing but has none",
        )


def _of(layer: MoeLayer, kind: DefectKind, bank: str | None, message: str) -> ManifestDefect:
    return ManifestDefect(kind, layer.layer, bank, message, layer.component)


def _bank(
    layer: MoeLayer, name: str, bank: ExpertBank, keys: set[str]
) -> Iterator[tuple[DefectKind, str]]:
    programme = PROGRAMMES.get(bank.programme)
    if programme is None:
        yield (
            DefectKind.UNKNOWN_PROGRAMME,
            f"runs programme {shown(bank.programme)}, expected one of {', '.join(PROGRAMMES)}",
        )
    else:
        if programme.input_space != bank.input_space:
            yield (
                DefectKind.INPUT_SPACE_CONTRADICTION,
                f"reads the {bank.input_space} space, but programme {programme.name} reads the "
                f"{programme.input_space} one",
            )
        if programme.input_space == "latent" and name == "routed" and layer.transforms is None:
            yield (
                DefectKind.LATENT_WITHOUT_TRANSFORMS,
                f"runs programme {programme.name} in latent space, but the layer has no transforms",
            )
    if bank.experts == 0:
        yield DefectKind.ZERO_EXPERTS, "has no experts"
    dims = {
        "input": bank.dims.input,
        "intermediate": bank.dims.intermediate,
        "output": bank.dims.output,
    }
    zero = [width for width, value in dims.items() if value == 0]
    if zero:
        yield DefectKind.ZERO_DIMS, f"has a width of zero: {', '.join(zero)}"
    if not bank.storage.strip():
        yield DefectKind.EMPTY_STORAGE, "names no storage"
    elif bank.storage not in keys:
        yield (
            DefectKind.UNKNOWN_STORAGE,
            f"names storage {shown(bank.storage)}, which the manifest does not have",
        )


def _duplicates(manifest: Manifest) -> Iterator[ManifestDefect]:
    places: dict[tuple[str | None, int], list[MoeLayer]] = {}
    for layer in manifest.layers:
        places.setdefault((layer.component, layer.layer), []).append(layer)
    for first, *others in places.values():
        if others:
            count = 1 + len(others)
            text = f"{first.text} stands {count} times, expected once"
            yield _of(first, DefectKind.DUPLICATE_LAYER, None, text)


def _same_storage(manifest: Manifest) -> Iterator[ManifestDefect]:
    owners: dict[str, str] = {}
    for layer in manifest.layers:
        for name, bank in _banks(layer):
            if not bank.storage.strip():
                continue
            owner = f"{layer.text}, {name} bank"
            first = owners.get(bank.storage)
            if first is None:
                owners[bank.storage] = owner
                continue
            yield _of(
                layer,
                DefectKind.SAME_STORAGE,
                name,
                f"{owner} names storage {shown(bank.storage)}, which is that of {first}",
            )
