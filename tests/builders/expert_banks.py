"""Containers of routed experts made of arrays in memory; tests and benchmarks share them.

``A`` are tiny banks in float32, ``D`` has latent transforms and shared experts. A model is layers
of routed blocks alone between an embedding and a head, so that what enters an expert is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from larql.format.banks import BANK_SCHEMA, RegionPlace, region_name
from larql.format.codec import encode
from larql.format.container import Container
from larql.format.encoding import ENCODINGS
from larql.format.generation import SchemaVersion
from larql.format.graph import (
    Block,
    Component,
    DenseFfn,
    Embed,
    ExpertBank,
    Graph,
    Head,
    LatentSpace,
    Layer,
    Linear,
    Norm,
    RoutedFfn,
    Router,
    SharedExperts,
)
from larql.format.graph_json import graph_to_json
from larql.format.index import (
    FileEntry,
    Index,
    Representation,
    SourceBinding,
    dump_json,
    index_to_json,
)
from larql.format.lyrw.codes import BankKind, Role, format_code, packing_of
from larql.format.lyrw.tables import Bank, BankSegment, RegionSchema, Tables
from larql.format.lyrw.v2 import bank_file_name
from larql.format.lyrw.v2_writer import write_banks
from larql.format.moe.from_graph import Place, manifest_of
from larql.format.moe.manifest_json import manifest_to_json
from larql.format.segment import SegmentTensor, hash_file, write_segment
from larql.runtime.operands import StoredBank, StoredOperand
from tests.builders.tokenizer import tokenizer_json

Array = npt.NDArray[np.float32]
Change = Callable[[str, Array], Array]


@dataclass(frozen=True)
class Spec:
    """A model of routed layers.

    Attributes
    ----------
    experts, top, hidden, width : int
    form : str
        Gate and up ``apart``, in ``halves`` of one region, or row by row in ``turns``.
    latent : int or None
        Width of the space that experts work in.
    shared : int or None
        Width of a shared expert.
    layers : int
    encoding : str
        Of the experts' matrices.
    padding : int
        Columns stored behind the logical ones of ``down``; they hold poison.
    score : str
    renormalise : bool
    vocab : int
        With 256 tokens there is a tokenizer.
    """

    experts: int
    top: int
    hidden: int = 4
    width: int = 6
    form: Literal["apart", "halves", "turns"] = "apart"
    latent: int | None = None
    shared: int | None = None
    layers: int = 1
    encoding: str = "f32"
    padding: int = 0
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = True
    vocab: int = 16

    @property
    def inner(self) -> int:
        """Width of what an expert reads and gives."""
        return self.latent or self.hidden


A = tuple(Spec(experts, top) for experts, top in ((5, 2), (8, 2), (32, 4), (5, 1)))
D = Spec(112, 16, 512, 256, latent=256, shared=512, score="sigmoid")
POISON = 1e30


@dataclass(frozen=True, eq=False)
class Weights:
    """What a model is made of, each array as it is meant.

    Attributes
    ----------
    spec : Spec
    embedding, head, norm : float32 ``[vocab, hidden]`` twice, ``[hidden]``
    layers : tuple of dict
        ``router`` ``[E, hidden]``, ``gate`` and ``up`` ``[E, width, inner]``, ``down``
        ``[E, inner, width]``, and where the spec has them ``into``, ``back``, ``shared.gate``,
        ``shared.up``, ``shared.down``.
    """

    spec: Spec
    embedding: Array
    head: Array
    norm: Array
    layers: tuple[dict[str, Array], ...]

    def with_layer(self, layer: int, **changed: Array) -> Weights:
        """Return the weights with some arrays of one layer changed."""
        made = {**self.layers[layer], **changed}
        return replace(self, layers=(*self.layers[:layer], made, *self.layers[layer + 1 :]))


def weights(spec: Spec, seed: int = 5) -> Weights:
    """Draw the weights of a model; those of a spec's other forms are the same."""
    generator = np.random.default_rng([seed, spec.experts, spec.hidden, spec.width])

    def normal(*shape: int) -> Array:
        made = generator.standard_normal(shape, np.float32)
        return made / np.float32(np.sqrt(shape[-1]))

    e, h, w, i = spec.experts, spec.hidden, spec.width, spec.inner
    embedding = normal(spec.vocab, h) * np.float32(np.sqrt(h))
    layers = []
    for _ in range(spec.layers):
        made = {
            "router": normal(e, h),
            "gate": normal(e, w, i),
            "up": normal(e, w, i),
            "down": normal(e, i, w),
        }
        if spec.latent is not None:
            made |= {"into": normal(i, h), "back": normal(h, i)}
        if spec.shared is not None:
            made |= {
                "shared.gate": normal(spec.shared, h),
                "shared.up": normal(spec.shared, h),
                "shared.down": normal(h, spec.shared),
            }
        layers.append(made)
    return Weights(spec, embedding, normal(spec.vocab, h), np.ones(h, np.float32), tuple(layers))


