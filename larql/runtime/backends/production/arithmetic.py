"""What the production operations are made of: mapped operands, products and norms by kernels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from larql.errors import UnsupportedRefusal
from larql.format.codec import decode
from larql.format.graph import Embed, Head, Linear, Norm, Rope
from larql.kernels.attention import padded_profiles
from larql.kernels.chosen import Alike, chosen_products
from larql.kernels.elementwise import add_row
from larql.kernels.encodings import BLOCKS
from larql.kernels.norm import layer_norm, rms_norm
from larql.kernels.parts import WHOLE, Part
from larql.kernels.product import products
from larql.kernels.product_q8 import products_q8, takes_integers
from larql.kernels.rounding import Empty, QuantizedRows, gather_rounded, quantize_rows
from larql.runtime.backends.step_program import StepProgram
from larql.runtime.backends.workspace import Workspace
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.routes import ExpertRoute

__all__ = ["Arithmetic", "Calls", "Float32", "Rotation", "Vectors", "decoded"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rotation:
    """cos and sin of a run of positions, float32 ``[T, dims / 2]``."""

    start: int
    cos: Float32
    sin: Float32


class Vectors:
    """Activations ``[T, K]``, rounded to int8 once, when a product first asks for that.

    Parameters
    ----------
    exact : float32 ``[T, K]``, C-contiguous
    memory : Workspace

    Attributes
    ----------
    count : int
        T.
    """

    def __init__(self, exact: Float32, memory: Workspace) -> None:
        self.count = len(exact)
        self._exact = exact
        self._memory = memory

    @property
    def exact(self) -> Float32:
        """The activations as they are."""
        return self._exact

    @cached_property
    def rounded(self) -> QuantizedRows:
        """The activations rounded."""
        return quantize_rows(self.exact, self._memory.take)

    @cached_property
    def apart(self) -> QuantizedRows:
        """The activations rounded, one after another, as products of single ones read them."""
        return quantize_rows(self.exact, self._memory.take, apart=True)

    def some(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """Return some of the rows, which are not rounded again; ``rows`` are int64 ``[n]``."""
        return _SomeVectors(self, rows)


class _SomeVectors(Vectors):
    """Rows of others, which are fetched when they are asked for."""

    def __init__(self, source: Vectors, rows: npt.NDArray[np.int64]) -> None:
        self.count = len(rows)
        self._memory = source._memory
        self._source, self._rows = source, np.ascontiguousarray(rows)

    @cached_property
    def exact(self) -> Float32:
        """The rows of the others."""
        return self._source.exact[self._rows]

    @cached_property
    def rounded(self) -> QuantizedRows:
        """The rounded rows of the others."""
        return gather_rounded(self._source.apart, self._rows, self._memory.take)


class Calls:
    """What some calls share: their memory, and the rotations of the run of positions at hand.

    Parameters
    ----------
    recorded : bool
        The calls are written down, to be made later.

    Attributes
    ----------
    doubts : list of int64 arrays, or None
        Words that recorded calls set where their results must not be used, and the step be walked:
        what a walk would refuse is known only when they have been made. None: nothing is recorded.
    programs : dict
        The calls of an embedding or a head for one position, once they have been recorded.
    """

    def __init__(self, recorded: bool = False) -> None:
        self.memory = Workspace()
        self.rotations: dict[Rope, Rotation] = {}
        self.doubts: list[npt.NDArray[np.int64]] | None = [] if recorded else None
        self.programs: dict[Embed | Head, StepProgram | None] = {}


class _OfThread(threading.local):
    """What the calls of one Python thread share; a program's calls have something of their own."""

    def __init__(self) -> None:
        self.calls = Calls()


