"""The benchmark's instruments: turns, arms that fail, statistics, what a step must read."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from larql.errors import LarqlError, PlatformError, UnsupportedRefusal, UsageError
from larql.format.container import Container
from larql.format.progress import SilentProgress
from larql.format.segment import Segment
from larql.runtime.bench import arms, machine, measure
from larql.runtime.bench.arm import Arm, ArmSpec, Memory
from larql.runtime.bench.arms.engine_larql import Larql, load
from larql.runtime.bench.cost import state_bytes, weight_bytes
from larql.runtime.bench.measure import Work, pseudo_random_ids
from larql.runtime.bench.peers import larql_arm
from larql.runtime.bench.report import Report, make_report
from larql.runtime.bench.run import BenchOptions, bench
from larql.runtime.bench.summary import first_difference, paired, summarise
from larql.runtime.plan import make_plan
from larql.runtime.run import RunOptions
from larql.runtime.slices import Draft, Full

FAKE = Path(__file__).parents[1] / "builders" / "bench_arm.py"
ARMS = Path(str(arms.__file__)).parent
WORK = Work((1, 2, 3), 4, (5, 6), 8, (9,) * 10, 2)


def spec(name: str, log: Path, behaviour: str = "well") -> ArmSpec:
    command = (sys.executable, str(FAKE), name, str(log), behaviour)
    return ArmSpec(name, command, advice="install m")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# Statistics


def test_summaries() -> None:
    found = summarise([3.0, 1.0, 2.0, 10.0])
    assert (found.median, found.minimum, found.maximum) == (2.5, 1.0, 10.0)
    assert found.values == (3.0, 1.0, 2.0, 10.0)
    assert paired([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]).values == (2.0, 3.0, 4.0)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@given(a=st.lists(st.integers(0, 2), max_size=5), b=st.lists(st.integers(0, 2), max_size=5))
def test_first_difference(a: list[int], b: list[int]) -> None:
    at = first_difference(a, b)
    if at is None:
        assert a == b
    else:
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]


@given(count=st.integers(0, 50), vocab=st.integers(1, 300_000))
def test_ids_are_the_same_every_time(count: int, vocab: int) -> None:
    ids = pseudo_random_ids(count, vocab)
    assert len(ids) == count
    assert all(0 <= i < vocab for i in ids)
    assert pseudo_random_ids(count + 3, vocab)[:count] == ids
    assert pseudo_random_ids(4, 49152) == (48575, 14088, 48145, 19828)


# What a step reads


def test_a_step_reads_the_embedding_only_where_it_is_the_head(
    containers: dict[str, Container],
) -> None:
    for name, tied in (("llama", False), ("llama3", True), ("gemma_gguf", True)):
        container = containers[name]
        plan = make_plan(container, "target", Full())
        component = plan.component
        assert (component.head.weight == component.embed.weight) is tied
        nbytes = {contract.name: 0 for contract in plan.contracts()}
        nbytes = {operand: container.operands[operand].nbytes for operand in nbytes}
        if not tied:
            nbytes[component.embed.weight] //= component.vocab_size
        assert weight_bytes(container.operands, plan) == sum(nbytes.values()), name


def test_a_draft_touches_less(containers: dict[str, Container]) -> None:
    container = containers["llama"]
    full, draft = (
        weight_bytes(container.operands, make_plan(container, "target", s))
        for s in (Full(), Draft(1))
    )
    assert draft < full


def test_state_is_read_up_to_its_window() -> None:
    regions = [
        {"count": 2, "bytes_per_position": 10, "window": None, "fixed_bytes": 0},
        {"count": 1, "bytes_per_position": 100, "window": 4, "fixed_bytes": 7},
    ]
    assert state_bytes(regions, 2, 3) == (20 * (3 + 4 + 5) + 100 * (3 + 4 + 4)) / 3 + 7


# Arms


def test_an_arm_answers(log: Path) -> None:
    with Arm(spec("a", log)) as arm:
        assert arm.load_seconds == 0.25
        assert arm.start_seconds > 0
        assert arm.facts["name"] == "a"
        assert arm.decode((1, 2), 3).tokens == (1000, 1001, 1002)
        assert arm.prefill((1,)).token == 7
        assert arm.read() == 2e9
        assert arm.memory() == Memory(3_000_000, 4_000_000, 1_000_000)
        pid = arm.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        ("missing", PlatformError, r"^a: No m; install m$"),
        ("refuse", UnsupportedRefusal, r"^no kernel$"),
        ("fail", PlatformError, r"^a: KeyError: 'x'; .*a line of no interest"),
        ("die", PlatformError, r"^a: its process ended with status 3; .*: dying of thirst$"),
        ("babble", PlatformError, r"^a: its process answered .*expected an object"),
    ],
)
def test_an_arm_that_does_not_start(
    log: Path, behaviour: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        Arm(spec("a", log, behaviour))
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match=r"^a: .*absent cannot be started: No such file"):
        Arm(ArmSpec("a", (str(tmp_path / "absent"),)))


def test_an_arm_that_fails_later(log: Path) -> None:
    with Arm(spec("a", log, "die later")) as arm:
        with pytest.raises(PlatformError, match="ended with status 4"):
            arm.prefill((1,))
        with pytest.raises(PlatformError, match="ended with status 4"):
            arm.prefill((1,))
    with (
        Arm(spec("a", log, "fail later")) as arm,
        pytest.raises(PlatformError, match="too hot"),
    ):
        arm.prefill((1,))


def test_an_arm_that_answers_nonsense(log: Path) -> None:
    with Arm(spec("a", log, "nonsense")) as arm:
        for ask in (
            lambda: arm.prefill((1,)),
            lambda: arm.decode((1,), 2),
            arm.read,
            arm.memory,
        ):
            with pytest.raises(PlatformError, match="expected"):
                ask()


# Turns


def measured(log: Path, monkeypatch: pytest.MonkeyPatch, work: Work) -> Report:
    monkeypatch.setattr(measure, "_SETTLE_SECONDS", 0.0)
    specs = [spec("a", log), spec("b", log)]
    found = measure.measure(specs, spec("r", log), work, SilentProgress())
    return make_report(found, work, 10**9, 1 << 20)


def test_arms_take_turns(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(log, monkeypatch, WORK)
    started, commands = [], []
    for line in log.read_text().splitlines():
        (started if " started " in line else commands).append(line)
    assert [line[0] for line in started] == ["a", "b", "r"]
    check = ["a decode 3 4", "b decode 3 4"]
    decode = ["r read 0 None", "a decode 2 8", "b decode 2 8"] * 3
    prefill = ["a prefill 10 None", "b prefill 10 None"] * 3
    memory = ["a memory 0 None", "b memory 0 None"]
    assert commands == [*check, *decode, *memory, *prefill, *memory]


def test_the_report_says_what_was_measured(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = measured(log, monkeypatch, WORK)
    own, other = report.arms
    assert own.decode is not None
    assert own.decode.values == (2.0, 2.0)
    assert own.prefill is not None
    assert own.prefill.median == 5.0
    assert own.decode_ratio is None
    assert other.decode_ratio is not None
    assert other.decode_ratio.values == (1.0, 1.0)
    assert other.prefill_ratio is not None
    assert other.differs_at is None
    assert report.floor is not None
    assert report.floor.seconds_per_token.median == 0.5  # 1e9 bytes at 2e9 bytes a second
    assert report.floor.ratio.values == (1.0, 1.0)


def test_what_is_left_out_is_none(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = measured(log, monkeypatch, Work((1,), 2, (1,), 0, (1, 2), 1))
    assert report.floor is None
    assert report.arms[1].decode is None
    assert report.arms[1].decode_ratio is None
    report = measured(log, monkeypatch, Work((1,), 2, (1,), 3, (), 1))
    assert report.arms[1].prefill is None
    assert report.floor is not None


def figures(name: str, greedy: tuple[int, ...]) -> measure.ArmFigures:
    memory = Memory(1, 1, 1)
    return measure.ArmFigures(
        name, {"state": []}, 1.0, 1.0, greedy, (4.0, 2.0), (1.0, 1.0), memory, memory
    )


def test_notes_tell_what_disturbs() -> None:
    def notes(load: machine.Load, cache: int) -> tuple[str, ...]:
        arms = (figures("larql", (1, 2)), figures("peer", (1, 3)))
        found = measure.Measurement(arms, (1e9, 1e9), {}, load, None, None, 1.0)
        return make_report(found, WORK, 100, cache).notes

    quiet = notes(machine.Load(2.0, 0.1, 0.0), 10)
    assert quiet == ("peer chose another token than larql at greedy step 1",)
    assert "kept 1.5 cores busy" in notes(machine.Load(2.0, 1.5, 0.0), 10)[0]
    assert "host" in notes(machine.Load(2.0, 0.1, 0.3), 10)[0]
    assert "largest cache" in notes(machine.Load(2.0, 0.1, 0.0), 100)[0]


def test_ratios_are_of_pairs() -> None:
    own, peer = figures("larql", (1,)), figures("peer", (1,))
    slow = measure.ArmFigures(**{**vars(peer), "decode": (4.0, 6.0)})
    found = measure.Measurement((own, slow), (1e9, 2e9), {}, machine.Load(0, 0, 0), None, None, 1.0)
    report = make_report(found, WORK, 10**9, None)
    assert report.arms[1].decode_ratio is not None
    assert report.arms[1].decode_ratio.values == (1.0, 3.0)
    assert report.floor is not None
    assert report.floor.ratio.values == (0.5, 0.5)


# The child


def child(engine: str, tmp_path: Path, lines: list[dict[str, object]]) -> tuple[int, list[object]]:
    """Run the child with an engine, without any site-packages: as a peer's interpreter may be."""
    (tmp_path / "fake_engine.py").write_text(engine)
    process = subprocess.run(
        [sys.executable, "-S", str(ARMS / "child.py"), "fake_engine", '{"x": 1}'],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    return process.returncode, [json.loads(line) for line in process.stdout.splitlines()]


ENGINE = """
print("printed on import")
class Engine:
    load_seconds = 0.5
    def __init__(self, options):
        self.facts = {"options": options, "calls": []}
        self.calls = self.facts["calls"]
        self.can_rewind = True
    def prefill(self, ids):
        print("printed by the engine")
        self.calls.append("prefill")
        if 13 in ids:
            raise RuntimeError("thirteen")
        self.held = len(ids)
        return sum(ids)
    def step(self, token):
        self.held += 1
        return token + self.held
    def rewind(self, length):
        if self.held > 5:
            return False
        self.held = length
        return True
def load(options):
    return Engine(options)
"""


def test_the_child_holds_a_context(tmp_path: Path) -> None:
    decode: dict[str, object] = {"do": "decode", "ids": [1, 2], "steps": 3}
    status, replies = child(
        ENGINE, tmp_path, [decode, decode, {"do": "decode", "ids": [4], "steps": 9}, decode]
    )
    assert status == 0
    ready, *answers = replies
    assert isinstance(ready, dict)
    assert ready["ready"]["facts"]["options"] == {"x": 1}
    tokens = [answer["tokens"] for answer in answers if isinstance(answer, dict)]
    # 3 = 1 + 2, then each plus the positions held after it.
    assert tokens == [[3, 6, 10], [3, 6, 10], [4, 6, 9, 13, 18, 24, 31, 39, 48], [3, 6, 10]]


def test_the_child_prefills_again_only_where_it_must(tmp_path: Path) -> None:
    engine = ENGINE.replace("def step", "def step_of").replace(
        "def step_of(self, token):",
        "def step(self, token):\n        token = 100 * len(self.calls)",
    )
    one: dict[str, object] = {"do": "decode", "ids": [1, 2], "steps": 2}
    long: dict[str, object] = {"do": "decode", "ids": [1, 2], "steps": 4}
    _, replies = child(engine, tmp_path, [one, one, long, one, {"do": "prefill", "ids": [1]}, one])
    second = [r["tokens"][1] // 100 for r in replies[1:] if isinstance(r, dict) and "tokens" in r]
    assert second == [1, 1, 1, 2, 4]


def test_the_child_reports_what_the_engine_raises(tmp_path: Path) -> None:
    _, replies = child(
        ENGINE, tmp_path, [{"do": "prefill", "ids": [13]}, {"do": "dance"}, {"do": "memory"}]
    )
    assert replies[1] == {
        "error": {"kind": "RuntimeError", "message": "thirteen", "missing_module": None}
    }
    assert isinstance(replies[2], dict)
    assert replies[2]["error"]["kind"] == "KeyError"
    assert isinstance(replies[3], dict)
    assert 0 < replies[3]["file_bytes"] < replies[3]["resident_bytes"] <= replies[3]["peak_bytes"]


def test_the_child_reports_a_missing_module(tmp_path: Path) -> None:
    status, replies = child("import no_such_module", tmp_path, [])
    assert status == 1
    assert isinstance(replies[0], dict)
    assert replies[0]["error"]["missing_module"] == "no_such_module"


@pytest.mark.parametrize("name", ["child", "engine_llama_cpp", "engine_transformers"])
def test_what_peers_run_needs_no_larql(name: str) -> None:
    tree = ast.parse((ARMS / f"{name}.py").read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    peers = {"llama_cpp", "numpy", "torch", "transformers"} if name != "child" else set()
    assert {name.split(".")[0] for name in imported} <= {*sys.stdlib_module_names, *peers}


def test_no_module_beside_the_child_hides_another() -> None:
    names = {path.stem for path in ARMS.glob("*.py")}
    assert names == {
        "__init__",
        "bandwidth",
        "child",
        "engine_larql",
        "engine_llama_cpp",
        "engine_transformers",
    }


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_larqls_arm_goes_back_as_if_nothing_had_happened(
    containers: dict[str, Container], kv: str
) -> None:
    container = containers["gemma_gguf"]  # with windows of 4
    engine = Larql(container.path, RunOptions(threads=2, kv=kv), 40)
    ids = [5, 6, 7, 8, 9, 10, 11]
    first = engine.prefill(ids)
    steps = [engine.step(first)]
    steps.append(engine.step(steps[-1]))
    assert engine.rewind(len(ids))
    again = [engine.step(first)]
    again.append(engine.step(again[-1]))
    assert again == steps
    assert engine.prefill(ids) == first


def test_larqls_arm_computes_with_the_activations_it_was_asked_for(
    containers: dict[str, Container],
) -> None:
    with pytest.raises(LarqlError, match="--activations 'q7'"):
        Larql(containers["llama"].path, RunOptions(threads=2, activations="q7"), 4)


def test_larqls_arm_counts_the_bytes_of_its_keys_and_values(
    containers: dict[str, Container],
) -> None:
    options = {"container": str(containers["llama"].path), "threads": 2, "room": 100}
    found = []
    for kv in ("f32", "f16"):
        facts = load({**options, "activations": "f32", "kv": kv, "prefault": False}).facts
        assert facts["kv"] == kv
        (state,) = cast("list[dict[str, int]]", facts["state"])
        found.append(state["bytes_per_position"])
    assert found[0] == 2 * found[1] > 0


def test_larqls_arm_brings_weights_in_where_it_is_told(
    containers: dict[str, Container], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(Segment, "prefault", lambda segment, tensor: made.append(tensor))
    options = {"threads": 2, "room": 4, "activations": "f32"}
    for prefault in (False, True):
        run = RunOptions(threads=2, prefault=prefault)
        spec = larql_arm(containers["llama"], run, 4)
        said = json.loads(spec.command[-1])
        assert said.items() >= {**options, "prefault": prefault}.items()
        load(said)
        assert bool(made) is prefault


@pytest.mark.parametrize("prefault", [False, True])
def test_a_benchmark_passes_on_that_weights_are_brought_in(
    containers: dict[str, Container], prefault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(_container: Container, run: RunOptions, _room: int) -> ArmSpec:
        assert run.prefault is prefault
        raise PlatformError("told")

    monkeypatch.setattr("larql.runtime.bench.run.larql_arm", told)
    options = BenchOptions(run=RunOptions(prefault=prefault))
    with pytest.raises(PlatformError, match="told"):
        bench(containers["llama"], options, SilentProgress())


# The machine


def test_the_clock_counts_work_of_its_own_and_of_children() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        with_child, without = machine.Clock([process.pid]), machine.Clock([])
        began = time.process_time()
        while time.process_time() < began + 0.2:
            pass
        assert process.stdout is not None
        process.stdout.readline()
        assert with_child.load().own > without.load().own > 0
        assert with_child.load().others >= 0
        process.kill()


def test_what_the_machine_says() -> None:
    assert machine.cpu_model()
    cache = machine.largest_cache()
    assert cache is None or cache >= 1 << 15
    assert machine.load_average() is not None
    assert machine._process_seconds(2**22 + 1) == 0.0


# All of it


def test_a_tiny_model(containers: dict[str, Container]) -> None:
    container = containers["gemma_gguf"]
    options = BenchOptions(
        decode_tokens=3, prefill=5, context=7, repeats=2, run=RunOptions(threads=2)
    )
    found = bench(container, options, SilentProgress())
    (own,) = found.report.arms
    assert own.decode is not None
    assert own.prefill is not None
    assert len(own.decode.values) == len(own.prefill.values) == 2
    assert all(math.isfinite(v) and v > 0 for v in own.decode.values + own.prefill.values)
    assert len(own.greedy) == 16
    assert own.differs_at is None
    assert own.memory.peak >= own.decode_memory.resident > 10**7
    floor = found.report.floor
    assert floor is not None
    assert floor.bytes_per_second.minimum > 10**8
    # Five layers see 4 positions, one sees 8, 9 and 10; keys and values are float32.
    each = 2 * 1 * 32 * 4
    assert floor.state_bytes == each * (5 * 4 + 9)
    assert found.provenance["container"] == {
        "fingerprint": container.fingerprint,
        "profile": None,
        "model": container.index.model,
        "source": dict(container.index.source),
    }
    assert found.work["threads"] == 2


def test_nothing_to_measure(containers: dict[str, Container]) -> None:
    with pytest.raises(UsageError, match="nothing is left to measure"):
        bench(containers["llama"], BenchOptions(decode_tokens=0, prefill=0), SilentProgress())