def component(spec: Spec) -> Component:
    """Return the graph of a model."""
    layers = tuple(
        Layer(index, (Block("ffn", _routed(spec, f"target.layer.{index:03d}")),))
        for index in range(spec.layers)
    )
    embed = Embed("target.embedding/weight", spec.vocab, spec.hidden)
    norm = Norm("rms", spec.hidden, 1e-6, weight="target.norms/output.weight")
    head = Head(norm, "target.output_head/weight", spec.vocab, spec.hidden, tied=False)
    return Component("target", "decoder", spec.hidden, spec.vocab, 64, embed, layers, head)


def _routed(spec: Spec, at: str) -> RoutedFfn:
    e, h, i = spec.experts, spec.hidden, spec.inner
    apart = spec.form == "apart"
    bank = ExpertBank(
        programme="gated-mlp-v1" if spec.latent is None else "latent-moe-v1",
        experts=e,
        hidden=i,
        width=spec.width,
        activation="silu",
        down=f"{at}/experts.down",
        gate=f"{at}/experts.gate" if apart else None,
        up=f"{at}/experts.up" if apart else None,
        gate_up=None if apart else f"{at}/experts.gate_up",
        fused_rows=None
        if apart
        else ("contiguous_halves" if spec.form == "halves" else "interleaved"),
    )
    latent = shared = None
    if spec.latent is not None:
        latent = LatentSpace(
            Linear(f"{at}/ffn.latent_in.weight", i, h), Linear(f"{at}/ffn.latent_out.weight", h, i)
        )
    if spec.shared is not None:
        wide = spec.shared
        gate, up, down = (f"{at}/ffn.shared.{part}.weight" for part in ("gate", "up", "down"))
        shared = SharedExperts(
            DenseFfn(
                "silu", gate=Linear(gate, wide, h), up=Linear(up, wide, h),
                down=Linear(down, h, wide),
            )
        )  # fmt: skip
    router = Router(Linear(f"{at}/ffn.router.weight", e, h), spec.score, spec.top, spec.renormalise)
    return RoutedFfn(router, bank, shared=shared, latent=latent)


def dense_operands(model: Weights) -> Iterator[tuple[str, Array]]:
    """Yield name and values of everything that is no expert's."""
    yield "target.embedding/weight", model.embedding
    for index, layer in enumerate(model.layers):
        at = f"target.layer.{index:03d}/ffn"
        yield f"{at}.router.weight", layer["router"]
        for key, name in (
            ("into", "latent_in"), ("back", "latent_out"), ("shared.gate", "shared.gate"),
            ("shared.up", "shared.up"), ("shared.down", "shared.down"),
        ):  # fmt: skip
            if key in layer:
                yield f"{at}.{name}.weight", layer[key]
    yield "target.norms/output.weight", model.norm
    yield "target.output_head/weight", model.head


def bank_operands(model: Weights, index: int) -> Iterator[tuple[str, Role, Array]]:
    """Yield name, role and values ``[E, rows, columns]`` of one layer's experts, as stored."""
    spec, layer, at = model.spec, model.layers[index], f"target.layer.{index:03d}/experts"
    gate, up = layer["gate"], layer["up"]
    if spec.form == "apart":
        yield f"{at}.gate", Role.GATE, gate
        yield f"{at}.up", Role.UP, up
    elif spec.form == "halves":
        yield f"{at}.gate_up", Role.GATE_UP_FUSED, np.concatenate([gate, up], axis=1)
    else:
        fused = np.empty((spec.experts, 2 * spec.width, spec.inner), np.float32)
        fused[:, 0::2], fused[:, 1::2] = gate, up
        yield f"{at}.gate_up", Role.GATE_UP_FUSED, fused
    yield f"{at}.down", Role.DOWN, layer["down"]


def stored(spec: Spec, role: Role, values: Array) -> npt.NDArray[np.uint8]:
    """Return matrices as stored, padding included: uint8 ``[..., rows, row bytes]``."""
    if role is Role.DOWN and spec.padding:
        tail = np.full((*values.shape[:-1], spec.padding), POISON, np.float32)
        if ENCODINGS[spec.encoding].is_block:
            # Poison that blocks can hold, and that shares them with logical columns.
            tail = np.full_like(tail, 8 * np.abs(values).max())
        values = np.concatenate([values, tail], axis=-1)
    return encode(ENCODINGS[spec.encoding], np.ascontiguousarray(values))


def in_memory(model: Weights) -> tuple[list[StoredOperand], list[StoredBank]]:
    """Return a model's operands as they would be bound, without a container."""
    spec, banks = model.spec, []
    operands = [
        StoredOperand(name, ENCODINGS["f32"], values.shape, _flat(values))
        for name, values in dense_operands(model)
    ]
    for index in range(spec.layers):
        for name, role, values in bank_operands(model, index):
            entries = tuple(entry.reshape(-1) for entry in stored(spec, role, values))
            padded = values.shape[-1] + spec.padding if role is Role.DOWN and spec.padding else None
            place = RegionPlace(index, 0, role.name.lower())
            banks.append(
                StoredBank(name, ENCODINGS[spec.encoding], values.shape, entries, place, padded)
            )
    return operands, banks


