"""Which tensor of a checkpoint each operand is filled from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from larql.format.encoding import ENCODINGS
from larql.format.rows import RowSelection
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import SourceTensor
from larql.format.source.config import ConfigReader
from larql.format.source.names import Naming, commonest
from larql.format.source.optional import OptionalTensors
from larql.format.source.pieces import BankBinding
from larql.format.source.problems import Problem, Problems

__all__ = ["Binder", "Part"]


@dataclass(frozen=True)
class Part:
    """Some rows of a tensor that holds several matrices, and how many rows it has in all."""

    rows: RowSelection
    total: int


class Binder:
    """Fills operands of a component from tensors of a checkpoint.

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

    def beside(self, component: str, naming: Naming, tensors: Mapping[str, SourceTensor]) -> Self:
        """Return one for another component, which adds to what this one has collected.

        Its tensors are given, and how they are spelt and what is wrong with them is its own:
        nothing of this component hangs on them.
        """
        other = type(self)(
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


def _without(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its outermost axes of one element, all but the last."""
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
