"""The arithmetic of each encoding, block by block.

A decoder takes stored blocks ``uint8 [n, block_bytes]`` and fills ``float32 [n, block_elements]``;
an encoder does the reverse. Both arrays are C-contiguous, and no block looks at another, so results
do not depend on how callers cut rows into batches. Layouts and the order of float32 operations are
those of ggml's reference routines (``dequantize_row_*`` and ``quantize_row_*_ref``).

Private: use :mod:`larql.format.codec`.
"""
