"""Tensors that a model may do without: then on all layers that can use them, not on some."""

from __future__ import annotations

from collections.abc import Callable, Container

__all__ = ["OptionalTensors"]


class OptionalTensors:
    """Remembers of each optional part whether the layers judged so far have it.

    Parameters
    ----------
    tensors : container of str
        Names of the checkpoint's tensors.
    refuse : callable
        ``refuse(tensor, problem)``, which records what is wrong with a tensor.
    """

    def __init__(self, tensors: Container[str], refuse: Callable[[str, str], None]) -> None:
        self._tensors = tensors
        self._refuse = refuse
        self._first: dict[str, tuple[int, str, bool]] = {}

    def holds(self, part: str, layer: int, name: str) -> bool:
        """Return whether a layer has a tensor, which all layers that ask for its part have or none.

        Where this layer and one before differ, the tensor that is missing is recorded.

        Parameters
        ----------
        part : str
            What the tensor is on every layer that can use it.
        layer : int
        name : str
            The tensor.
        """
        found = name in self._tensors
        first, theirs, had = self._first.setdefault(part, (layer, name, found))
        if found != had:
            missing, having = (theirs, layer) if found else (name, first)
            self._refuse(
                missing,
                f" is missing, though layer {having} has one; all layers that can use it must, or "
                f"none",
            )
        return found
