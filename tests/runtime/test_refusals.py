"""A refused expert cannot become a token: every entry point, every kind, every state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from larql.errors import (
    BindingDefect,
    FetchError,
    Refusal,
    RefusalKind,
    ResidencyRefusal,
    SessionInvalid,
    UnsupportedRefusal,
    UsageError,
    refusal_of,
)
from larql.format.container import Container
from larql.format.graph import RoutedFfn
from larql.format.progress import SilentProgress
from larql.runtime.backends.base import Backend
from larql.runtime.expert_access import ExpertAccess
from larql.runtime.generate import generate
from larql.runtime.layer_dump import dump_layers
from larql.runtime.model import Model
from larql.runtime.observe.declaration import Declaration
from larql.runtime.perplexity import perplexity
from larql.runtime.routes import Dispatch, ExpertRoute, Refused, Wanted, told
from larql.runtime.run import Run, RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling
from tests.builders.containers import make_container
from tests.builders.expert_banks import Spec, weights, write

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS: list[type[Refusal]] = [ResidencyRefusal, UnsupportedRefusal, BindingDefect]
ORACLES = Path(__file__).parents[1] / "oracles"


class Breaks:
    """A route that refuses once, when it has been asked so many times."""

    def __init__(self, route: ExpertRoute, after: int, refusal: Refusal) -> None:
        self.route, self.left, self.refusal = route, after, refusal

    def dispatch(self, wanted: Wanted) -> Dispatch:
        self.left -= 1
        if self.left == -1:
            return Refused(((len(wanted.experts) - 1, self.refusal),))
        return self.route.dispatch(wanted)


def break_last_layer(run: Run, after: int, refusal: Refusal) -> None:
    """Have the last routed layer of a run refuse once."""
    backend: Backend = run.prepared.backend
    routed = [
        block.mixer
        for layer in run.prepared.plan.layers
        for block in layer.blocks
        if isinstance(block.mixer, RoutedFfn)
    ]
    bank = routed[-1].bank
    routes = backend._arithmetic.routes  # type: ignore[attr-defined]
    backend.take_route(bank, Breaks(routes[bank.down], after, refusal))


# Every entry point


def decode(run: Run, to: Path) -> object:
    session = run.session(8)
    return [session.step([token]).tobytes() for token in TOKENS[:4]]


def batch(run: Run, to: Path) -> object:
    session = run.session(8)
    return session.logits(session.advance(TOKENS)).tobytes()


def continue_text(run: Run, to: Path) -> object:
    session = run.session(16)
    row = run.timed_step(session, TOKENS[:2])
    return list(generate(run, session, row, 4, Sampler(Sampling()), ()))


def observe(run: Run, to: Path) -> object:
    model, record = Model(run), to / "r.jsonl"
    model.observe_into(TOKENS, Declaration(readers=()), [], generate=2, record=record)
    return record.read_bytes()


def lens(run: Run, to: Path) -> object:
    return Model(run).lens(TOKENS).top_log_probabilities.tobytes()


def likelihood(run: Run, to: Path) -> object:
    quiet = SilentProgress()
    found = perplexity(run, TOKENS, bos_ids=[], window=6, stride=3, progress=quiet)
    return found.nll.tobytes()


def planes(run: Run, to: Path) -> object:
    made = dump_layers(run, TOKENS, to / "planes", resume=False, progress=SilentProgress())
    return {name: hashes.payload_sha256 for name, hashes in made.files.items()}


ENTRIES: list[tuple[str, Callable[[Run, Path], object], dict[str, int]]] = [
    ("decode", decode, {}),
    ("batch", batch, {}),
    ("chunks", batch, {"chunk": 3}),
    ("draft", decode, {"draft_depth": 1}),
    ("generate", continue_text, {}),
    ("observe", observe, {}),
    ("lens", lens, {}),
    ("perplexity", likelihood, {}),
    ("planes", planes, {}),
]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    spec = Spec(8, 2, 32, 32, layers=2, shared=16)
    return write(weights(spec), tmp_path_factory.mktemp("refused") / "c")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind.value)
@pytest.mark.parametrize(("name", "entry", "options"), ENTRIES, ids=[e[0] for e in ENTRIES])
def test_every_entry_point_gives_the_kind_and_nothing_else(
    container: Container,
    name: str,
    entry: Callable[[Run, Path], object],
    options: dict[str, int],
    kind: type[Refusal],
    tmp_path: Path,
) -> None:
    expected = entry(open_run(container, RunOptions(backend="reference", **options)), tmp_path)  # type: ignore[arg-type]
    run = open_run(container, RunOptions(backend="reference", **options))  # type: ignore[arg-type]
    refusal = kind("an expert is refused")
    at_once = name in ("batch", "lens", "planes")
    break_last_layer(run, 0 if at_once else 1, refusal)
    (tmp_path / "again").mkdir()
    with pytest.raises(kind) as caught:
        outcome = entry(run, tmp_path / "again")
        pytest.fail(f"it gave {outcome!r:.60}")
    assert caught.value is refusal
    assert not list((tmp_path / "again").iterdir())
    (tmp_path / "third").mkdir()
    assert entry(run, tmp_path / "third") == expected


def test_a_refusal_leaves_what_stood_there(container: Container, tmp_path: Path) -> None:
    """A record that was to be replaced, and the planes of a dump that was to be resumed."""
    record, directory = tmp_path / "r.jsonl", tmp_path / "planes"
    record.write_bytes(b"another one\n")
    run = open_run(container, RunOptions(backend="reference"))
    break_last_layer(run, 0, ResidencyRefusal("elsewhere"))
    with pytest.raises(ResidencyRefusal):
        Model(run).observe_into(TOKENS, Declaration(readers=()), [], record=record, force=True)
    assert record.read_bytes() == b"another one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
    # What was interrupted, and not refused, is there to be gone on with.
    dumped = dump_layers(run, TOKENS, directory, resume=False, progress=SilentProgress())
    for name in ("manifest.json", "logits.npy", "plane_002.npy", "plane_002.npy.json"):
        (directory / name).unlink()
    before = {path: path.read_bytes() for path in directory.iterdir()}
    run = open_run(container, RunOptions(backend="reference"))
    break_last_layer(run, 0, ResidencyRefusal("elsewhere"))
    with pytest.raises(ResidencyRefusal):
        dump_layers(run, TOKENS, directory, resume=True, progress=SilentProgress())
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    again = dump_layers(run, TOKENS, directory, resume=True, progress=SilentProgress())
    assert again.resumed_at == 1 and again.files == dumped.files


# Every kind of state

STATES = {
    "kv": "olmoe",
    "windowed": "gpt_oss",
    "latent": "deepseek_v3",
    "recurrent and convolution": "qwen3_next-routed",
    "recurrent of ssm": "granitemoehybrid-routed",
    "recurrent and latent": "kimi_linear",
}


@pytest.fixture(scope="module", params=STATES.values(), ids=STATES.keys())
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Container:
    return make_container(
        ORACLES / request.param / "checkpoint", tmp_path_factory.mktemp("state") / "c"
    )


@pytest.mark.parametrize("backend", ["production", "reference"])
@pytest.mark.parametrize(("step", "after"), [(1, 0), (5, 0), (5, 2)])
def test_a_refused_step_leaves_no_trace_in_any_state(
    kept: Container, backend: str, step: int, after: int
) -> None:
    """After more positions than a window holds; in the first chunk of a step and in the third."""
    prompt = [(7 * t + 3) % 96 for t in range(9)]
    more = [(5 * t + 1) % 96 for t in range(step)]
    run = open_run(kept, RunOptions(backend=backend, chunk=2))
    plain = run.session(24)
    plain.advance(prompt)
    rows = plain.logits(plain.advance(more)).tobytes(), plain.step([8]).tobytes()
    session = run.session(24)
    session.advance(prompt)
    before = session.snapshot().sha256()
    refusal = ResidencyRefusal("elsewhere")
    break_last_layer(run, after, refusal)
    with pytest.raises(ResidencyRefusal) as caught:
        session.advance(more)
    assert caught.value is refusal
    assert session.position == 9
    assert session.usable and session.may_retry(refusal)
    assert session.snapshot().sha256() == before
    assert session.logits(session.advance(more)).tobytes() == rows[0]
    assert session.step([8]).tobytes() == rows[1]
    assert session.snapshot().sha256() == plain.snapshot().sha256()


def test_a_state_that_cannot_go_back_says_so(kept: Container) -> None:
    session = open_run(kept, RunOptions(backend="reference")).session(24)
    session.advance([1] * 12)
    if session.can_truncate(2):
        session.truncate(2)
        assert session.position == 2
    else:
        with pytest.raises(UsageError, match=r"cannot truncate to 2 positions: .* restore a snap"):
            session.truncate(2)
        assert session.position == 12


# Two questions apart


def test_a_kind_stands_on_one_side() -> None:
    assert [kind.could_succeed for kind in RefusalKind] == [True, True, False]


def test_a_wrapped_refusal_keeps_its_kind_and_other_failures_have_none() -> None:
    refusal = ResidencyRefusal("gone")
    try:
        try:
            raise refusal
        except Refusal as error:
            raise FetchError("no answer") from error
    except FetchError as error:
        assert refusal_of(error) is refusal
    assert refusal_of(FetchError("no answer")) is None
    assert refusal_of(None) is None


def test_a_state_that_could_not_be_put_back_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = make_container(ORACLES / "olmoe" / "checkpoint", tmp_path / "c")
    run = open_run(made, RunOptions(backend="reference", chunk=2))
    plain, session = run.session(16), run.session(16)
    expected = plain.advance(TOKENS)[-1].tobytes()
    session.advance(TOKENS[:4])
    snapshot = session.snapshot()
    refusal = ResidencyRefusal("elsewhere")
    break_last_layer(run, 1, refusal)
    with monkeypatch.context() as patch:

        def undo(mark: object) -> None:
            raise MemoryError

        patch.setattr(session.state, "undo", undo)
        with pytest.raises(MemoryError):
            session.advance(TOKENS[4:])
    assert not session.usable
    assert refusal.kind.could_succeed and not session.may_retry(refusal)
    for use in (
        lambda: session.advance([1]), session.snapshot, lambda: session.truncate(1),
        lambda: session.step([1]),
    ):  # fmt: skip
        with pytest.raises(SessionInvalid, match="restore a snapshot or begin a new") as caught:
            use()
        assert refusal_of(caught.value) is refusal
    assert not session.can_truncate(1)
    session.restore(snapshot)
    assert session.usable
    assert session.advance(TOKENS[4:])[-1].tobytes() == expected


# Best effort


@pytest.mark.parametrize("backend", ["production", "reference"])
def test_best_effort_gives_the_dense_part_and_says_so(container: Container, backend: str) -> None:
    access = ExpertAccess(shard=(0, 5))
    seen = []
    for chunk in (None, 1, 3):
        options = RunOptions(backend=backend, chunk=chunk, experts=access, best_effort=True)
        run = open_run(container, options)
        session = run.session(8)
        carrier = session.advance(TOKENS)
        assert run.left_out is not None
        notes = sorted((note.position, str(note.refusal)) for note in run.left_out)
        seen.append((carrier.tobytes(), notes))
        said = run.provenance(TOKENS, 8)["best_effort"]
        assert isinstance(said, dict) and said == told(run.left_out)
        assert said["left_out"] == len(notes)
        assert said["first"][0]["kind"] == "residency" and said["first"][0]["entry"] >= 5
    assert seen[0] == seen[1] == seen[2]
    # A position is left out or it is as if everything were here.
    positions = {position for position, _ in seen[0][1]}
    assert 0 < len(positions) < len(TOKENS)
    whole = open_run(container, RunOptions(backend=backend)).session(8).advance(TOKENS)
    best = np.frombuffer(seen[0][0], np.float32).reshape(whole.shape)
    same = [t for t in range(len(TOKENS)) if (best[t] == whole[t]).all()]
    assert same == [t for t in range(len(TOKENS)) if t not in positions]


def test_best_effort_does_not_note_a_step_that_fails(container: Container) -> None:
    run = open_run(
        container,
        RunOptions(backend="reference", experts=ExpertAccess(shard=(0, 1)), best_effort=True),
    )
    session = run.session(8)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    session.state.settle = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        session.advance(TOKENS)
    assert run.left_out == []
