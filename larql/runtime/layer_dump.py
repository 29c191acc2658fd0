"""One plane of hidden states for each layer boundary, written as layers complete.

Each layer runs as a :class:`~larql.runtime.slices.LayerRange` from one plane to the next, so a
resumed dump continues from the last plane on disk with the bits that an unbroken one has. Where
layers need more than the hidden states that enter them, all run together, and a resumed dump
begins again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from larql.errors import LarqlError, OutputError, UsageError, refusal_of
from larql.format.atomic import explain_os_error, write_file
from larql.format.graph import separable
from larql.format.progress import Progress
from larql.format.segment import hash_file
from larql.provenance import sidecar_path, write_sidecar
from larql.runtime.dump import DumpHashes, write_dump
from larql.runtime.head import logit_rows
from larql.runtime.plan import Plan, check_tokens
from larql.runtime.planes import SiteWatch
from larql.runtime.run import Run
from larql.runtime.slices import LayerRange

__all__ = ["MANIFEST_NAME", "LayerDump", "dump_layers"]

IDENTITY_NAME = "run.json"
MANIFEST_NAME = "manifest.json"
_IDENTITY = (
    "container",
    "component",
    "backend",
    "kv",
    "numerics",
    "activations",
    "executed_layers",
    "tokens",
)

# Temporary names of larql.format.atomic.write_file.
_UNFINISHED = re.compile(r"\..+\.tmp-[0-9a-f]{12}")

Plane = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LayerDump:
    """What a layer dump wrote.

    Attributes
    ----------
    directory : Path
    files : dict
        File name to hashes: planes in order, the final norm, the logits.
    resumed_at : int
        The first layer that this run executed; 0 unless it was resumed.
    """

    directory: Path
    files: dict[str, DumpHashes]
    resumed_at: int


def dump_layers(
    run: Run,
    tokens: Sequence[int],
    directory: Path,
    *,
    resume: bool,
    progress: Progress,
    sites: bool = False,
) -> LayerDump:
    """Write a plane for each layer boundary, then the final norm and the logits.

    Plane 0 is the embedding, plane k the carrier after the k-th executed layer; each is float32
    ``[positions, hidden]`` in ``plane_kkk.npy``. With ``sites``, ``plane_kkk_attention.npy`` is the
    carrier in the middle of the k-th executed layer, after attention. ``manifest.json`` is written
    last and marks completion. A dump that is interrupted can be resumed; one that is refused leaves
    nothing that it has written.

    Parameters
    ----------
    run : Run
        A full or draft run.
    tokens : sequence of int
    directory : Path
        Created if it does not exist; it must be empty unless ``resume`` is given.
    resume : bool
        Continue an interrupted dump of the same run.
    progress : Progress
        Told of the layers that are done.
    sites : bool
        Write the planes after attention too.

    Raises
    ------
    OutputError
        If the directory holds anything and ``resume`` is not given, or cannot be written.
    UsageError
        If the directory belongs to another run: other tokens, container, component or backend.
    Refusal
        As the session refuses.
    """
    plan = run.prepared.plan
    check_tokens(tokens, plan.component.embed.vocab)
    said = run.provenance(tokens, len(tokens))
    identity = {key: said[key] for key in _IDENTITY}
    identity["sites"] = sites
    stood = _names(directory)
    planes = _open_directory(directory, identity, resume)
    try:
        return _dump(run, tokens, directory, planes, progress, sites)
    except LarqlError as error:
        if refusal_of(error) is not None:
            _take_back(directory, stood)
        raise


def _names(directory: Path) -> set[str] | None:
    """Return what is in a directory, None if there is none."""
    return {path.name for path in directory.iterdir()} if directory.is_dir() else None


def _take_back(directory: Path, stood: set[str] | None) -> None:
    """Remove what a refused dump has written, and the directory if that is its own."""
    for path in directory.iterdir():
        if path.name not in (stood or ()):
            path.unlink()
    if stood is None:
        directory.rmdir()


def _dump(
    run: Run,
    tokens: Sequence[int],
    directory: Path,
    planes: int,
    progress: Progress,
    sites: bool,
) -> LayerDump:
    """Write all planes but the first ``planes``, which stand there."""
    plan = run.prepared.plan
    apart = separable(plan.component)
    planes = planes if apart else 0
    writer = _Writer(run, tokens, directory)
    progress.start("layers", len(plan.layers))
    began = time.perf_counter()
    if planes:
        writer.keep(name for k in range(planes) for name in _plane_names(plan, k, sites))
        carrier, done = _read_plane(directory / _plane_name(planes - 1)), planes - 1
    elif apart:
        ids = np.asarray(tokens, dtype=np.int64)
        carrier, done = run.prepared.backend.embed(plan.component.embed, ids), 0
        writer.write(_plane_name(0), [carrier], carrier.shape[1])
    else:
        watch = SiteWatch(run.options.chunk or run.prepared.backend.default_chunk)
        session = run.session(len(tokens), watch)
        carrier, done = session.advance(tokens), 0
        together = iter(watch.carriers())
        writer.write(_plane_name(0), [next(together)], carrier.shape[1])
    progress.advance(done)
    for k in range(done, len(plan.layers)):
        if apart:
            carrier, middle = _run_layer(run, k, carrier, sites)
        else:
            writes = [(block.site, next(together)) for block in plan.layers[k].blocks]
            carrier = writes[-1][1]
            middle = [plane for site, plane in writes if sites and site == "attention"]
        for name, plane in zip(_plane_names(plan, k + 1, sites), (*middle, carrier), strict=True):
            writer.write(name, [plane], carrier.shape[1])
        progress.advance(1)
    head = plan.component.head
    normed = run.prepared.backend.final_norm(head, carrier)
    writer.write("final_norm.npy", [normed], normed.shape[1])
    writer.write("logits.npy", logit_rows(plan, run.prepared.backend, carrier), head.vocab)
    run.step_seconds += time.perf_counter() - began
    progress.finish()
    _write_json(
        directory / MANIFEST_NAME,
        {
            "complete": True,
            "planes": len(plan.layers) + 1,
            "files": {name: dataclasses.asdict(h) for name, h in writer.files.items()},
            "resumed_at": done,
            **run.provenance(tokens, len(tokens)),
        },
    )
    return LayerDump(directory, writer.files, done)


def _plane_name(k: int) -> str:
    return f"plane_{k:03d}.npy"


def _plane_names(plan: Plan, k: int, sites: bool) -> list[str]:
    """Return the files that end with plane k, in the order in which they are written."""
    last = _plane_name(k)
    if not (sites and k and _attends(plan, k - 1)):
        return [last]
    return [last.replace(".npy", "_attention.npy"), last]


def _attends(plan: Plan, k: int) -> bool:
    return any(block.site == "attention" for block in plan.layers[k].blocks)


def _run_layer(run: Run, k: int, carrier: Plane, sites: bool) -> tuple[Plane, list[Plane]]:
    """Return the carrier after a layer, and with ``sites`` that after its attention."""
    plan = run.prepared.plan
    layer = plan.layers[k]
    one = Plan(plan.component, LayerRange(layer.index, layer.index + 1), (layer,))
    prepared = dataclasses.replace(run.prepared, plan=one)
    of_layer = dataclasses.replace(run, prepared=prepared)
    if not sites:
        return of_layer.session(len(carrier)).advance_hidden(carrier), []
    watch = SiteWatch(run.options.chunk or run.prepared.backend.default_chunk)
    after = of_layer.session(len(carrier), watch).advance_hidden(carrier)
    kinds = enumerate((block.site for block in layer.blocks), start=1)
    return after, [watch.carriers()[w] for w, site in kinds if site == "attention"]


class _Writer:
    """Writes the files of one dump, each with its sidecar, and remembers their hashes."""

    def __init__(self, run: Run, tokens: Sequence[int], directory: Path) -> None:
        self._run = run
        self._tokens = tokens
        self._directory = directory
        self.files: dict[str, DumpHashes] = {}

    def write(self, name: str, rows: Iterable[Plane], columns: int) -> None:
        path = self._directory / name
        hashes = write_dump(path, (len(self._tokens), columns), rows)
        document = {
            "kind": name.removesuffix(".npy"),
            "shape": [len(self._tokens), columns],
            **dataclasses.asdict(hashes),
            **self._run.provenance(self._tokens, len(self._tokens)),
        }
        write_sidecar(path, document)
        self.files[name] = hashes

    def keep(self, names: Iterable[str]) -> None:
        """Take over files that an interrupted run has written."""
        for name in names:
            path = self._directory / name
            sidecar = _read_json(sidecar_path(path))
            hashes = DumpHashes(str(sidecar.get("sha256")), str(sidecar.get("payload_sha256")))
            if hash_file(path).sha256 != hashes.sha256:
                raise UsageError(
                    f"{path}: is not the plane its sidecar describes; remove it to redo it"
                )
            self.files[name] = hashes


def _open_directory(directory: Path, identity: dict[str, object], resume: bool) -> int:
    """Claim a directory for a run; return how many of its planes stand there already."""
    try:
        directory.mkdir(exist_ok=True)
        names = {path.name for path in directory.iterdir()}
        present = {name for name in names if not _UNFINISHED.fullmatch(name)}
        if present and not resume:
            raise OutputError(
                f"{directory}: is not empty; give --resume to continue the dump in it, or choose "
                f"another directory"
            )
        if present:
            _check_identity(directory, identity)
        # A killed run leaves what it was writing; and what a manifest vouches for may be gone.
        for name in (names - present) | ({MANIFEST_NAME} & present):
            (directory / name).unlink()
    except OSError as error:
        raise explain_os_error(error, directory) from None
    if not present:
        _write_json(directory / IDENTITY_NAME, identity)
        return 0
    planes = 0
    # The plane that ends a layer is written after the one in its middle.
    while {_plane_name(planes), f"{_plane_name(planes)}.json"} <= present:
        planes += 1
    return planes


def _check_identity(directory: Path, identity: dict[str, object]) -> None:
    if not (directory / IDENTITY_NAME).exists():
        raise UsageError(f"{directory}: has no {IDENTITY_NAME}; it is not a dump to resume")
    found = _read_json(directory / IDENTITY_NAME)
    for key, value in identity.items():
        if found.get(key) != value:
            raise UsageError(
                f"{directory}: was begun with another {key}; resume with the same one, or choose "
                f"another directory"
            )


def _read_plane(path: Path) -> Plane:
    try:
        return np.asarray(np.load(path, allow_pickle=False), dtype=np.float32)
    except (OSError, ValueError, EOFError):
        raise UsageError(
            f"{path}: cannot resume from it: it is no .npy file of numbers; remove it"
        ) from None


def _read_json(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot resume from it: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path}: cannot resume from it: not a JSON object")
    return document


def _write_json(path: Path, document: dict[str, object]) -> None:
    with write_file(path) as temporary:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
