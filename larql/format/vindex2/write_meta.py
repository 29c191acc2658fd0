"""Writing ``down_meta.bin``: the tokens that the features of each layer write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path

from larql.errors import EncodingError
from larql.format.encoding import Encoding
from larql.format.safetensors_header import Header, HeaderEntry
from larql.format.segment import Segment, stored_shape
from larql.format.source.binding import Binding
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.recode import Recoding, stored_chunks
from larql.format.vindex2.down_meta import HEADER, MAGIC, VERSION, FeatureTokens, packed_records

__all__ = ["write_down_meta"]

_FEATURES = 256


def write_down_meta(
    checkpoint: Checkpoint,
    tokens: FeatureTokens,
    head: Path,
    dtype: Encoding,
    shape: tuple[int, int],
    downs: Sequence[Binding],
    num_layers: int,
    top_k: int,
) -> Iterator[bytes]:
    """Yield the bytes of the file, a block of features at a time.

    Parameters
    ----------
    checkpoint : Checkpoint
    tokens : FeatureTokens
    head : Path
        The matrix that turns the carrier into logits, rows of ``dtype``.
    dtype : Encoding
    shape : (int, int)
        ``[vocab, hidden]`` of it; rows behind pad the vocabulary.
    downs : sequence of Binding
        Down projections ``[hidden, features]`` of the layers that have dense features.
    num_layers, top_k : int

    Raises
    ------
    EncodingError
        If a feature's product with a row of the head is not finite.
    """
    import numpy as np

    from larql.format.codec import ENCODINGS

    yield HEADER.pack(MAGIC, VERSION, num_layers, top_k)
    entry = HeaderEntry(dtype.safetensors_dtype, stored_shape(dtype, shape), 0, dtype.nbytes(shape))
    tokens.begin(dtype, shape, Segment(head, Header({"": entry}, {}, 0)).bytes_of(""))
    top = min(top_k, shape[0])
    f32 = ENCODINGS["f32"]
    for down in downs:
        values = np.empty(prod(down.shape), np.float32)
        at = 0
        recoding = Recoding(f32, verbatim=down.source.encoding == f32)
        for chunk in stored_chunks(checkpoint, down, recoding):
            part = np.frombuffer(chunk, np.float32)
            values[at : at + len(part)] = part
            at += len(part)
        columns = values.reshape(down.shape)
        for first in range(0, down.shape[1], _FEATURES):
            block = np.ascontiguousarray(columns[:, first : first + _FEATURES].T)
            try:
                found, scores = tokens.of(block, top)
            except EncodingError as error:
                raise EncodingError(
                    f"{down.source.file}: tensor {down.source.name}: features from {first}: {error}"
                ) from None
            yield packed_records(found, scores, top_k)
