"""What a walk is asked with: a vector, a token's embedding, or what a run's networks read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Literal
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from larql.errors import ResidencyRefusal, UsageError
from larql.format.container import Container
from larql.format.graph import Component, Norm
from larql.format.vindex2.container import Vindex2
from larql.format.vindex2.layout import EMBEDDINGS
from larql.runtime.operands import OperandStore, StoredOperand
from larql.runtime.plan import check_tokens
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.state import State, StateSnapshot
from larql.runtime.taps import Changes, Keep, Taps
from larql.runtime.walk.targets import Target

if TYPE_CHECKING:
    from larql.runtime.backends.production.arithmetic import Arithmetic

__all__ = [
    "Query",
    "embedding_query",
    "read_vector",
    "residual_query",
    "stored_embedding_query",
    "vector_for",
    "vector_query",
]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Query:
    """A vector of the carrier's width, the same for all banks or one for each.

    Attributes
    ----------
    kind : {"vector", "embedding", "residuals"}
    tokens : tuple of int
        That it comes from.
    one : float32 ``[hidden]`` or None
    of_block : mapping
        The carrier before each block, float32 ``[hidden]``, of the last token of a run.
    consumed : tuple of str
        Operands that it was made of.
    """

    kind: Literal["vector", "embedding", "residuals"]
    tokens: tuple[int, ...]
    one: Float32 | None
    of_block: Mapping[int, Float32]
    consumed: tuple[str, ...]


# What NumPy raises of a file that is no array: it takes some for archives, and headers for Python.
_UNREADABLE = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TokenError, BadZipFile)


def read_vector(path: Path) -> Float32:
    """Read a vector from a ``.npy`` file.

    Raises
    ------
    UsageError
        If it is none, or not of finite floats along one axis (others may have one element).
    """
    try:
        # Mapped, so that a header which promises more than the file holds takes no memory.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except _UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) else "is no .npy file of numbers"
        raise UsageError(f"--vector {path}: {reason or 'cannot be read'}") from None
    if (
        not isinstance(found, np.ndarray)
        or found.dtype.kind != "f"
        or found.size != max(found.shape, default=0)
    ):
        what = (
            f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else "an archive"
        )
        raise UsageError(f"--vector {path}: holds {what}, expected floats along one axis")
    with np.errstate(over="ignore"):
        vector = found.reshape(-1).astype(np.float32)
    if not np.isfinite(vector).all():
        raise UsageError(f"--vector {path}: holds numbers that are not finite in float32")
    return np.ascontiguousarray(vector)


def vector_query(vector: Float32, hidden: int, where: str) -> Query:
    """Return a query of a vector as it is.

    Raises
    ------
    UsageError
        If it has another width than the carrier.
    """
    if vector.shape != (hidden,):
        raise UsageError(
            f"{where}: the vector has {len(vector)} elements, expected {hidden}, the width of the "
            f"carrier"
        )
    return Query("vector", (), vector, {}, ())


def embedding_query(
    arithmetic: Arithmetic, store: OperandStore, component: Component, tokens: Sequence[int]
) -> Query:
    """Return the embedding of the last token, scaled and normed as a run does it.

    Raises
    ------
    UsageError
        If a token is outside the vocabulary.
    Refusal
        If the embedding is not here.
    """
    from larql.kernels.embedding import gather

    embed = component.embed
    check_tokens(tokens, embed.vocab)
    found = store.fetch(embed.weight, (embed.vocab, embed.width))
    assert isinstance(found, StoredOperand)
    arithmetic.check(found)
    out = np.empty((1, embed.width), np.float32)
    ids = np.array(tokens[-1:], np.int64)
    gather(found.data, found.encoding.name, embed.vocab, embed.width, ids, embed.scale, out)
    consumed = [embed.weight]
    if embed.norm is not None and embed.norm.weight is not None:
        weight = store.fetch(embed.norm.weight, (embed.width,))
        assert isinstance(weight, StoredOperand)
        arithmetic.bind(weight)
        consumed.append(embed.norm.weight)
    out = arithmetic.norm(embed.norm, out, np.empty)
    return Query("embedding", tuple(tokens), out[0], {}, tuple(consumed))


def stored_embedding_query(directory: Vindex2, tokens: Sequence[int]) -> Query:
    """Return the scaled embedding of the last token, of a directory that states no graph.

    Raises
    ------
    UsageError
        If a token is outside the vocabulary.
    ResidencyRefusal
        If the embedding is not here.
    """
    from larql.kernels.embedding import gather

    details = directory.details
    check_tokens(tokens, details.vocab_size)
    if EMBEDDINGS not in directory.listed:
        raise ResidencyRefusal(
            f"{directory.path}: {EMBEDDINGS} is not here, of which a token's vector is a row; "
            f"search with --vector"
        )
    rows = directory.embeddings()
    out = np.empty((1, details.hidden_size), np.float32)
    ids = np.array(tokens[-1:], np.int64)
    count, width = rows.shape
    gather(rows.data, rows.encoding.name, count, width, ids, details.embed_scale, out)
    return Query("embedding", tuple(tokens), out[0], {}, ())


class _Carriers:
    """An observer that keeps the last position's carrier before each block."""

    keep = Keep()
    most = 512

    def __init__(self) -> None:
        self.found: dict[int, Float32] = {}

    def changes(self, start: int, count: int) -> Changes | None:
        return None

    def begin_step(self) -> None: ...

    def saw(
        self, start: int, tokens: npt.NDArray[np.int64] | None, taps: Taps, state: State
    ) -> None:
        last = taps.carriers[:-1, -1]
        self.found = {block: row.copy() for block, row in enumerate(last)}

    def end_step(self) -> None: ...

    def abandon_step(self) -> None: ...

    def restored(self, snapshot: StateSnapshot) -> None: ...

    def truncated(self, length: int) -> None: ...


def residual_query(
    container: Container,
    component: str,
    threads: int | None,
    profile: str | None,
    tokens: Sequence[int],
) -> Query:
    """Run tokens and return the carrier before each block, at the last of them.

    Raises
    ------
    LarqlError
        As a run does: the whole component has to be here.
    """
    run = open_run(container, RunOptions(component=component, threads=threads, profile=profile))
    observer = _Carriers()
    Session(run.prepared, len(tokens), observer=observer).advance(tokens)
    consumed = tuple(contract.name for contract in run.prepared.plan.contracts())
    return Query("residuals", tuple(tokens), None, observer.found, consumed)


def vector_for(
    query: Query, target: Target, arithmetic: Arithmetic, store: OperandStore
) -> Float32:
    """Return what a bank is searched with, float32 ``[hidden]``.

    Of a run, that is what the bank reads: the carrier after the block's norm.
    """
    if query.one is not None:
        return query.one
    x = query.of_block[target.block][None]
    for norm in target.norms:
        _bind(norm, arithmetic, store)
        x = arithmetic.norm(norm, x, np.empty)
    return np.ascontiguousarray(x[0])


def _bind(norm: Norm, arithmetic: Arithmetic, store: OperandStore) -> None:
    for name in (norm.weight, norm.bias):
        if name is not None and name not in arithmetic.vectors:
            found = store.fetch(name, (norm.width,))
            assert isinstance(found, StoredOperand)
            arithmetic.bind(found)
