"""The closed vocabulary of operations, one file for each kind.

An operation is a frozen dataclass of numbers and operand names. It says which operands it reads
(``contracts``), what contradicts itself (``defects``), and a mixer also at which site of a layer it
stands (``site``), what it keeps between positions (``state``) and its numbers for a reader
(``words``, and ``brief``). Nothing here computes.
"""

from __future__ import annotations

from larql.format.operations.dense_ffn import DenseFfn
from larql.format.operations.gated_delta import GatedDelta
from larql.format.operations.kda import Kda
from larql.format.operations.latent_attention import LatentAttention
from larql.format.operations.per_layer_embedding import PerLayerEmbedding
from larql.format.operations.routed_ffn import RoutedFfn
from larql.format.operations.short_convolution import ShortConvolution
from larql.format.operations.softmax_attention import SoftmaxAttention
from larql.format.operations.ssm import Ssm

__all__ = ["Mixer"]

Mixer = (
    SoftmaxAttention
    | LatentAttention
    | DenseFfn
    | RoutedFfn
    | PerLayerEmbedding
    | GatedDelta
    | Kda
    | Ssm
    | ShortConvolution
)
