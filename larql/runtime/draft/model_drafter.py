"""Drafters that are models: the target's own first layers, or another container."""

from __future__ import annotations

from collections.abc import Sequence

from larql.errors import UsageError
from larql.format.container import Container, open_container
from larql.format.source.locate import locate
from larql.runtime.backends.registry import make_backend
from larql.runtime.container_text import tokenizer_of
from larql.runtime.draft.costs import draft_of
from larql.runtime.draft.drafter import Drafter, likeliest
from larql.runtime.plan import make_plan
from larql.runtime.prepared import PreparedOperands, prepare
from larql.runtime.session import Session
from larql.runtime.slices import Full
from larql.runtime.state import Mark
from larql.runtime.text import TOKENIZER

__all__ = ["ModelDrafter", "depth_drafter", "other_model"]


class ModelDrafter(Drafter):
    """Drafts the tokens that a model of the same vocabulary finds likeliest.

    Parameters
    ----------
    name : str
    prepared : PreparedOperands
        What drafts; a drafter of the target's own layers shares the target's operands.
    context : int
        Most positions of a stream.
    chunk : int or None
        Most positions that are advanced at once.
    """

    def __init__(
        self, name: str, prepared: PreparedOperands, context: int, chunk: int | None = None
    ) -> None:
        self.name = name
        self.prepared = prepared
        self._session = Session(prepared, context, chunk)
        self._held: list[int] = []
        self._mark: Mark | None = None

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """Run what is new of the stream, then the likeliest tokens one by one."""
        session = self._session
        count = min(count, session.context - len(tokens) + 1)
        if count < 1:
            return []
        self._go_back(tokens)
        self._held = list(tokens)
        row = session.step(tokens[session.position :])
        self._mark = session.checkpoint(count)
        made: list[int] = []
        while (token := likeliest(row)) is not None:
            made.append(token)
            if len(made) == count:
                break
            row = session.step([token])
            self._held.append(token)
        return made

    def _go_back(self, tokens: Sequence[int]) -> None:
        """Return to the longest prefix of a stream from which the state can go on."""
        common = 0
        held = self._held[: self._session.position]
        for ours, theirs in zip(held, tokens[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        if self._session.can_truncate(common):
            self._session.truncate(common)
        elif self._mark is not None and self._mark.length <= common:
            self._session.rewind(self._mark)
        else:
            self._session.truncate(0)


def depth_drafter(
    target: PreparedOperands, depth: int, context: int, chunk: int | None
) -> ModelDrafter:
    """Return a drafter of the target's first layers, its norm and its head.

    Nothing is read for it: embedding, layers and head are the target's own operands.

    Raises
    ------
    UsageError
        If the target has no such depth, or does not run so many layers itself.
    """
    prepared = draft_of(target, depth)
    if depth >= len(target.plan.layers):
        raise UsageError(
            f"--speculate depth:{depth}: the model runs {len(target.plan.layers)} layers itself; "
            f"give fewer"
        )
    return ModelDrafter(f"depth:{depth}", prepared, context, chunk)


def other_model(
    target: PreparedOperands, name: str, context: int, chunk: int | None
) -> ModelDrafter:
    """Return a drafter that is another container, run as the target is.

    Parameters
    ----------
    target : PreparedOperands
    name : str
        A path, or ``hf://owner/name[@revision]``.
    context : int
    chunk : int or None

    Raises
    ------
    LarqlError
        If it cannot be had, opened or prepared, is a checkpoint, or has another vocabulary.
    """
    located = locate(name)
    if located.kind != "container":
        raise UsageError(
            f"--speculate container:{name}: is a checkpoint; make a container of it with `larql "
            f"extract`"
        )
    ours = target.backend
    backend = make_backend(ours.name, ours.threads, ours.activations, ours.kv)
    container = open_container(located.path)
    plan = make_plan(container, "target", Full())
    expected, found = target.plan.component.vocab_size, plan.component.vocab_size
    if found != expected:
        raise UsageError(
            f"--speculate container:{name}: it has a vocabulary of {found} tokens, and the model "
            f"one of {expected}; a drafter needs the same tokens"
        )
    _check_same_tokens(target.container, container)
    prepared = prepare(container, "target", Full(), backend)
    return ModelDrafter(f"container:{name}", prepared, context, chunk)


def _check_same_tokens(model: Container, drafter: Container) -> None:
    """Refuse a drafter to which an id means another text, where both carry a tokenizer."""
    ours, theirs = model.text_files(), drafter.text_files()
    if TOKENIZER not in ours or TOKENIZER not in theirs:
        return
    if model.index.files[TOKENIZER].sha256 == drafter.index.files[TOKENIZER].sha256:
        return
    found, expected = (
        {token: text for text, token in tokenizer_of(container).vocabulary().items()}
        for container in (drafter, model)
    )
    other = [t for t in sorted(expected) if found.get(t, expected[t]) != expected[t]]
    if other:
        raise UsageError(
            f"--speculate container:{drafter.path}: token {other[0]} is {found[other[0]]!r:.40} "
            f"there and {expected[other[0]]!r:.40} in the model; a drafter needs the same tokens"
        )
