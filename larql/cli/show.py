"""``larql show``: a container described from its metadata alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from larql.cli import render
from larql.cli.inputs import end_ids
from larql.cli.models import open_model
from larql.cli.options import Model
from larql.cli.output import output_of
from larql.errors import LarqlError
from larql.format.container import Container
from larql.format.graph import Component
from larql.format.moe.profiles import select

if TYPE_CHECKING:
    from larql.format.moe.bank_view import BankView

__all__ = ["command"]


def command(ctx: typer.Context, model: Model) -> None:
    """Describe a container from its metadata.

    Identity, source and licence, what each layer computes, which programme each bank of experts
    runs and whether it binds, what is stored in which encoding, and the files. No tensor is read,
    so it works while segments are missing.

    Examples
    --------
    larql show model.vindex3

    larql show model.vindex3 --json | jq .bits_per_weight
    """
    output = output_of(ctx)
    container = open_model(model, output)
    components, problem = _components(container)
    banks, more = _banks(container)
    for text in (problem, more):
        if text is not None:
            render.warning(output, text)
    if output.json:
        render.document(output, _document(container, components, banks))
    else:
        _print(container, components, banks)


def _components(container: Container) -> tuple[tuple[Component, ...], str | None]:
    if container.index.system_graph is None:
        return (), "the container has no system graph"
    try:
        return container.graph.components, None
    except LarqlError as error:
        return (), f"the layers cannot be shown: {error}"


def _parameters(container: Container) -> int:
    """Count numbers once, however many representations of them are held."""
    return sum(value.elements for value in container.operands.values())


def _banks(container: Container) -> tuple[Sequence[BankView], str | None]:
    if container.index.moe_manifest is None:
        return (), None
    from larql.format.moe.bank_view import bank_views
    from larql.format.moe.verify import read_manifest

    _, defects = read_manifest(container.path, container.index.moe_manifest)
    if defects:
        return (), f"the banks of experts cannot be shown: {defects[0].line()}"
    try:
        return bank_views(container), None
    except LarqlError as error:
        return (), f"the banks of experts cannot be shown: {error}"


def _bits_per_weight(container: Container) -> float:
    elements = _parameters(container)
    nbytes = sum(value.nbytes for value in container.operands.values())
    return 8 * nbytes / elements if elements else 0.0


def _identity(container: Container) -> list[tuple[str, object]]:
    index = container.index
    source = index.source
    weights = source.get("weights")
    hashes = (
        [w.get("sha256") for w in weights if isinstance(w, dict)]
        if isinstance(weights, list)
        else []
    )
    return [
        ("model", index.model),
        ("family", index.family),
        ("licence", source.get("licence") or "not stated by the source"),
        ("generation", f"{container.generation.value} (schema {index.schema.number})"),
        ("fingerprint", container.fingerprint),
        ("source", source.get("format")),
        ("source sha256", _few(hashes)),
        ("authority", index.authority),
        ("derived from", index.derived_from_model),
        ("fidelity", _fidelity_text(container)),
        ("end of text", ", ".join(map(str, end_ids(container, None))) or None),
        ("parameters", f"{_parameters(container):,}"),
        ("bits per weight", f"{_bits_per_weight(container):.3f}"),
        *((name.replace("_", " "), value) for name, value in container.facts().items()),
        ("size", render.bytes_text(sum(entry.size for entry in index.files.values()))),
    ]


def _fidelities(container: Container) -> dict[str, int]:
    """Count tensors by the fidelity of their stored bytes."""
    counts: dict[str, int] = {}
    for value in container.index.representations.values():
        counts[value.fidelity] = counts.get(value.fidelity, 0) + 1
    return counts


def _fidelity_text(container: Container) -> str:
    counts = _fidelities(container)
    if set(counts) == {"source-exact"}:
        return "source-exact: every tensor is stored as the source has it"
    return ", ".join(f"{name} ({count} tensors)" for name, count in sorted(counts.items()))


def _few(hashes: list[object]) -> str | None:
    if not hashes:
        return None
    more = f" and of {len(hashes) - 1} more files" if len(hashes) > 1 else ""
    return f"{hashes[0]}{more}"


def _sites(component: Component) -> tuple[str, ...]:
    """Return the sites that a table of layers has columns for."""
    found = {block.site for layer in component.layers for block in layer.blocks}
    return ("attention", "ffn", *sorted(found - {"attention", "ffn"}))


def _layer_facts(component: Component) -> Iterator[tuple[int, dict[str, str]]]:
    for layer in component.layers:
        texts = dict.fromkeys(_sites(component), "")
        for block in layer.blocks:
            texts[block.site] = block.mixer.brief()
        yield layer.index, texts


def _folded(component: Component) -> Iterator[tuple[str, ...]]:
    """Yield runs of equal layers as one row, with their half-open range."""
    rows = list(_layer_facts(component))
    first = 0
    for i, (_, texts) in enumerate(rows):
        if i + 1 == len(rows) or rows[i + 1][1] != texts:
            yield f"{first}:{i + 1}", *texts.values()
            first = i + 1


def _print_banks(banks: Sequence[BankView]) -> None:
    """Print runs of layers whose banks differ in nothing but their layer as one row."""
    rows: list[list[str]] = []
    places: list[tuple[str | None, int, str]] = []
    for view in banks:
        count = str(view.experts)
        facts = [view.bank, view.programme, f"{view.chosen} of {count}", view.binding]
        beside = view.component
        after = (beside, view.layer - 1, view.bank)
        if rows and view.binds and after in places[-2:] and rows[-1][1:5] == facts:
            first, _, _ = rows[-1][0].partition(":")
            rows[-1][0] = f"{first}:{view.layer + 1}"
            rows[-1][5] = f"{rows[-1][5].partition(' to ')[0]} to {view.storage}"
        else:
            layers = f"{view.layer}:{view.layer + 1}"
            if beside is not None:
                layers = f"{render.printable(beside)} {layers}"
            rows.append([layers, *facts, view.storage])
        places.append((beside, view.layer, view.bank))
    render.line()
    render.table(["layers", "bank", "programme", "experts", "binding", "storage"], rows)


def _print(
    container: Container, components: tuple[Component, ...], banks: Sequence[BankView]
) -> None:
    render.key_values(_identity(container))
    for component in components:
        render.line()
        head = "tied to the embedding" if component.head.tied else "own weights"
        render.line(
            f"component {render.printable(component.id)}: {len(component.layers)} layers, hidden "
            f"{component.hidden_size}, vocabulary {component.vocab_size}, context "
            f"{component.context_length}, head {head}"
        )
        render.table(["layers", *_sites(component)], _folded(component))
    if banks:
        _print_banks(banks)
    render.line()
    total = sum(share.elements for share in container.census()) or 1
    render.table(
        ["encoding", "tensors", "elements", "share", "bytes"],
        [
            (
                s.encoding,
                s.tensors,
                f"{s.elements:,}",
                f"{100 * s.elements / total:.2f} %",
                f"{s.nbytes:,}",
            )
            for s in container.census()
        ],
        right=["tensors", "elements", "share", "bytes"],
    )
    render.line()
    segments = container.index.segments
    rows: list[tuple[str, str, str]] = [
        (name, f"{entry.size:,}", entry.sha256[:16])
        for name, entry in container.index.files.items()
        if name not in segments or "/" not in name
    ]
    for directory in sorted({name.rsplit("/", 1)[0] for name in segments if "/" in name}):
        sizes = [e.size for name, e in segments.items() if name.rsplit("/", 1)[0] == directory]
        rows.append((f"{directory}/ ({len(sizes)} files)", f"{sum(sizes):,}", ""))
    render.table(["file", "bytes", "sha256"], rows, right=["bytes"])
    for name, text in (*_variants(container), *_profiles(container)):
        render.line(render.printable(f"{name}: {text}"))
    for note in container.index.notes:
        kind = "" if note.startswith("warning: ") else "note: "
        render.line(f"{kind}{render.printable(note)}")


def _variants(container: Container) -> Iterator[tuple[str, str]]:
    """Yield each variant with the encodings of what it names."""
    held = container.index.representations
    for name, document in container.index.variants.items():
        chosen = document.get("representations") if isinstance(document, Mapping) else None
        ids = chosen.values() if isinstance(chosen, Mapping) else ()
        counts = Counter(
            held[id_].encoding.name for id_ in ids if isinstance(id_, str) and id_ in held
        )
        yield f"variant {name}", ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def _profiles(container: Container) -> Iterator[tuple[str, str]]:
    """Yield each profile with what it selects and leaves out, or what is wrong with it."""
    for name in container.index.profiles:
        try:
            found = select(container.index, name, str(container.path))
        except LarqlError as error:
            yield f"profile {name}", str(error)
            continue
        text = f"selects representations of {len(found.chosen)} operands"
        if found.chain[1:]:
            text += f", inherits {' < '.join(found.chain[1:])}"
        if found.omits:
            text += f", leaves out {', '.join(map(str, found.omits))}"
        yield f"profile {name}", text


def _document(
    container: Container, components: tuple[Component, ...], banks: Sequence[BankView]
) -> dict[str, object]:
    index = container.index
    return {
        "path": container.path.absolute(),
        "model": index.model,
        "family": index.family,
        "licence": index.source.get("licence"),
        "generation": container.generation.value,
        "schema": index.schema.number,
        "fingerprint": container.fingerprint,
        "source": dict(index.source),
        "authority": index.authority,
        "fidelity": _fidelities(container),
        "hidden_size": index.hidden_size,
        "num_layers": index.num_layers,
        "parameters": _parameters(container),
        "bits_per_weight": _bits_per_weight(container),
        "components": [
            {
                "id": component.id,
                "hidden_size": component.hidden_size,
                "vocab_size": component.vocab_size,
                "context_length": component.context_length,
                "tied_head": component.head.tied,
                "layers": [{"index": i, **texts} for i, texts in _layer_facts(component)],
            }
            for component in components
        ],
        "banks": [
            {
                "component": view.component or container.index.components[0],
                "layer": view.layer,
                "bank": view.bank,
                "programme": view.programme,
                "experts": view.experts,
                "chosen": view.chosen,
                "storage": view.storage,
                "files": list(view.files),
                "binds": view.binds,
                "tier": view.report.tier,
                "diagnoses": list(view.report.diagnoses),
            }
            for view in banks
        ],
        "encodings": list(container.census()),
        "end_of_text_ids": list(end_ids(container, None)),
        "profiles": dict(index.profiles),
        "variants": dict(index.variants),
        "files": dict(index.files),
        "notes": list(index.notes),
        **container.facts(),
    }
