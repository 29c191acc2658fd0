"""The banks that a walk searches: which rows let their features fire, and where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from larql.errors import BindingDefect, UnsupportedRefusal
from larql.format.container import Container
from larql.format.graph import Component, DenseFfn, Norm, RoutedFfn
from larql.format.lyrw.codes import Role, encoding_of, format_text, packing_of, role_text
from larql.format.moe import manifest as m
from larql.format.moe.walk_routes import searched_rows
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.features import feature_banks
from larql.runtime.operands import OperandStore, StoredOperand

__all__ = [
    "BankTarget",
    "DenseTarget",
    "FeatureTarget",
    "Piece",
    "Target",
    "feature_targets",
    "graph_targets",
    "manifest_targets",
    "pieces_of",
]


@dataclass(frozen=True)
class Piece:
    """Rows that stand together.

    Attributes
    ----------
    first : int
        Feature of the first row, in the flattened space of the bank.
    rows : StoredOperand
        A matrix; its columns may exceed those of the query, which zeros then fill.
    step : int
        Every how many rows one is a feature's: 2 where gate and up stand in turn.
    """

    first: int
    rows: StoredOperand
    step: int = 1


@dataclass(frozen=True)
class DenseTarget:
    """A dense network: a feature is a row of its gate, or of its up projection without one.

    Attributes
    ----------
    name : str
        As the container's capability calls it.
    layer : int
    block : int
        Number of the block that reads, counted over the component.
    norms : tuple of Norm
        Between the carrier and what the network reads.
    gate, down : str
        Operands.
    width, hidden : int
        Features, and elements of a query.
    """

    name: str
    layer: int
    block: int
    norms: tuple[Norm, ...]
    gate: str
    down: str
    width: int
    hidden: int

    @property
    def entries(self) -> int:
        """How many networks stand side by side."""
        return 1


@dataclass(frozen=True)
class BankTarget:
    """A bank of experts, as one flattened space: feature ``expert * width + row``.

    Attributes
    ----------
    name : str
    layer : int
    block : int
    norms : tuple of Norm
    entries, width : int
        Population, and features of each expert.
    hidden : int
        Elements of an expert's input.
    gate, down : str or None
        Operands; None where only a storage is known.
    fused : str or None
        How gate and up lie together, where they do.
    storage : Storage or None
        Where the bank lies, if no operand is known.
    latent_in, latent_out : str or None
        Operands of the transforms around the experts, where they work in another space.
    """

    name: str
    layer: int
    block: int
    norms: tuple[Norm, ...]
    entries: int
    width: int
    hidden: int
    gate: str | None
    down: str | None
    fused: str | None
    storage: m.Storage | None = None
    latent_in: str | None = None
    latent_out: str | None = None


@dataclass(frozen=True)
class FeatureTarget:
    """The dense features of a layer of a VINDEX2 directory, which has them as rows of their own.

    Attributes
    ----------
    name, layer, block, norms
        As for :class:`DenseTarget`.
    width, hidden : int
        Features, and elements of a query.
    """

    name: str
    layer: int
    block: int
    norms: tuple[Norm, ...]
    width: int
    hidden: int

    @property
    def entries(self) -> int:
        """How many networks stand side by side."""
        return 1


Target = DenseTarget | BankTarget | FeatureTarget


def feature_targets(directory: Vindex2) -> Iterator[FeatureTarget]:
    """Yield the banks of a VINDEX2 directory, with a graph or without."""
    hidden = directory.details.hidden_size
    for bank in feature_banks(directory):
        yield FeatureTarget(bank.name, bank.layer, bank.block, bank.norms, bank.width, hidden)


def graph_targets(component: Component) -> Iterator[Target]:
    """Yield the banks of a component, in the order of its layers."""
    number = 0
    for layer in component.layers:
        at = f"{component.id}.layer.{layer.index:03d}"
        for block in layer.blocks:
            norms = () if block.norm is None else (block.norm,)
            mixer = block.mixer
            if isinstance(mixer, DenseFfn):
                yield _dense(f"{at}/ffn", layer.index, number, norms, mixer)
            elif isinstance(mixer, RoutedFfn):
                own = norms if mixer.norm is None else (*norms, mixer.norm)
                latent = mixer.latent
                yield BankTarget(
                    f"{at}/experts",
                    layer.index,
                    number,
                    own,
                    mixer.bank.experts,
                    mixer.bank.width,
                    mixer.bank.hidden,
                    mixer.bank.gate_up if mixer.bank.gate is None else mixer.bank.gate,
                    mixer.bank.down,
                    mixer.bank.fused_rows if mixer.bank.gate is None else None,
                    latent_in=None if latent is None else latent.into.weight,
                    latent_out=None if latent is None else latent.back.weight,
                )
                for place, ffn in enumerate(mixer.weighted or ()):
                    yield _dense(f"{at}/shared.{place}", layer.index, number, norms, ffn)
                if mixer.shared is not None:
                    other = mixer.shared.norm
                    norms = norms if other is None else (*norms, other)
                    yield _dense(f"{at}/shared", layer.index, number, norms, mixer.shared.ffn)
            number += 1


def _dense(
    name: str, layer: int, block: int, norms: tuple[Norm, ...], ffn: DenseFfn
) -> DenseTarget:
    rows = searched_rows(ffn)
    return DenseTarget(
        name, layer, block, norms, rows.weight, ffn.down.weight, rows.outputs, rows.inputs
    )


def manifest_targets(manifest: m.Manifest) -> Iterator[BankTarget]:
    """Yield the banks of a container that has no graph."""
    storages = {storage.key: storage for storage in manifest.storages}
    for layer in manifest.layers:
        for kind, bank in (("routed", layer.routed_bank), ("shared", layer.shared_bank)):
            if bank is None:
                continue
            latent = bank.input_space == "latent"
            around = layer.transforms if latent else None
            yield BankTarget(
                f"{layer.text} {kind} bank",
                layer.layer,
                0,
                (),
                bank.experts,
                bank.dims.intermediate,
                bank.dims.input,
                None,
                None,
                bank.fused_rows,
                storages[bank.storage],
                None if around is None else around.routed_input,
                None if around is None else around.routed_output,
            )


def pieces_of(target: Target, store: OperandStore) -> tuple[Piece, ...]:
    """Return the rows of a bank that are here, in ascending order of features.

    Nothing but these rows is brought into memory when they are read.

    Raises
    ------
    BindingDefect, ResidencyRefusal
        If they are not as the container says.
    UnsupportedRefusal
        If they are stored in a form that this build does not read.
    """
    container = store.container
    if isinstance(target, FeatureTarget):
        assert isinstance(container, Vindex2)
        gate = container.gate(target.layer)
        name = f"{target.name}: gate vectors"
        return (Piece(0, StoredOperand(name, gate.encoding, gate.shape, gate.data)),)
    if isinstance(target, DenseTarget):
        found = store.fetch_alone(target.gate, (target.width, target.hidden))
        return (Piece(0, found),)
    if target.storage is not None:
        return tuple(_stored_pieces(target, target.storage, container))
    assert target.gate is not None
    rows = target.width if target.fused is None else 2 * target.width
    shape = (target.entries, rows, target.hidden)
    return tuple(
        _piece(target, entry, matrix)
        for entry, matrix in store.fetch_entries_alone(target.gate, shape)
    )


def _piece(target: BankTarget, entry: int, matrix: StoredOperand) -> Piece:
    first = entry * target.width
    if target.fused is None:
        return Piece(first, matrix)
    if target.fused == "interleaved":
        return Piece(first, matrix, 2)
    return Piece(first, matrix.rows_at(slice(0, target.width)))


def _stored_pieces(target: BankTarget, storage: m.Storage, container: Container) -> Iterator[Piece]:
    """Yield rows of banks that no operand names, by their roles."""
    found: dict[int, Piece] = {}
    for name in storage.files:
        container.check_bytes(name)
        file = container.bank_file(name)
        roles = {schema.role for schema in file.bank(storage.bank_id).schemas}
        role = Role.GATE if Role.GATE in roles else Role.GATE_UP_FUSED
        schema = file.schema(storage.bank_id, role)
        encoding = encoding_of(schema.format)
        if encoding is None or schema.packing != packing_of(encoding):
            raise UnsupportedRefusal(
                f"{file.path}: {schema.label} is {format_text(schema.format)} in a packing that "
                f"this build does not read"
            )
        fused = target.fused if role is Role.GATE_UP_FUSED else None
        rows = target.width if role is Role.GATE else 2 * target.width
        if schema.rows != rows or schema.cols < target.hidden or (role != Role.GATE and not fused):
            raise BindingDefect(
                f"{file.path}: {schema.label} is {schema.describe()}, expected {rows} rows of "
                f"{target.hidden} for {target.name} ({role_text(role)})"
            )
        shape = (schema.rows, schema.cols)
        for segment in file.tables.segments:
            if segment.bank_id != storage.bank_id:
                continue
            for entry in range(segment.first_entry, segment.end):
                data = file.alone(storage.bank_id, entry, schema)
                matrix = StoredOperand(f"{target.name}[{entry}]", encoding, shape, data)
                found[entry] = (
                    Piece(entry * target.width, matrix)
                    if fused is None
                    else _piece(target, entry, matrix)
                )
    yield from (found[entry] for entry in sorted(found))