class Arithmetic:
    """Products and norms with mapped operands.

    Parameters
    ----------
    activations : str
        ``f32`` or ``q8``.

    Attributes
    ----------
    operands : mapping
        Bound operands by name.
    vectors : mapping
        Those of one axis, decoded: float32 ``[n]``.
    routes : mapping
        The way to the experts of each bank, by the name of its down operand.
    frequencies : mapping
        Radians per position of each pair that a rope turns, float64, once they are known.
    """

    def __init__(self, activations: str) -> None:
        self.activations = activations
        self.operands: dict[str, StoredOperand] = {}
        self.vectors: dict[str, Float32] = {}
        self.routes: dict[str, ExpertRoute] = {}
        self.frequencies: dict[Rope, npt.NDArray[np.float64]] = {}
        self._columns: dict[str, Float32] = {}
        self._profiles: dict[str, Float32] = {}
        self._of_thread = _OfThread()

    def check(self, operand: StoredOperand | StoredBank) -> None:
        """Refuse an operand for whose encoding there is no kernel.

        Raises
        ------
        UnsupportedRefusal
            Naming operand and encoding, or blocks that its last columns share with padding.
        """
        if operand.encoding.name not in BLOCKS:
            raise UnsupportedRefusal(
                f"operand {operand.name}: no production kernel for {operand.encoding.name}; run "
                f"with --backend reference"
            )
        padded = operand.stored_columns is not None and operand.encoding.is_block
        if padded and operand.shape[-1] % WHOLE:
            raise UnsupportedRefusal(
                f"operand {operand.name}: {operand.shape[-1]} of {operand.stored_columns} stored "
                f"columns are no multiple of {WHOLE}, so no production kernel keeps the padding "
                f"out; run with --backend reference"
            )

    def bind(self, operand: StoredOperand) -> None:
        """Keep a matrix as mapped bytes, and a vector decoded.

        Raises
        ------
        UnsupportedRefusal
            If there is no kernel for its encoding.
        """
        self.check(operand)
        self.operands[operand.name] = operand
        if len(operand.shape) == 1:
            self.vectors[operand.name] = decoded(operand)

    @property
    def calls(self) -> Calls:
        """What the calls of this thread share."""
        return self._of_thread.calls

    def exchange(self, calls: Calls) -> Calls:
        """Have the calls of this thread share something else, and return what it was."""
        old, self._of_thread.calls = self._of_thread.calls, calls
        return old

    @property
    def memory(self) -> Workspace:
        """Memory for intermediate results, used again by the next block."""
        return self._of_thread.calls.memory

    def columns(self, name: str) -> Float32:
        """Return a small matrix ``[n, columns]`` decoded and turned, ``[columns, n]``."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = np.ascontiguousarray(self.matrix(name).T)
        return found

    def by_rows(self, name: str) -> StoredOperand:
        """Return a matrix of which a kernel reads rows by themselves.

        Raises
        ------
        UnsupportedRefusal
            If its rows are interleaved.
        """
        operand = self.operands[name]
        if operand.encoding.slab_rows > 1:
            raise UnsupportedRefusal(
                f"operand {name}: its kernel reads single rows, and {operand.encoding.name} "
                f"interleaves them; choose a profile that does not select it, or --backend "
                f"reference"
            )
        return operand

    def profiles(self, name: str) -> Float32:
        """Return a small matrix of distance profiles decoded, as attention reads them."""
        found = self._profiles.get(name)
        if found is None:
            found = self._profiles[name] = padded_profiles(self.matrix(name))
        return found

    def matrix(self, name: str) -> Float32:
        """Return a small matrix decoded, ``[rows, columns]``."""
        operand = self.operands[name]
        rows, columns = operand.shape
        stored = operand.data.reshape(rows, operand.encoding.row_bytes(columns))
        return np.asarray(decode(operand.encoding, stored, columns))

    def inputs(self, x: Float32) -> Vectors:
        """Return vectors to multiply with."""
        return Vectors(x, self.memory)

    def products(
        self, operands: Sequence[StoredOperand], x: Vectors, empty: Empty | None = None
    ) -> list[Float32]:
        """Multiply matrices with the same vectors, in one job for each policy that applies."""
        exact: list[Part] = []
        rounded: list[Part] = []
        made = []
        for operand in operands:
            rows, columns = operand.shape
            out = (empty or self.memory.take)((x.count, rows), np.float32)
            encoding = operand.encoding.name
            integers = self.activations == "q8" and takes_integers(encoding, columns)
            parts = rounded if integers else exact
            stored = operand.stored_columns
            parts.append(Part(operand.data, encoding, rows, columns, out, stored))
            made.append(out)
        if exact:
            products(exact, x.exact)
        if rounded:
            products_q8(rounded, x.rounded)
        return made

    def chosen(
        self,
        sides: Sequence[Alike],
        chosen: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        x: Vectors,
    ) -> list[Float32]:
        """Multiply chosen matrices of each side with one row of ``x`` each, ``[n, side's rows]``.

        What is chosen is here, or the calls are recorded and this is doubted.

        Raises
        ------
        ValueError
            If it is not, and nothing is recorded.
        """
        outs = [self.memory.take((len(chosen), side.rows)) for side in sides]
        for integers in (False, True):
            some = [
                (side, out)
                for side, out in zip(sides, outs, strict=True)
                if integers == (self.activations == "q8" and side.takes_integers)
            ]
            if some:
                missing = chosen_products(
                    [side for side, _ in some],
                    chosen,
                    rows,
                    x.apart if integers else x.exact,
                    [out for _, out in some],
                )
                if self.calls.doubts is not None:
                    self.calls.doubts.append(missing)
                elif missing.any():
                    raise ValueError("a chosen matrix is not here")
        return outs

    def linears(self, linears: Sequence[Linear], x: Vectors) -> list[Float32]:
        """Return projections of the same vectors, their biases added."""
        made = self.products([self.operands[linear.weight] for linear in linears], x)
        for linear, out in zip(linears, made, strict=True):
            if linear.bias is not None:
                add_row(out, self.vectors[linear.bias])
        return made

    def linear(self, linear: Linear, x: Float32) -> Float32:
        """Return one projection."""
        return self.linears([linear], self.inputs(x))[0]

    def norm(self, norm: Norm | None, x: Float32, empty: Empty | None = None) -> Float32:
        """Normalise rows of ``x``, ``[n, width]``, or equal parts of rows of the norm's width."""
        if norm is None:
            return x
        x = np.ascontiguousarray(x)
        out = (empty or self.memory.take)(x.shape, np.float32)
        weight = None if norm.weight is None else self.vectors[norm.weight]
        if norm.kind == "rms":
            rms_norm(x, weight, norm.offset, norm.eps, out)
        else:
            bias = None if norm.bias is None else self.vectors[norm.bias]
            layer_norm(x, weight, bias, norm.offset, norm.eps, out)
        return out


def decoded(operand: StoredOperand) -> Float32:
    """Return a vector as float32, exactly, without its padding."""
    stored = decode(operand.encoding, operand.data, operand.stored_columns or operand.shape[0])
    return np.ascontiguousarray(stored[: operand.shape[0]])
