"""Walks: the features that fire most, against brute force in NumPy, bank by bank."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from larql.errors import BindingDefect, ResidencyRefusal, UsageError
from larql.format.codec import ENCODINGS, decode
from larql.format.container import Container
from larql.format.graph import DenseFfn, RoutedFfn
from larql.format.index import Representation
from larql.format.progress import SilentProgress
from larql.format.segment import SegmentTensor, write_segment
from larql.format.slicing.plan import plan_slice, request
from larql.format.slicing.write import write_slice
from larql.runtime.operands import OperandStore, StoredBank
from larql.runtime.run import RunOptions, open_run
from larql.runtime.session import Session
from larql.runtime.walk.answer import BankFeatures, Walk, WalkOptions
from larql.runtime.walk.queries import read_vector
from larql.runtime.walk.run import walk
from tests.builders import expert_banks
from tests.builders.containers import (
    copy_container,
    edit_index,
    flip_byte,
    make_container,
    read_json,
    vouch_for,
    write_json,
)
from tests.builders.experts import clamped
from tests.builders.page_cache import drop, resident

ORACLES = Path(__file__).parents[1] / "oracles"
TOP = 20
Float64 = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("separate")
    return make_container(ORACLES / "qwen3_moe" / "checkpoint", at / "a")


@pytest.fixture(scope="module")
def interleaved(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("interleaved")
    return make_container(clamped(at / "m", "mxfp4"), at / "a")


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Container:
    at = tmp_path_factory.mktemp("halves")
    return make_container(ORACLES / "granitemoehybrid-routed" / "checkpoint", at / "a")


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Container:
    """Shared experts that the router weighs with the chosen ones."""
    at = tmp_path_factory.mktemp("weighted")
    return make_container(ORACLES / "inkling" / "checkpoint", at / "a")


@pytest.fixture
def container(
    request: pytest.FixtureRequest, containers: dict[str, Container]
) -> Callable[[str], Container]:
    """A container by name: of the shared ones, or of those above."""

    def named(name: str) -> Container:
        return containers[name] if name in containers else request.getfixturevalue(name)

    return named


def cut(source: Container, to: Path, *parts: str, **asked: Any) -> Container:
    plan = plan_slice(source, request(None, parts, **asked))
    write_slice(source, plan, to, force=False, progress=SilentProgress())
    return Container(to)


def query(container: Container) -> npt.NDArray[np.float32]:
    generator = np.random.default_rng(5)
    return generator.standard_normal(container.index.hidden_size).astype(np.float32)


def ask(container: Container, **options: Any) -> Walk:
    given = {k: options.pop(k) for k in ("vector", "tokens", "residuals") if k in options}
    return walk(container, WalkOptions(**{"top": TOP, "writes": 0, **options}), **given)


# --- brute force ---------------------------------------------------------------------------------


def decoded(container: Container, name: str) -> Float64:
    """An operand's numbers, ``[entries, rows, columns]`` of experts, else ``[rows, columns]``."""
    value: Representation = container.operands[name]
    stored = OperandStore(container, container.select(None)).fetch(name, value.shape)
    if isinstance(stored, StoredBank):
        columns = value.shape[-1]
        entries = [e.reshape(value.shape[1], -1) for e in stored.entries]
        return np.stack([decode(value.encoding, e, columns) for e in entries]).astype(np.float64)
    rows = value.shape[0] if len(value.shape) == 2 else 1
    found = decode(value.encoding, stored.data.reshape(rows, -1), value.shape[-1])
    return found.astype(np.float64)


def gates(container: Container) -> dict[str, Float64]:
    """Every bank's rows, as one flattened space of features."""
    found: dict[str, Float64] = {}

    def dense(name: str, ffn: DenseFfn) -> None:
        found[name] = decoded(container, (ffn.gate or ffn.up).weight)

    for layer in container.graph.components[0].layers:
        at = f"target.layer.{layer.index:03d}"
        for block in layer.blocks:
            mixer = block.mixer
            if isinstance(mixer, DenseFfn):
                dense(f"{at}/ffn", mixer)
            if isinstance(mixer, RoutedFfn):
                bank = mixer.bank
                if bank.gate is not None:
                    rows = decoded(container, bank.gate)
                else:
                    assert bank.gate_up is not None
                    both = decoded(container, bank.gate_up)
                    turns = bank.fused_rows == "interleaved"
                    rows = both[:, ::2] if turns else both[:, : bank.width]
                found[f"{at}/experts"] = rows.reshape(-1, rows.shape[-1])
                for number, ffn in enumerate(mixer.weighted or ()):
                    dense(f"{at}/shared.{number}", ffn)
                if mixer.shared is not None:
                    dense(f"{at}/shared", mixer.shared.ffn)
    return found


