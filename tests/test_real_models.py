"""The two real models: tokenizer values, stored elements, logits and greedy ids, gates on dumps.

Expected values were measured with an independent float32 implementation on dequantised weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import numpy.typing as npt
import pytest

from larql.format.codec import decode
from larql.format.container import Container
from larql.runtime.generate import generate
from larql.runtime.run import RunOptions, open_run
from larql.runtime.sampling import Sampler, Sampling, top_tokens
from larql.runtime.session import Session
from larql.runtime.text import TextTokenizer, load_tokenizer

SENTENCE = "The capital of France is"


@dataclass(frozen=True)
class Expected:
    ids: list[int]
    texts: dict[str, list[int]]
    top: list[tuple[int, float]]
    greedy: list[int]
    census: dict[str, float]
    elements: dict[tuple[str, str], dict[int, float]]
    layers: int


S = Expected(
    ids=[504, 3575, 282, 4649, 314],
    texts={"1234": [33, 34, 35, 36], "🦙": [10813, 116, 243], "\n\n": [1116]},
    top=[(7042, 17.371), (260, 14.889), (4528, 13.245), (2250, 13.009), (1315, 12.952)],
    greedy=[7042, 30, 198, 198, 504, 2988, 314, 42],
    census={"q4_1": 78.93, "q8_0": 21.05},
    elements={
        ("target.layer.000/attention.q.weight", "q4_1"): {
            0: -0.096313, 1: 0.157349, 2: -0.096313, 16: -0.223145,
        },
    },
    layers=30,
)  # fmt: skip
G = Expected(
    ids=[2, 818, 5279, 529, 7001, 563],
    texts={"🦙": [2, 478, 397, 404, 391], "a  b": [2, 236746, 138, 236763]},
    top=[(506, 19.091), (496, 18.548), (9079, 18.269), (886, 18.113), (3224, 17.784)],
    greedy=[506, 5279, 529, 506, 2891, 529, 7001, 236761],
    census={"q8_0": 63.13, "q5_0": 23.65, "q4_k": 8.80, "q6_k": 4.40},
    elements={
        ("target.layer.000/attention.o.weight", "q4_k"): {
            0: -0.015705, 32: 0.023014, 128: -0.033512, 255: 0.038993,
        },
        ("target.layer.000/ffn.down.weight", "q6_k"): {0: 0.005212, 64: 0.019713, 128: -0.015885},
        ("target.layer.000/attention.q.weight", "q5_0"): {0: -0.003784, 16: 0.005676},
    },
    layers=18,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Model:
    container: Container
    expected: Expected

    def tokenizer(self) -> TextTokenizer:
        return load_tokenizer(self.container.text_files())

    def logits(
        self, backend: str, tokens: list[int], chunk: int | None = None, threads: int | None = None
    ) -> npt.NDArray[np.float32]:
        run = open_run(self.container, RunOptions(backend=backend, threads=threads))
        session = Session(run.prepared, len(tokens), chunk)
        return session.logits(session.advance(tokens))


@pytest.fixture(scope="module")
def s(s_container: Path) -> Model:
    return Model(Container(s_container), S)


@pytest.fixture(scope="module")
def g(g_container: Path) -> Model:
    return Model(Container(g_container), G)


@pytest.fixture(params=["s", "g"])
def model(request: pytest.FixtureRequest) -> Model:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Model)
    return found


@pytest.mark.real
def test_tokens(model: Model) -> None:
    tokenizer = model.tokenizer()
    assert tokenizer.encode(SENTENCE) == model.expected.ids
    for text, ids in model.expected.texts.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.real
def test_stored_elements(model: Model) -> None:
    for (operand, encoding), values in model.expected.elements.items():
        stored = model.container.operands[operand]
        assert stored.encoding.name == encoding
        data = model.container.segment(stored.segment).bytes_of(stored.tensor)
        row = data[: stored.encoding.row_bytes(stored.shape[1])]
        decoded = decode(stored.encoding, row, stored.shape[1])
        for element, value in values.items():
            assert decoded[element] == pytest.approx(value, abs=1e-6)


@pytest.mark.real
def test_census_and_layers(model: Model) -> None:
    shares = model.container.census()
    total = sum(share.elements for share in shares)
    found = {share.encoding: 100 * share.elements / total for share in shares}
    for encoding, percent in model.expected.census.items():
        assert found[encoding] == pytest.approx(percent, abs=0.005)
    assert sum(found.values()) - sum(model.expected.census.values()) < 0.1
    assert model.container.index.num_layers == model.expected.layers


Exact = Callable[[Model], tuple[npt.NDArray[np.float32], list[int]]]


@pytest.fixture(scope="module")
def exact() -> Exact:
    """Logits at each position of the sentence, and what follows greedily, by the reference."""

    @cache
    def computed(model: Model) -> tuple[npt.NDArray[np.float32], list[int]]:
        run = open_run(model.container, RunOptions(backend="reference"))
        session = run.session(16)
        rows = session.logits(session.advance(model.expected.ids))
        return rows, list(generate(run, session, rows[-1], 8, Sampler(Sampling()), ()))

    return computed


@pytest.mark.real
@pytest.mark.slow(70)
def test_reference_gives_the_measured_logits_and_ids(model: Model, exact: Exact) -> None:
    rows, ids = exact(model)
    found = top_tokens(rows[-1], 5)
    assert [token for token, _ in found] == [token for token, _ in model.expected.top]
    for (_, logit), (_, value) in zip(found, model.expected.top, strict=True):
        assert logit == pytest.approx(value, abs=6e-4)
    assert ids == model.expected.greedy


@pytest.mark.real
def test_production_agrees_with_the_reference(model: Model, exact: Exact) -> None:
    rows, _ = exact(model)
    fast = model.logits("production", model.expected.ids)
    assert np.abs(fast - rows).max() <= 1e-3 * np.abs(rows).max()
    run = open_run(model.container, RunOptions())
    session = run.session(16)
    row = session.step(model.expected.ids)
    assert list(generate(run, session, row, 8, Sampler(Sampling()), ())) == model.expected.greedy


@pytest.mark.real
def test_threads_and_chunks_change_no_bit(model: Model) -> None:
    tokens = [*model.expected.ids, *model.expected.greedy, *model.expected.ids]
    whole = model.logits("production", tokens, threads=2).tobytes()
    assert model.logits("production", tokens, threads=1).tobytes() == whole
    assert model.logits("production", tokens, chunk=1).tobytes() == whole
    assert model.logits("production", tokens, chunk=7, threads=3).tobytes() == whole


@pytest.mark.real
def test_a_window_of_512_slides(g: Model) -> None:
    """Past the window and its ring, few positions at a time equal the whole prompt at once."""
    tokens = [2 + (7 * i) % 5000 for i in range(700)]
    run = open_run(g.container, RunOptions(draft_depth=2))
    whole = Session(run.prepared, 700).advance(tokens)
    session = Session(run.prepared, 700, 3)
    assert session.advance(tokens).tobytes() == whole.tobytes()
    assert session.state.regions[0].capacity == 576


def check_draft_gate(container: Container, tokens: list[int]) -> None:
    """Draft{L} is Full, Draft{L-1} is a prefix, and both ends are refused."""
    from larql.errors import UsageError

    depth = container.index.num_layers
    full = open_run(container, RunOptions())
    whole = full.session(len(tokens))
    hidden = whole.advance(tokens)
    logits = whole.logits(hidden)
    assert full.prepared.plan.executed_layers == tuple(range(depth))
    draft = open_run(container, RunOptions(draft_depth=depth))
    session = draft.session(len(tokens))
    same = session.advance(tokens)
    assert same.tobytes() == hidden.tobytes()
    assert session.logits(same).tobytes() == logits.tobytes()
    assert draft.prepared.plan.executed_layers == full.prepared.plan.executed_layers
    if depth > 1:
        shallow = open_run(container, RunOptions(draft_depth=depth - 1))
        session = shallow.session(len(tokens))
        other = session.logits(session.advance(tokens))
        assert shallow.prepared.plan.executed_layers == tuple(range(depth - 1))
        assert np.isfinite(other).all()
        assert (other != logits).any()
        assert shallow.prepared.reads < full.prepared.reads
    for wrong, problem in ((0, "at least layer 0"), (depth + 1, f"has only {depth} layers")):
        with pytest.raises(UsageError, match=problem):
            open_run(container, RunOptions(draft_depth=wrong))


@pytest.mark.real
def test_draft_gate(model: Model) -> None:
    check_draft_gate(model.container, model.expected.ids)


def test_draft_gate_on_your_own_container(own_container: Path) -> None:
    check_draft_gate(Container(own_container), [1, 2, 3])


@pytest.mark.real
def test_reads_are_affine_in_depth(model: Model) -> None:
    """Each layer costs the same reads; the ends are paid once."""
    reads = []
    for depth in (1, 2, 4, 8, model.expected.layers):
        run = open_run(model.container, RunOptions(draft_depth=depth))
        reads.append((depth, run.prepared.reads))
    (first, base), (last, most) = reads[0], reads[-1]
    slope = (most - base) / (last - first)
    assert slope == int(slope)
    assert all(count == base + slope * (depth - first) for depth, count in reads)


@pytest.mark.real
def test_verify_against_the_source(
    s: Model, s_gguf: Path, larql_process: Callable[..., CompletedProcess[str]]
) -> None:
    done = larql_process("verify", s.container.path, "--source", s_gguf, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
