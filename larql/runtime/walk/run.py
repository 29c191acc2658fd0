"""A walk: the features of each bank that fire most for a query, and the tokens that they write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from larql.errors import (
    BindingDefect,
    LarqlError,
    Refusal,
    RefusalKind,
    ResidencyRefusal,
    UnsupportedRefusal,
    UsageError,
)
from larql.format.container import Container
from larql.format.graph import Component
from larql.format.moe.authority import Authority, fold
from larql.format.moe.capability import sound_manifest, walk_of
from larql.format.moe.findings import Diagnosis, Operation
from larql.format.moe.profiles import Selection, select
from larql.format.vindex2.container import Vindex2
from larql.runtime.backends.registry import production_arithmetic
from larql.runtime.operands import OperandStore, StoredOperand
from larql.runtime.walk.answer import BankFeatures, Feature, Walk, WalkOptions
from larql.runtime.walk.queries import (
    Query,
    embedding_query,
    residual_query,
    stored_embedding_query,
    vector_for,
    vector_query,
)
from larql.runtime.walk.records import recorded_tokens
from larql.runtime.walk.search import Hit, best_features, best_tokens, columns_of
from larql.runtime.walk.targets import (
    BankTarget,
    DenseTarget,
    Target,
    feature_targets,
    graph_targets,
    manifest_targets,
    pieces_of,
)

if TYPE_CHECKING:
    from larql.runtime.backends.production.arithmetic import Arithmetic

__all__ = ["walk"]

Float32 = npt.NDArray[np.float32]
_VECTORS = 256  # features whose tokens are looked up together


def walk(
    container: Container,
    options: WalkOptions,
    *,
    vector: Float32 | None = None,
    tokens: Sequence[int] = (),
    residuals: bool = False,
) -> Walk:
    """Search a container.

    Parameters
    ----------
    container : Container
    options : WalkOptions
    vector : float32 ``[hidden]`` or None
        To search with; None: what ``tokens`` give.
    tokens : sequence of int
        Of which the last one's embedding is searched with.
    residuals : bool
        Run the tokens, and search each bank with what it would read at the last one.

    Raises
    ------
    UsageError
        If the query does not fit, no layer of the range has a bank, or there is no such profile.
    Refusal
        If a bank that was asked for cannot be searched; with ``partial``, if none can.
    """
    selection = _selection(container, options.profile)  # refused before the kernels are loaded
    arithmetic = production_arithmetic(options.threads)
    store = OperandStore(container, selection)
    component, targets = _targets(container, options)
    found = walk_of(
        container,
        selection,
        None if component is None else component.id,
        options.partial,
        options.layers,
    )
    if found.diagnoses and (not options.partial or not found.admitted):
        raise _refusal(container, found.diagnoses)
    query = _query(container, component, arithmetic, store, options, vector, tokens, residuals)
    covered = [target for target in targets if target.name in set(found.covered)]
    unknown = sorted(set(found.covered) - {target.name for target in covered})
    if unknown:
        raise UnsupportedRefusal(f"{container.path}: this build does not search {unknown[0]}")
    began = time.perf_counter()
    banks = [_searched(arithmetic, store, target, query, options.top) for target in covered]
    between = time.perf_counter()
    notes: list[str] = list(found.notes)
    if options.writes and isinstance(container, Vindex2):
        banks, more = recorded_tokens(container, banks, options.writes)
        notes += more
    elif options.writes:
        banks, more = _with_tokens(arithmetic, store, component, covered, banks, options.writes)
        notes += more
    ended = time.perf_counter()
    return Walk(
        query,
        selection.profile,
        tuple(banks),
        found.diagnoses,
        _authority(store, found, query),
        tuple(notes),
        between - began,
        ended - between,
    )


def _selection(container: Container, profile: str | None) -> Selection:
    if container.index.system_graph is None:  # nothing says what a profile may speak of
        return select(container.index, profile, str(container.path))
    return container.select(profile)


def _targets(
    container: Container, options: WalkOptions
) -> tuple[Component | None, tuple[Target, ...]]:
    if isinstance(container, Vindex2):
        component = None
        if container.index.system_graph is not None:
            component = container.component(options.component)
        return component, tuple(feature_targets(container))
    if container.index.system_graph is None:
        manifest = sound_manifest(container)
        return None, tuple(manifest_targets(manifest)) if manifest is not None else ()
    component = container.component(options.component)
    return component, tuple(graph_targets(component))


def _refusal(container: Container, diagnoses: Sequence[Diagnosis]) -> LarqlError:
    first, more = diagnoses[0], len(diagnoses) - 1
    rest = f" (and {more} more; --partial searches what is here)" if more else ""
    text = f"{container.path}: {first.line()}{rest}"
    match first.kind:
        case RefusalKind.RESIDENCY:
            return ResidencyRefusal(text)
        case RefusalKind.UNSUPPORTED:
            return UnsupportedRefusal(text)
        case RefusalKind.BINDING_DEFECT:
            return BindingDefect(text)


def _query(
    container: Container,
    component: Component | None,
    arithmetic: Arithmetic,
    store: OperandStore,
    options: WalkOptions,
    vector: Float32 | None,
    tokens: Sequence[int],
    residuals: bool,
) -> Query:
    if vector is not None:
        return vector_query(vector, container.index.hidden_size, str(container.path))
    if component is None and isinstance(container, Vindex2) and not residuals:
        return stored_embedding_query(container, tokens)
    if component is None:
        raise UsageError(
            f"{container.path}: has no system graph, so nothing says what a token's vector is; "
            f"search with --vector"
        )
    if residuals:
        return residual_query(container, component.id, options.threads, options.profile, tokens)
    return embedding_query(arithmetic, store, component, tokens)


def _searched(
    arithmetic: Arithmetic, store: OperandStore, target: Target, query: Query, top: int
) -> BankFeatures:
    pieces = pieces_of(target, store)
    x = vector_for(query, target, arithmetic, store)
    if isinstance(target, BankTarget) and target.latent_in is not None:
        into = _matrix(store, target.latent_in, (target.hidden, len(x)))
        (made,) = arithmetic.products([into], arithmetic.inputs(x[None]), np.empty)
        x = made[0]
    hits = best_features(arithmetic, target.name, pieces, x, top)
    searched = sum(piece.rows.shape[0] // piece.step for piece in pieces)
    return BankFeatures(
        target.name,
        target.layer,
        searched,
        target.entries * target.width,
        tuple(_feature(target, hit) for hit in hits),
    )


def _feature(target: Target, hit: Hit) -> Feature:
    expert = hit.feature // target.width if isinstance(target, BankTarget) else None
    return Feature(hit.feature, expert, hit.score)


def _matrix(store: OperandStore, name: str, shape: tuple[int, int]) -> StoredOperand:
    found = store.fetch(name, shape)
    assert isinstance(found, StoredOperand)
    return found


def _with_tokens(
    arithmetic: Arithmetic,
    store: OperandStore,
    component: Component | None,
    targets: Sequence[Target],
    banks: Sequence[BankFeatures],
    count: int,
) -> tuple[list[BankFeatures], list[str]]:
    """Add the tokens that features write, as far as what says so is here."""
    head = None if component is None else component.head
    if component is None or head is None or head.weight not in store.selection.bound:
        return list(banks), ["the head is not here, so features have no tokens"]
    columns: list[Float32] = []
    without: list[str] = []
    why = ""
    for target, bank in zip(targets, banks, strict=True):
        try:
            columns.append(_written(arithmetic, store, component, target, bank.hits))
        except Refusal as refusal:
            # The ranking stands, whatever keeps tokens from being told.
            gone = isinstance(refusal, ResidencyRefusal)
            why = why or ("down is not here" if gone else f"down cannot be used ({refusal})")
            without.append(target.name)
            columns.append(np.empty((0, head.width), np.float32))
    vectors = np.concatenate(columns) if columns else np.empty((0, head.width), np.float32)
    matrix = _matrix(store, head.weight, (head.rows or head.vocab, head.width))
    matrix = matrix.rows_at(slice(0, head.vocab))
    found: list[tuple[tuple[int, float], ...]] = []
    for first in range(0, len(vectors), _VECTORS):
        found += best_tokens(arithmetic, matrix, vectors[first : first + _VECTORS], count)
    told = iter(found)
    done = [
        bank
        if not len(rows)
        else replace(bank, hits=tuple(replace(hit, tokens=next(told)) for hit in bank.hits))
        for bank, rows in zip(banks, columns, strict=True)
    ]
    notes = []
    if without:
        more = f" and {len(without) - 1} more" if len(without) > 1 else ""
        notes.append(f"{without[0]}{more}: {why}, so features have no tokens")
    return done, notes


def _written(
    arithmetic: Arithmetic,
    store: OperandStore,
    component: Component,
    target: Target,
    hits: Sequence[Feature],
) -> Float32:
    """Return what features write into the carrier, float32 ``[n, hidden]``."""
    hidden = component.hidden_size
    if isinstance(target, DenseTarget):
        down = _matrix(store, target.down, (hidden, target.width))
        return columns_of(arithmetic, down, [hit.feature for hit in hits], target.width)
    out = np.empty((len(hits), target.hidden), np.float32)
    assert isinstance(target, BankTarget)
    assert target.down is not None
    shape = (target.entries, target.hidden, target.width)
    wanted = sorted({hit.feature // target.width for hit in hits})
    for expert, matrix in store.fetch_entries_alone(target.down, shape, wanted):
        places = [i for i, hit in enumerate(hits) if hit.feature // target.width == expert]
        own = [hits[i].feature % target.width for i in places]
        out[places] = columns_of(arithmetic, matrix, own, target.width)
    if target.latent_out is None:
        return out
    back = _matrix(store, target.latent_out, (hidden, target.hidden))
    (made,) = arithmetic.products([back], arithmetic.inputs(out), np.empty)
    return made


def _authority(store: OperandStore, found: Operation, query: Query) -> Authority:
    """Return the weakest of what was searched and what the query was made of."""
    assert found.authority is not None
    regions = [(name, store.selection.bound[name].fidelity) for name in query.consumed]
    own = fold([("walk", found.authority.level), *regions])
    return found.authority if own.level == found.authority.level else own