def same(found: BankFeatures, scores: Float64, top: int = TOP) -> None:
    order = np.lexsort((np.arange(len(scores)), -scores))[:top]
    margins = -np.diff(np.append(scores[order], -np.inf))
    assert margins[:-1].min(initial=1) > 1e-5, "a case without near ties tells more"
    assert [hit.feature for hit in found.hits] == order.tolist()
    expected = scores[order]
    np.testing.assert_allclose([hit.score for hit in found.hits], expected, rtol=1e-4, atol=1e-5)


DENSE = ["llama", "llama_gguf", "quantised", "gemma"]
EXPERTS = ["separate", "interleaved", "halves", "weighted"]


@pytest.mark.parametrize("name", DENSE + EXPERTS)
def test_the_features_are_those_of_brute_force(
    name: str, container: Callable[[str], Container]
) -> None:
    source = container(name)
    x = query(source)
    found = ask(source, vector=x)
    expected = gates(source)
    assert [bank.bank for bank in found.banks] == list(expected)
    assert found.authority.level == (
        "source-equivalent" if name == "interleaved" else "source-exact"
    )
    for bank in found.banks:
        rows = expected[bank.bank]
        assert bank.searched == bank.features == len(rows)
        same(bank, rows @ x.astype(np.float64))
        for hit in bank.hits:
            assert (hit.expert is None) != bank.bank.endswith("/experts")
            if hit.expert is not None:
                routed = [
                    block.mixer
                    for block in source.graph.components[0].layers[bank.layer].blocks
                    if isinstance(block.mixer, RoutedFfn)
                ]
                assert hit.expert == hit.feature // routed[0].bank.width


def test_a_token_asks_with_its_scaled_embedding(containers: dict[str, Container]) -> None:
    source = containers["gemma"]
    embed = source.graph.components[0].embed
    assert embed.scale != 1
    x = decoded(source, embed.weight)[7] * np.float32(embed.scale)
    found = ask(source, tokens=[3, 7])
    assert (found.query.kind, found.query.tokens) == ("embedding", (3, 7))
    for bank in found.banks:
        same(bank, gates(source)[bank.bank] @ x)


def test_a_normed_embedding_and_a_padded_head_are_a_run_s(tmp_path: Path) -> None:
    """93 logits of 96 rows: features write no token that the model cannot make."""
    container = make_container(ORACLES / "inkling-published" / "checkpoint", tmp_path / "c")
    run = open_run(container, RunOptions(backend="production"))
    embed = run.prepared.plan.component.embed
    found = ask(container, tokens=[3, 95], writes=93)
    asked = run.prepared.backend.embed(embed, np.array([95], np.int64))[0]
    assert found.query.one is not None and found.query.one.tobytes() == asked.tobytes()
    assert set(found.query.consumed) == {
        "target.embedding/weight", "target.norms/embedding_norm.weight"
    }  # fmt: skip
    written = {t for bank in found.banks for hit in bank.hits for t, _ in hit.tokens}
    assert written == set(range(93))


@pytest.mark.parametrize("name", ["llama", "separate"])
def test_of_a_run_each_bank_is_asked_with_what_it_reads(
    name: str, container: Callable[[str], Container]
) -> None:
    source = container(name)
    tokens = [3, 1, 4, 1, 5]
    found = ask(source, tokens=tokens, residuals=True)

    class Seen:
        """An observer of the reference backend, apart from the one under test."""

        def __init__(self) -> None:
            from larql.runtime.taps import Keep

            self.keep, self.most = Keep(), 512
            self.before: list[Float64] = []

        def saw(self, start: int, ids: object, taps: Any, state: object) -> None:
            self.before = [row[-1].astype(np.float64) for row in taps.carriers]

        def __getattr__(self, _name: str) -> Callable[..., None]:
            return lambda *_: None

    seen: Any = Seen()
    run = open_run(source, RunOptions(backend="reference"))
    Session(run.prepared, len(tokens), observer=seen).advance(tokens)
    blocks = [b for layer in source.graph.components[0].layers for b in layer.blocks]
    read = {}
    for number, block in enumerate(blocks):
        if isinstance(block.mixer, DenseFfn | RoutedFfn):
            x, norm = seen.before[number], block.norm
            assert norm is not None and norm.weight is not None
            weight = decoded(source, norm.weight).reshape(-1)
            x = x / np.sqrt(np.mean(x * x) + norm.eps) * (weight + norm.offset)
            read[len(read)] = x
    for number, bank in enumerate(found.banks):
        scores = gates(source)[bank.bank] @ read[number]
        best = {hit.feature: hit.score for hit in bank.hits}
        assert next(iter(best)) == int(np.argmax(scores))
        for feature, score in best.items():
            assert score == pytest.approx(scores[feature], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "separate", "halves"])