def _flat(values: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def write(
    model: Weights,
    to: Path,
    *,
    experts: tuple[int, int] | None = None,
    change: Change | None = None,
) -> Container:
    """Write a container.

    Parameters
    ----------
    model : Weights
    to : Path
        Does not exist.
    experts : (int, int) or None
        Half-open range of the experts that it holds, as a shard; None: all, as a whole.
    change : callable or None
        Given name and values of each dense operand, returns the values to write.
    """
    spec = model.spec
    (to / "segments").mkdir(parents=True)
    (to / "routed").mkdir()
    representations: dict[str, Representation] = {}
    segments: dict[str, FileEntry] = {}
    by_object: dict[str, list[tuple[str, Array]]] = {}
    for name, values in dense_operands(model):
        values = values if change is None else change(name, values)
        by_object.setdefault(name.split("/")[0], []).append((name, values))
    for key, named in by_object.items():
        file = f"segments/{key}.safetensors"
        tensors = [
            SegmentTensor(name.split("/")[1], ENCODINGS["f32"], v.shape, [_flat(v).tobytes()])
            for name, v in named
        ]
        segments[file] = write_segment(to / file, tensors)
        for name, v in named:
            representations[name] = _representation(
                name, "f32", v.shape, file, name.split("/")[1], _flat(v)
            )
    files: dict[Place, str] = {}
    for index in range(spec.layers):
        file = bank_file_name(index, None if experts is None else experts[0])
        files[None, index] = file
        regions = [
            (name, role, values, stored(spec, role, values))
            for name, role, values in bank_operands(model, index)
        ]
        _write_bank(to / file, spec, index, regions, experts)
        written = hash_file(to / file)
        segments[file] = FileEntry(written.size, written.sha256, {"schema": BANK_SCHEMA})
        for number, (name, role, values, data) in enumerate(regions):
            padded = values.shape[-1] + spec.padding if role is Role.DOWN and spec.padding else None
            representations[name] = _representation(
                name, spec.encoding, values.shape, file, region_name(0, number), data, padded
            )
    _write_documents(to, spec, representations, segments, files)
    return Container(to)


def _write_bank(
    path: Path,
    spec: Spec,
    layer: int,
    regions: list[tuple[str, Role, Array, npt.NDArray[np.uint8]]],
    experts: tuple[int, int] | None,
) -> None:
    encoding = ENCODINGS[spec.encoding]
    schemas = tuple(
        RegionSchema(
            number, role, format_code(encoding), packing_of(encoding), values.shape[1],
            values.shape[2] + (spec.padding if role is Role.DOWN else 0),
        )
        for number, (_, role, values, _) in enumerate(regions)
    )  # fmt: skip
    dims = spec.inner, spec.width, spec.inner
    bank = Bank(0, BankKind.ROUTED, spec.experts, *dims, schemas)
    first, end = experts or (0, spec.experts)
    # Parts of a population are numbered by where they begin, so that any may stand beside another.
    segment = BankSegment(0, 0 if experts is None else first, first, end - first)
    tables = Tables(layer, (bank,), (segment,), one_of_several=experts is not None)
    with write_banks(path, tables) as writer:
        for entry in range(first, end):
            for schema, (_, _, _, data) in zip(schemas, regions, strict=True):
                writer.region(0, entry, schema, [data[entry].tobytes()])


def _representation(
    name: str,
    encoding: str,
    shape: tuple[int, ...],
    file: str,
    tensor: str,
    data: npt.NDArray[np.uint8],
    padded: int | None = None,
) -> Representation:
    source = SourceBinding(name, encoding, hashlib.sha256(data.tobytes()).hexdigest())
    return Representation(
        name, name, ENCODINGS[encoding], "source-exact", shape, file, tensor, source,
        stored_columns=padded,
    )  # fmt: skip


def _write_documents(
    to: Path,
    spec: Spec,
    representations: dict[str, Representation],
    segments: dict[str, FileEntry],
    banks: dict[Place, str],
) -> None:
    target = component(spec)
    manifest = manifest_of((target,), banks)
    assert manifest is not None
    documents = {
        "system_graph.json": graph_to_json(Graph((target,))),
        "moe_manifest.json": manifest_to_json(manifest),
    }
    files = dict(segments)
    for name, document in documents.items():
        (to / name).write_bytes(dump_json(document))
        files[name] = hash_file(to / name)
    if spec.vocab == 256:
        (to / "tokenizer.json").write_bytes(dump_json(tokenizer_json()))
        files["tokenizer.json"] = hash_file(to / "tokenizer.json")
    index = Index(
        schema=SchemaVersion(3),
        model="experts",
        family="experts",
        hidden_size=spec.hidden,
        num_layers=spec.layers,
        components=("target",),
        system_graph="system_graph.json",
        moe_manifest="moe_manifest.json",
        source={},
        text={},
        objects={},
        representations=representations,
        precision_map={},
        authority="canonical",
        notes=(),
        segments=segments,
        files=files,
    )
    (to / "index.json").write_bytes(dump_json(index_to_json(index)))
