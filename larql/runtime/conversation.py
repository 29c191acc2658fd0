"""A chat with a model: each turn is rendered by its template and continues what is already run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from larql.errors import UsageError
from larql.runtime.chat import ChatTemplate
from larql.runtime.draft.drafter import Speculation
from larql.runtime.generate import generate
from larql.runtime.run import Run
from larql.runtime.sampling import Sampler
from larql.runtime.session import Session
from larql.runtime.text import TextTokenizer

__all__ = ["Conversation"]


@dataclass
class Conversation:
    """The messages so far, and the session that has run them.

    Attributes
    ----------
    run : Run
    tokenizer : TextTokenizer
    template : ChatTemplate
    context : int
        Positions that the whole conversation may take.
    end_ids : collection of int
        Tokens that end a reply.
    sampler : Sampler
    speculation : Speculation or None
    messages : list of dict
        ``{"role", "content"}`` in order.
    """

    run: Run
    tokenizer: TextTokenizer
    template: ChatTemplate
    context: int
    end_ids: Collection[int]
    sampler: Sampler
    speculation: Speculation | None = None
    messages: list[dict[str, object]] = field(default_factory=list)
    _session: Session | None = field(default=None, init=False)
    _ids: list[int] = field(default_factory=list, init=False)
    _given: int = field(default=0, init=False)

    @property
    def given_ids(self) -> tuple[int, ...]:
        """The tokens that the last reply continues: the conversation up to it."""
        return tuple(self._ids[: self._given])

    @property
    def reply_ids(self) -> tuple[int, ...]:
        """The tokens of the last reply, with the one that ended it."""
        return tuple(self._ids[self._given :])

    def reply(self, text: str, count: int) -> Iterator[str]:
        """Say something and yield the reply as it is made.

        Parameters
        ----------
        text : str
            The user's message.
        count : int
            Most tokens of the reply.

        Raises
        ------
        UsageError
            If the conversation no longer fits the context.
        """
        self.messages.append({"role": "user", "content": text})
        ids = self.tokenizer.encode(self.template.render(self.messages))
        if len(ids) >= self.context:
            self.messages.pop()
            raise UsageError(
                f"the conversation takes {len(ids)} positions and does not fit a context of "
                f"{self.context}; start anew, or give a larger --context"
            )
        session, new = self._continue_from(ids)
        carrier, row = self.run.timed_advance(session, new)
        stream = self.tokenizer.stream(continuing=True)
        parts = []
        self._ids = list(ids)
        self._given = len(ids)
        room = min(count, self.context - len(ids))
        if self.speculation is not None:
            self.speculation.begin(session, ids, carrier, room)
        for token in generate(
            self.run, session, row, room, self.sampler, self.end_ids, ids, self.speculation
        ):
            self._ids.append(token)
            if token not in self.end_ids:
                parts.append(stream.push(token))
                yield parts[-1]
        parts.append(stream.flush())
        yield parts[-1]
        self.messages.append({"role": "assistant", "content": "".join(parts)})

    def _continue_from(self, ids: Sequence[int]) -> tuple[Session, Sequence[int]]:
        """Return a session that holds a prefix of ``ids``, and the rest."""
        if self._session is not None:
            held = self._ids[: self._session.position]
            common = 0
            while common < min(len(held), len(ids) - 1) and held[common] == ids[common]:
                common += 1
            if self._session.can_truncate(common):
                self._session.truncate(common)
                return self._session, ids[common:]
        self._session = self.run.session(self.context)
        return self._session, ids
