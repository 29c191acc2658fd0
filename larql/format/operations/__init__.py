"""The closed vocabulary of operations, one file for each kind.

An operation is a frozen dataclass of numbers and operand names. It says which operands it reads
(``contracts``), what contradicts itself (``defects``), and a mixer also at which site of a layer it
stands (``site``), what it keeps between positions (``state``) and its numbers for a reader
(``words``, and ``brief``). Nothing here computes.
"""

from __future__ import annotations

from larql.format.operations.dense_ffn import DenseFfn
from larql.format.operations.per_layer_embedding import PerLayerEmbedding
from larql.format.operations.routed_ffn import RoutedFfn
from larql.format.operations.softmax_attention import SoftmaxAttention

__all__ = ["Mixer"]

Mixer = SoftmaxAttention | DenseFfn | RoutedFfn | PerLayerEmbedding