def test_features_write_the_tokens_that_brute_force_finds(
    name: str, container: Callable[[str], Container]
) -> None:
    source = container(name)
    found = ask(source, vector=query(source), top=4, writes=3)
    component = source.graph.components[0]
    head = decoded(source, component.head.weight)
    for bank in found.banks:
        kind = bank.bank.rsplit("/", 1)[1]
        mixer = next(
            block.mixer
            for block in component.layers[bank.layer].blocks
            if isinstance(block.mixer, DenseFfn | RoutedFfn)
        )
        for hit in bank.hits:
            if kind == "experts":
                assert isinstance(mixer, RoutedFfn) and hit.expert is not None
                down = decoded(source, mixer.bank.down)[hit.expert]
                column = down[:, hit.feature % mixer.bank.width]
            else:
                ffn = mixer.shared.ffn if isinstance(mixer, RoutedFfn) and mixer.shared else mixer
                assert isinstance(ffn, DenseFfn)
                column = decoded(source, ffn.down.weight)[:, hit.feature]
            scores = head @ column
            order = np.argsort(-scores, kind="stable")[:3]
            assert [token for token, _ in hit.tokens] == order.tolist()
            assert [s for _, s in hit.tokens] == pytest.approx(scores[order], rel=1e-4, abs=1e-5)


def test_the_answer_does_not_hang_on_threads(containers: dict[str, Container]) -> None:
    source = containers["quantised"]
    answers = [
        ask(source, vector=query(source), writes=2, threads=threads).banks for threads in (1, 2)
    ]
    assert answers[0] == answers[1]


def test_layers_are_chosen(containers: dict[str, Container]) -> None:
    source = containers["llama"]
    found = ask(source, vector=query(source), layers=(1, 3))
    assert [bank.layer for bank in found.banks] == [1, 2]
    with pytest.raises(UsageError, match="layers 7:9 have no bank"):
        ask(source, vector=query(source), layers=(7, 9))


# --- slices: what is not there --------------------------------------------------------------------


