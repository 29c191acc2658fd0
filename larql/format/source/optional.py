"""Tensors that a model may do without: then on all layers that can use them, not on some."""

from __future__ import annotations

from collections.abc import Container

from larql.errors import CompileError

__all__ = ["OptionalTensors"]


class OptionalTensors:
    """Remembers of each optional part whether the layers judged so far have it.

    Parameters
    ----------
    tensors : container of str
        Names of the checkpoint's tensors.
    where : str
        The checkpoint, for error texts.
    """

    def __init__(self, tensors: Container[str], where: str) -> None:
        self._tensors = tensors
        self._where = where
        self._first: dict[str, tuple[int, str, bool]] = {}

    def holds(self, part: str, layer: int, name: str) -> bool:
        """Return whether a layer has a tensor, which all layers that ask for its part have or none.

        Parameters
        ----------
        part : str
            What the tensor is on every layer that can use it.
        layer : int
        name : str
            The tensor.

        Raises
        ------
        CompileError
            Naming the tensor that is missing, if this layer and one before differ.
        """
        found = name in self._tensors
        first, theirs, had = self._first.setdefault(part, (layer, name, found))
        if found != had:
            missing, having = (theirs, layer) if found else (name, first)
            raise CompileError(
                f"{self._where}: tensor {missing} is missing, though layer {having} has one; "
                f"all layers that can use it must, or none"
            )
        return found
