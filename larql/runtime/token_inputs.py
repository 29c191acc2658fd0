"""What a run of tokens gives to layers beside the carrier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["LayerInputs", "TokenInputs"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """What T tokens give to one layer.

    Attributes
    ----------
    embedded : float32 ``[T, hidden]``
        What their embeddings put into the carrier.
    rows : float32 ``[T, width]``
        The layer's part of their rows in the component's table, scaled.
    """

    embedded: Float32
    rows: Float32


@dataclass(frozen=True, eq=False)
class TokenInputs:
    """What T tokens give to every layer.

    Attributes
    ----------
    embedded : float32 ``[T, hidden]``
    rows : float32 ``[layers, T, width]``
    """

    embedded: Float32
    rows: Float32

    def of_layer(self, layer: int) -> LayerInputs:
        """Return what they give to a layer."""
        return LayerInputs(self.embedded, self.rows[layer])

    def put(self, other: TokenInputs) -> None:
        """Take the numbers of other tokens, as many as these, in the same memory."""
        np.copyto(self.embedded, other.embedded)
        np.copyto(self.rows, other.rows)