def test_a_vector_needs_neither_embedding_nor_tokenizer(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    source = containers["llama"]
    gate = cut(source, tmp_path / "s", "gate")
    x = query(source)
    whole = ask(source, vector=x, writes=3)
    found = ask(gate, vector=x, writes=3)
    assert [[h.feature for h in b.hits] for b in found.banks] == [
        [h.feature for h in b.hits] for b in whole.banks
    ]
    assert not any(hit.tokens for bank in found.banks for hit in bank.hits)
    assert any("no tokens" in note for note in found.notes)
    with pytest.raises(ResidencyRefusal, match=r"target\.embedding/weight"):
        ask(gate, tokens=[1])


def test_down_that_is_elsewhere_costs_the_tokens_and_nothing_else(
    separate: Container, tmp_path: Path
) -> None:
    browse = cut(separate, tmp_path / "s", "gate", "head", "embed")
    found = ask(browse, tokens=[5], writes=3)
    assert found.banks == ask(separate, tokens=[5]).banks
    assert any("down is not here" in note for note in found.notes)


def test_all_banks_are_searched_or_none(separate: Container, tmp_path: Path) -> None:
    shard = cut(separate, tmp_path / "s", experts=(2, 5))
    x = query(separate)
    with pytest.raises(ResidencyRefusal, match=r"target\.layer\.000/experts\.gate.*--partial"):
        ask(shard, vector=x)
    found = ask(shard, vector=x, partial=True)
    assert [(b.searched, b.features) for b in found.banks] == [(24, 56), (24, 24), (24, 56)]
    assert found.authority.level == "structurally-approximate"
    rows = gates(separate)
    for bank in found.banks:
        if bank.bank.endswith("/experts"):
            scores = rows[bank.bank] @ x.astype(np.float64)
            scores[:16] = scores[40:] = -np.inf
            same(bank, scores)
    one = cut(separate, tmp_path / "t", layers=(1, 2))
    with pytest.raises(ResidencyRefusal, match=r"target\.layer\.000"):
        ask(one, vector=x)
    partial = ask(one, vector=x, partial=True)
    assert [bank.bank for bank in partial.banks] == ["target.layer.001/ffn"]
    assert {d.where.partition(",")[0] for d in partial.dropped} == {
        "target.layer.000/experts.gate",
        "target.layer.002/experts.gate",
    }


def test_a_text_query_has_no_more_authority_than_its_embedding(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    source = copy_container(containers["llama"].path, tmp_path / "m")

    def weaken(index: Any) -> None:
        index["representations"]["target.embedding/weight"]["fidelity"] = "numerically-approximate"

    edit_index(source, weaken)
    assert ask(Container(source), tokens=[1]).authority.level == "numerically-approximate"
    x = query(Container(source))
    assert ask(Container(source), vector=x).authority.level == "source-exact"


@pytest.mark.parametrize(("role", "walks"), [("down", True), ("up", True), ("gate", False)])
def test_a_walk_needs_no_region_but_those_that_it_searches(
    role: str, walks: bool, tmp_path: Path
) -> None:
    """Of a file that is damaged somewhere the rest is searched, and a run is refused."""
    made = expert_banks.weights(expert_banks.Spec(8, 2, 32, 32))
    container = expert_banks.write(made, tmp_path / "c")
    value = container.operands[f"target.layer.000/experts.{role}"]
    stored = container.entries(value).stored(3).tobytes()
    path = tmp_path / "c" / value.segment
    vector = query(container)
    whole = ask(container, vector=vector, writes=3)
    flip_byte(path, path.read_bytes().index(stored) + 7)
    damaged = Container(tmp_path / "c")
    if walks:
        found = ask(damaged, vector=vector, writes=3)
        ranks = [[(hit.feature, hit.score) for hit in bank.hits] for bank in found.banks]
        assert ranks == [[(hit.feature, hit.score) for hit in bank.hits] for bank in whole.banks]
        told = [hit.tokens for bank in found.banks for hit in bank.hits]
        assert any(told) is (role != "down")
        assert any("down cannot be used" in note for note in found.notes) is (role == "down")
    else:
        with pytest.raises(BindingDefect, match=r"layer 0, gate: .* the file is damaged"):
            ask(damaged, vector=vector)
    with pytest.raises(BindingDefect, match=rf"experts\.{role}: layer 0, {role}: .* is damaged"):
        open_run(damaged, RunOptions(backend="reference"))


def test_scores_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    source = make_container(clamped(tmp_path / "m", "floats"), tmp_path / "c")
    x = query(source)
    x[3] = np.float32(3e38)
    x[4] = np.float32(3e38)
    with pytest.raises(BindingDefect, match="not finite"):
        ask(source, vector=x * np.float32(1))


def test_latent_experts_of_a_graph_are_searched_through_their_transform(tmp_path: Path) -> None:
    model = expert_banks.weights(expert_banks.Spec(5, 2, 32, 16, latent=16))
    source = expert_banks.write(model, tmp_path / "m")
    x = query(source)
    assert x.shape == (32,)
    browse = cut(source, tmp_path / "s", "gate", "embed")
    for container in (source, browse):
        banks = [b for b in ask(container, vector=x).banks if b.bank.endswith("/experts")]
        assert banks
        for bank in banks:
            layer = model.layers[bank.layer]
            inner = layer["into"].astype(np.float64) @ x
            same(bank, layer["gate"].reshape(-1, 16).astype(np.float64) @ inner)
    told = ask(source, vector=x, top=3, writes=2)
    for bank in told.banks:
        if bank.bank.endswith("/experts"):
            layer = model.layers[bank.layer]
            for hit in bank.hits:
                assert hit.expert is not None
                column = layer["down"][hit.expert][:, hit.feature % 16].astype(np.float64)
                scores = model.head @ (layer["back"] @ column)
                assert [t for t, _ in hit.tokens] == np.argsort(-scores)[:2].tolist()


def latent(source: Container, to: Path, hidden: int) -> tuple[Container, Float64]:
    """Banks and a manifest without a graph, whose experts read another space; its transform."""
    directory = copy_container(source.path, to)
    generator = np.random.default_rng(3)
    inner = source.index.hidden_size
    matrix = generator.standard_normal((inner, hidden)).astype(np.float32)
    operand, name = "target.layer.000/latent_in", "segments/latent.safetensors"
    entry = write_segment(
        directory / name, [SegmentTensor("w", ENCODINGS["f32"], matrix.shape, [matrix.tobytes()])]
    )
    stated = {"size": entry.size, "sha256": entry.sha256}

    def change(index: Any) -> None:
        value = index["representations"]["target.embedding/weight"]
        made = {**value, "operand": operand, "shape": [inner, hidden], "segment": name}
        index["representations"][operand] = {**made, "tensor": "w"}
        index["files"][name] = stated
        index["segments"][name] = {"schema": "safetensors", **stated}
        index.update(system_graph=None, hidden_size=hidden, components=[])

    edit_index(directory, change)
    manifest = read_json(directory / "moe_manifest.json")
    manifest["layers"] = manifest["layers"][:1]
    manifest["storages"] = manifest["storages"][:1]
    manifest["layers"][0]["transforms"] = {
        "routed_input": operand,
        "routed_output": "not consulted",
    }
    manifest["layers"][0]["routed_bank"] |= {
        "programme": "latent-moe-v1",
        "input_space": "latent",
    }
    write_json(directory / "moe_manifest.json", manifest)
    vouch_for(directory, "moe_manifest.json")
    return Container(directory), matrix.astype(np.float64)


def test_a_latent_bank_is_searched_through_its_transform(
    separate: Container, tmp_path: Path
) -> None:
    source, transform = latent(separate, tmp_path / "m", 48)
    x = query(source)
    assert x.shape == (48,), "a vector has the carrier's width"
    (bank,) = ask(source, vector=x, writes=3).banks
    assert bank.bank == "layer 0 routed bank"
    rows = gates(separate)["target.layer.000/experts"]
    same(bank, rows @ (transform @ x.astype(np.float64)))
    with pytest.raises(UsageError, match="search with --vector"):
        ask(source, tokens=[1])


# --- vectors from files ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.zeros((2, 3), np.float32), r"float32 \[2, 3\], expected floats along one axis"),
        (np.arange(4), "int64"),
        (np.array([1.0, np.nan]), "not finite"),
        (np.array([1e300]), "not finite in float32"),
    ],
)
def test_a_file_that_is_no_vector_is_refused(array: Any, problem: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(UsageError, match=problem):
        read_vector(tmp_path / "v.npy")


def test_files_that_are_no_arrays_are_refused(
    containers: dict[str, Container], tmp_path: Path
) -> None:
    (tmp_path / "v.npy").write_bytes(b"no array")
    np.savez(tmp_path / "w.npz", a=np.ones(3))
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "zip.npy").write_bytes(b"PK\3\4" + bytes(24))
    for name, header in (
        ("many", "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
        ("huge", "{'descr': '<f4', 'fortran_order': False, 'shape': (1180591620717411303424,), }"),
        ("open", "(" * 5000),
    ):
        text = header.encode().ljust(5999) + b"\n"
        magic = b"\x93NUMPY\2\0" + len(text).to_bytes(4, "little")
        (tmp_path / f"{name}.npy").write_bytes(magic + text + bytes(8))
    hostile = ("zip.npy", "many.npy", "huge.npy", "open.npy")
    for name in ("v.npy", "w.npz", "o.npy", "absent.npy", *hostile):
        with pytest.raises(UsageError, match="--vector"):
            read_vector(tmp_path / name)
    np.save(tmp_path / "r.npy", np.ones((1, 64), np.float64))
    assert read_vector(tmp_path / "r.npy").shape == (64,)
    with pytest.raises(UsageError, match="has 3 elements, expected 64"):
        ask(containers["llama"], vector=np.ones(3, np.float32))


# --- what is read ---------------------------------------------------------------------------------


def test_up_and_down_stay_unread(containers: dict[str, Container], tmp_path: Path) -> None:
    """From cold files, a walk brings in the pages of gates and headers and none between."""
    source = copy_container(containers["quantised"].path, tmp_path / "m")
    x = query(Container(source))
    ask(Container(source), vector=x)  # hashes the files, and remembers that it did
    path = source / "segments" / "target.layer.000.safetensors"
    drop(path)
    if resident(path).any():
        pytest.skip("the file system keeps pages that it was asked to drop")
    ask(Container(source), vector=x)
    segment = Container(source).segment("segments/target.layer.000.safetensors")
    pages = resident(path)
    for name in ("ffn.up.weight", "ffn.down.weight"):
        entry = segment.header.entries[name]
        begin = -(-(segment.header_bytes + entry.begin) // mmap.PAGESIZE)
        end = (segment.header_bytes + entry.end) // mmap.PAGESIZE
        assert end - begin >= 3
        neighbours = 1 if name == "ffn.up.weight" else 0
        assert not pages[begin + neighbours : end].any(), name
    entry = segment.header.entries["ffn.gate.weight"]
    begin = (segment.header_bytes + entry.begin) // mmap.PAGESIZE
    assert pages[begin : (segment.header_bytes + entry.end) // mmap.PAGESIZE].all()
