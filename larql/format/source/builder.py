"""What a family file works with: operands named on one side, checkpoint tensors on the other.

A :class:`Builder` turns "the query projection of layer 7" into an operation that names its
operand, and remembers which checkpoint tensor that operand is to be filled from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from larql.format.encoding import ENCODINGS
from larql.format.graph import (
    Activation,
    Component,
    Convolution,
    DenseFfn,
    Embed,
    Head,
    Linear,
    Norm,
    Rope,
    SoftmaxAttention,
)
from larql.format.rows import RowSelection
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import SourceTensor
from larql.format.source.config import ConfigReader
from larql.format.source.names import Naming, commonest
from larql.format.source.optional import OptionalTensors
from larql.format.source.pieces import BankBinding
from larql.format.source.problems import Problem, Problems

__all__ = ["Builder", "Family", "HeadGeometry", "Part"]


@dataclass(frozen=True)
class HeadGeometry:
    """Numbers of query and key/value heads, and the width of each."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Part:
    """Some rows of a tensor that holds several matrices, and how many rows it has in all."""

    rows: RowSelection
    total: int


@dataclass(frozen=True)
class Family:
    """One model family: how its checkpoints are recognised and compiled.

    Attributes
    ----------
    name : str
        Recorded in the index as information; nothing reads it again.
    model_types : tuple of str
        ``model_type`` values of ``config.json``.
    architectures : tuple of str
        ``general.architecture`` values of GGUF files.
    hugging_face, gguf : callable
        ``compile(builder) -> Component`` for the two formats; None where there are no such files.
    drafts : callable or None
        ``compile(builder, target) -> Component or None``: the component that drafts for the
        target, where a checkpoint carries one.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    hugging_face: Callable[[Builder], Component]
    gguf: Callable[[Builder], Component] | None = None
    drafts: Callable[[Builder, Component], Component | None] | None = None


class Builder:
    """Collects bindings while a family describes its component.

    Parameters
    ----------
    config : ConfigReader
        The keys that describe the text model.
    tensors : mapping
        Tensors of the checkpoint by name.
    same_bytes : callable
        Whether two tensors hold equal bytes; used for a stored copy of a tied head.
    naming : Naming
        How the checkpoint names its tensors; a family replaces it where its names differ.
    component : str
        Id of the component being described.
    drops_ones : bool
        Whether files may lack a tensor's outermost axes where these have one element.
    """

    def __init__(
        self,
        config: ConfigReader,
        tensors: Mapping[str, SourceTensor],
        same_bytes: Callable[[SourceTensor, SourceTensor], bool],
        naming: Naming,
        component: str = "target",
        *,
        drops_ones: bool = False,
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.naming = naming
        self.component = component
        self.notes: list[str] = []
        self.bindings: dict[str, Binding] = {}
        self.banks: dict[str, BankBinding] = {}
        self.left: dict[str, str] = {}
        self.repeats: dict[str, str] = {}
        self.asked: set[str] = set()
        self.problems = config.problems
        self._same_bytes = same_bytes
        self._drops_ones = drops_ones
        self._spellings: dict[tuple[str, ...], str] = {}
        self.optional = OptionalTensors(tensors, self.refuse)

    @property
    def where(self) -> str:
        """The checkpoint, for error texts."""
        return self.config.where

    def refuse(self, tensor: str, problem: str) -> None:
        """Record what is wrong with a tensor; ``problem`` goes on about it."""
        text = f"{self.where}: tensor {tensor}{problem}"
        self.problems.add(Problem("tensor", tensor, text))

    def source(self, name: str, shape: tuple[int, ...]) -> SourceTensor:
        """Return a tensor of the checkpoint.

        One that is missing or has another shape than ``shape`` is recorded, and what is returned
        then stands in for it: :meth:`sound` tells.
        """
        self.asked.add(name)
        found = self.tensors.get(name)
        if found is not None and (
            found.shape == shape or (self._drops_ones and _without(found.shape) == _without(shape))
        ):
            return found
        if found is None:
            self.refuse(name, " is missing from the checkpoint")
        else:
            self.refuse(
                name,
                f" has shape {list(found.shape)}, expected {list(shape)} from the configuration",
            )
        return SourceTensor(name, shape, "F32", ENCODINGS["f32"], "", 0, 0)

    def sound(self, tensor: SourceTensor) -> bool:
        """Return whether a tensor is one of the checkpoint's, not a stand-in."""
        return self.tensors.get(tensor.name) is tensor

    def spelling(self, *ways: str) -> str:
        """Return how the checkpoint spells what may be spelled in several ways.

        See :func:`~larql.format.source.names.commonest`.
        """
        if ways not in self._spellings:
            self._spellings[ways] = commonest(self.tensors, ways)
        return self._spellings[ways]

    def bind(
        self,
        object_kind: str,
        tensor: str,
        source: str,
        shape: tuple[int, ...],
        *,
        part: Part | None = None,
        stored: tuple[int, ...] | None = None,
    ) -> str:
        """Fill an operand from a checkpoint tensor of a known shape.

        Parameters
        ----------
        object_kind, tensor : str
            The operand's object, without the component, and its name in there.
        source : str
            The checkpoint's tensor.
        shape : tuple of int
            The operand's shape.
        part : Part or None
            Which rows of the tensor are taken, and how many it has; None: all of them.
        stored : tuple of int or None
            The tensor's own shape where it has axes of one element more.

        Returns
        -------
        str
            The operand's name, also where the tensor is missing or has another shape.
        """
        expected = stored or shape
        if part is not None:
            expected = (part.total, *expected[1:])
        operand = f"{self.component}.{object_kind}/{tensor}"
        rows = None if part is None else part.rows
        self.bindings[operand] = Binding(operand, self.source(source, expected), shape, rows)
        return operand

    def vector(self, part: str, layer: int, size: int, *, stored: tuple[int, ...]) -> str:
        """Fill an operand of one axis from a tensor whose name has no suffix.

        Parameters
        ----------
        part : str
            Part of the naming, and the operand's name.
        layer : int
        size : int
            Elements of the operand.
        stored : tuple of int
            The tensor's own shape.
        """
        name = self.naming.tensor(part, layer, "")
        return self.bind(f"layer.{layer:03d}", part, name, (size,), stored=stored)

    def convolution(
        self,
        part: str,
        layer: int,
        channels: int,
        taps: int,
        activation: Activation | None,
        *,
        bias: bool | None = False,
        rows: Part | None = None,
        residual: bool = False,
        squeezed: bool = False,
    ) -> Convolution:
        """Describe a depthwise convolution, whose weight is stored as ``[channels, 1, taps]``.

        Where it is ``squeezed``, the axis of one element is not there. A ``bias`` of None means
        the same as in :meth:`linear`.
        """
        kind = f"layer.{layer:03d}"
        weight = self.bind(
            kind,
            f"{part}.weight",
            self.naming.tensor(part, layer, ".weight"),
            (channels, taps),
            part=rows,
            stored=(channels, taps) if squeezed else (channels, 1, taps),
        )
        shift, name = None, self.naming.tensor(part, layer, ".bias")
        if bias or (bias is None and self.optional.holds(f"{part}.bias", layer, name)):
            shift = self.bind(kind, f"{part}.bias", name, (channels,), part=rows)
        return Convolution(weight, channels, taps, activation, shift, residual)

    def beside(
        self, component: str, naming: Naming, tensors: Mapping[str, SourceTensor]
    ) -> Builder:
        """Return a builder of another component, which adds to what this one has collected.

        Its tensors are given, and how they are spelt and what is wrong with them is its own.
        """
        other = Builder(
            self.config,
            tensors,
            self._same_bytes,
            naming,
            component,
            drops_ones=self._drops_ones,
        )
        other.notes, other.bindings, other.left = self.notes, self.bindings, self.left
        other.banks, other.repeats, other.asked = self.banks, self.repeats, self.asked
        other.problems = Problems()
        return other

    def leave(self, names: Iterable[str], why: str) -> None:
        """State that tensors are not part of the text model; they are named, not carried."""
        for name in names:
            self.left[name] = why

    def linear(
        self,
        part: str,
        layer: int,
        outputs: int,
        inputs: int,
        *,
        bias: bool | None,
        rows: Part | None = None,
        stored: tuple[int, ...] | None = None,
    ) -> Linear:
        """Describe a projection of a layer.

        Parameters
        ----------
        part : str
            E.g. ``attention.q``.
        bias : bool or None
            Whether it has a bias; None: it has one if the checkpoint carries one, on all layers.
        rows : Part or None
            Which rows of the checkpoint's tensor it is, where that holds several projections.
        stored : tuple of int or None
            The weight's own shape where its rows have several axes.
        """
        kind = f"layer.{layer:03d}"
        weight = self.bind(
            kind,
            f"{part}.weight",
            self.naming.tensor(part, layer, ".weight"),
            (outputs, inputs),
            part=rows,
            stored=stored,
        )
        bias_name = self.naming.tensor(part, layer, ".bias")
        bias_operand = None
        if bias or (bias is None and self.optional.holds(f"{part}.bias", layer, bias_name)):
            bias_operand = self.bind(kind, f"{part}.bias", bias_name, (outputs,), part=rows)
        return Linear(weight=weight, outputs=outputs, inputs=inputs, bias=bias_operand)

    def norm(
        self,
        part: str,
        layer: int | None,
        width: int,
        eps: float,
        offset: float,
        *,
        stored: tuple[int, ...] | None = None,
    ) -> Norm:
        """Describe an RMS norm with a stored weight, in a tensor of shape ``stored`` if given."""
        kind = "norms" if layer is None else f"layer.{layer:03d}"
        name = self.naming.tensor(part, layer, ".weight")
        weight = self.bind(kind, f"{part}.weight", name, (width,), stored=stored)
        return Norm(kind="rms", width=width, eps=eps, offset=offset, weight=weight)

    def attention(
        self,
        layer: int,
        hidden: int,
        geometry: HeadGeometry,
        *,
        scale: float,
        bias: bool | None,
        rope: Rope | None,
        qk_norm: tuple[float, float] | None = None,
        window: int | None = None,
        softcap: float | None = None,
        gated: bool = False,
    ) -> SoftmaxAttention:
        """Describe softmax attention with four separate projections.

        Parameters
        ----------
        bias : bool or None
            As in :meth:`linear`, for all four projections.
        qk_norm : (float, float) or None
            Epsilon and offset of the per-head norms of queries and keys.
        gated : bool
            The rows of each head's query are followed by as many of its output gate, in one
            tensor, which the naming gives for ``attention.q`` and ``attention.gate``.
        """
        heads, kv_heads, dim = geometry.heads, geometry.kv_heads, geometry.head_dim
        norms = [
            None if qk_norm is None else self.norm(part, layer, dim, *qk_norm)
            for part in ("attention.q_norm", "attention.k_norm")
        ]
        halves = [
            Part(RowSelection(first, dim, 2 * dim, heads), 2 * heads * dim) if gated else None
            for first in (0, dim)
        ]
        gate = None
        if gated:
            gate = self.linear(
                "attention.gate", layer, heads * dim, hidden, bias=bias, rows=halves[1]
            )
        return SoftmaxAttention(
            heads=heads,
            kv_heads=kv_heads,
            key_dim=dim,
            value_dim=dim,
            scale=scale,
            q=self.linear("attention.q", layer, heads * dim, hidden, bias=bias, rows=halves[0]),
            k=self.linear("attention.k", layer, kv_heads * dim, hidden, bias=bias),
            v=self.linear("attention.v", layer, kv_heads * dim, hidden, bias=bias),
            o=self.linear("attention.o", layer, hidden, heads * dim, bias=bias),
            window=window,
            softcap=softcap,
            q_norm=norms[0],
            k_norm=norms[1],
            rope=rope,
            gate=gate,
        )

    def gated_ffn(
        self,
        layer: int,
        hidden: int,
        width: int,
        activation: Activation,
        *,
        bias: bool | None,
        stacked: bool = False,
    ) -> DenseFfn:
        """Describe a gated FFN with three separate projections.

        With ``stacked``, the rows of gate and then those of up stand in one tensor, which the
        naming gives for both.
        """
        halves = [
            Part(RowSelection.span(first, width), 2 * width) if stacked else None
            for first in (0, width)
        ]
        return DenseFfn(
            activation=activation,
            gate=self.linear("ffn.gate", layer, width, hidden, bias=bias, rows=halves[0]),
            up=self.linear("ffn.up", layer, width, hidden, bias=bias, rows=halves[1]),
            down=self.linear("ffn.down", layer, hidden, width, bias=bias),
        )

    def layer_count(self, key: str, default: int | None = None) -> int:
        """Take the number of layers, of which each has a tensor of its own."""
        taken = self.config.count(key) if default is None else self.config.count(key, default)
        if taken <= len(self.tensors):
            return taken
        held = f"the checkpoint has only {len(self.tensors)} tensors"
        self.config.refuse(key, f"is {taken}, but {held}")
        self.problems.assume(key)
        return 1

    def embed(self, width: int, scale: float) -> Embed:
        """Describe the embedding; the number of its rows is the vocabulary."""
        name = self.naming.tensor("embedding", None, ".weight")
        stored = self.tensors.get(name)
        rows = 1 if stored is None or not stored.shape else stored.shape[0]
        vocab = self.config.count("vocab_size", rows)
        weight = self.bind("embedding", "weight", name, (vocab, width))
        return Embed(weight=weight, vocab=vocab, width=width, scale=scale)

    def head(
        self,
        embed: Embed,
        norm: Norm,
        *,
        tied: bool | None,
        multiplier: float = 1.0,
        softcap: float | None = None,
        vocab: int | None = None,
    ) -> Head:
        """Describe the output head, resolving whether it is the embedding.

        Parameters
        ----------
        tied : bool or None
            What the configuration states; None: tied if and only if no head is stored.
        vocab : int or None
            Number of logits where the embedding has more rows. A head of its own has so many rows,
            or as many as the embedding.
        """
        name = self.naming.tensor("head", None, ".weight")
        stored = self.tensors.get(name)
        if tied is None:
            tied = stored is None
        weight = embed.weight
        if stored is None and not tied:
            self.refuse(name, " is missing and the head is not tied to the embedding")
        if stored is not None and tied:
            if self._same_bytes(stored, self.bindings[embed.weight].source):
                self.notes.append(
                    f"{name} repeats the embedding, to which the head is tied; it is stored once"
                )
                self.leave([name], "repeats the embedding")
                self.repeats[name] = embed.weight
            else:
                tied = False
                self.notes.append(
                    f"warning: the head is declared tied, but {name} differs from the embedding; "
                    f"the stored head is used"
                )
        vocab, rows = vocab or embed.vocab, embed.vocab
        if not tied:
            narrow = stored is not None and stored.shape == (vocab, embed.width)
            rows = vocab if narrow else rows
            weight = self.bind("output_head", "weight", name, (rows, embed.width))
        return Head(
            norm=norm,
            weight=weight,
            vocab=vocab,
            width=embed.width,
            tied=tied,
            multiplier=multiplier,
            softcap=softcap,
            rows=rows if rows > vocab else None,
        )


def _without(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its outermost axes of one element, all but the last."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
