"""Geometry of stored encodings: how many bytes a row takes, and what cannot be read at all.

This module knows sizes and names only; the arithmetic is in :mod:`larql.format.codec`. It does not
import NumPy, so commands that only look at metadata start quickly.

Block sizes and type codes are those of GGUF (ggml's ``ggml_type`` enumeration). Packed encodings,
which interleave the blocks of 16 rows, have no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from larql.errors import EncodingError, UnsupportedRefusal

__all__ = [
    "ENCODINGS",
    "SLAB_ROWS",
    "Encoding",
    "encodable_names",
    "encoding",
    "from_ggml_type",
    "packed_form",
]

SLAB_ROWS = 16
"""Rows of a slab of a packed encoding: as many as a vector of 512 bits has words."""


@dataclass(frozen=True)
class Encoding:
    """One way of storing the elements of a tensor.

    A row is cut into blocks of ``block_elements`` consecutive elements, each stored in
    ``block_bytes`` bytes; blocks never span rows. Plain floats are blocks of one element.

    Attributes
    ----------
    name : str
        Lower-case name, as written in an index (``"q4_k"``).
    block_elements, block_bytes : int
        Elements in a block, and bytes that it is stored in.
    ggml_type : int or None
        Code in GGUF files, None for an encoding that GGUF does not have.
    safetensors_dtype : str
        Dtype of the stored bytes in a safetensors file: the float's own, ``"U8"`` for blocks.
    can_encode : bool
        Whether this build encodes numbers so; every listed encoding can be read.
    slab_rows : int
        Rows whose blocks are interleaved, so that only a whole slab of them can be cut out of the
        stored bytes; 1 where every row stands alone.
    unpacked : str or None
        Name of the encoding whose blocks a packed encoding interleaves, None where rows stand
        alone.
    """

    name: str
    block_elements: int
    block_bytes: int
    ggml_type: int | None
    safetensors_dtype: str
    can_encode: bool
    slab_rows: int = 1
    unpacked: str | None = None

    @property
    def is_block(self) -> bool:
        """Whether elements share a block, so that one alone cannot be addressed."""
        return self.block_elements > 1

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each element, scales included."""
        return 8 * self.block_bytes / self.block_elements

    def row_bytes(self, columns: int) -> int:
        """Return the stored bytes of one row, or of a packed encoding its share of the slab.

        Parameters
        ----------
        columns : int
            Elements of the row.

        Returns
        -------
        int
            ``columns / block_elements * block_bytes``.

        Raises
        ------
        EncodingError
            If ``columns`` is negative or not a whole number of blocks. Rows are never padded.
        """
        if columns < 0:
            raise EncodingError(
                f"{self.name}: {columns} columns, expected zero or more; check the shape"
            )
        blocks, rest = divmod(columns, self.block_elements)
        if rest:
            raise EncodingError(
                f"{self.name}: {columns} columns are not a multiple of its block of "
                f"{self.block_elements} elements; use an encoding with a block that divides "
                f"{columns}, or a float"
            )
        return blocks * self.block_bytes

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the stored bytes of a tensor.

        Parameters
        ----------
        shape : tuple of int
            Row-major, outermost first; the last axis is contiguous and holds the blocks. ``()`` is
            one element.

        Returns
        -------
        int
            Bytes of all rows, without gaps.

        Raises
        ------
        EncodingError
            If an axis is negative, the last axis is not a whole number of blocks, or the rows of a
            packed encoding are not a whole number of slabs.
        """
        columns = shape[-1] if shape else 1
        if any(axis < 0 for axis in shape):
            raise EncodingError(
                f"{self.name}: shape {list(shape)} has a negative axis; check the shape"
            )
        rows = shape[-2] if len(shape) > 1 else 1
        if rows % self.slab_rows:
            raise EncodingError(
                f"{self.name}: {rows} rows are not a multiple of its slab of {self.slab_rows} "
                f"rows; use {self.unpacked}"
            )
        return prod(shape[:-1]) * self.row_bytes(columns)


def _packed(rows: Encoding) -> Encoding:
    return replace(
        rows,
        name=f"{rows.name}_r{SLAB_ROWS}",
        ggml_type=None,
        can_encode=False,
        slab_rows=SLAB_ROWS,
        unpacked=rows.name,
    )


def _table(*rows: Encoding, packed: tuple[str, ...]) -> Mapping[str, Encoding]:
    table = {row.name: row for row in rows}
    forms = [_packed(table[name]) for name in packed]
    return MappingProxyType(table | {form.name: form for form in forms})


ENCODINGS: Mapping[str, Encoding] = _table(
    Encoding("f32", 1, 4, 0, "F32", True),
    Encoding("f16", 1, 2, 1, "F16", True),
    Encoding("bf16", 1, 2, 30, "BF16", True),
    Encoding("q8_0", 32, 34, 8, "U8", True),
    Encoding("q4_0", 32, 18, 2, "U8", True),
    Encoding("q4_1", 32, 20, 3, "U8", True),
    Encoding("q5_0", 32, 22, 6, "U8", True),
    Encoding("q5_1", 32, 24, 7, "U8", True),
    Encoding("q2_k", 256, 84, 10, "U8", False),
    Encoding("q3_k", 256, 110, 11, "U8", False),
    Encoding("q4_k", 256, 144, 12, "U8", True),
    Encoding("q5_k", 256, 176, 13, "U8", True),
    Encoding("q6_k", 256, 210, 14, "U8", True),
    Encoding("iq4_nl", 32, 18, 20, "U8", False),
    Encoding("iq4_xs", 256, 136, 23, "U8", False),
    Encoding("mxfp4", 32, 17, 39, "U8", True),
    packed=("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"),
)
"""Every encoding that this build reads, by name."""

_BY_GGML_TYPE: Mapping[int, Encoding] = MappingProxyType(
    {enc.ggml_type: enc for enc in ENCODINGS.values() if enc.ggml_type is not None}
)

_PACKED_FORMS: Mapping[str, Encoding] = MappingProxyType(
    {enc.unpacked: enc for enc in ENCODINGS.values() if enc.unpacked is not None}
)

_GGML_NAMES: tuple[str, ...] = (
    *("F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1"),  # 0
    *("Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"),  # 8
    *("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"),  # 16
    *("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4"),  # 24
    *("Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8"),  # 32
    *("IQ4_NL_8_8", "MXFP4", "NVFP4", "Q1_0", "Q2_0"),  # 38
)
"""Names of ggml's type codes, by position."""

_GGML_REMOVED: frozenset[int] = frozenset({4, 5, 31, 32, 33, 36, 37, 38})
"""Codes that ggml itself has withdrawn from GGUF files."""


def encodable_names() -> tuple[str, ...]:
    """Return the names of the encodings that this build can encode numbers in, in table order."""
    return tuple(enc.name for enc in ENCODINGS.values() if enc.can_encode)


def packed_form(rows: Encoding) -> Encoding | None:
    """Return the packed encoding that interleaves rows of ``rows``, None where there is none."""
    return _PACKED_FORMS.get(rows.name)


def encoding(name: str) -> Encoding:
    """Look an encoding up by its name.

    Parameters
    ----------
    name : str
        Lower-case name, such as ``"q8_0"``.

    Returns
    -------
    Encoding
        The table entry.

    Raises
    ------
    EncodingError
        If no encoding of this build has that name.
    """
    found = ENCODINGS.get(name)
    if found is None:
        raise EncodingError(
            f"encoding {name!r} is not known to this build; expected one of {', '.join(ENCODINGS)}"
        )
    return found


def from_ggml_type(code: int, where: str) -> Encoding:
    """Look an encoding up by the type code of a GGUF tensor.

    Parameters
    ----------
    code : int
        ``ggml_type`` of the tensor.
    where : str
        File and tensor, to start the message with.

    Returns
    -------
    Encoding
        The table entry.

    Raises
    ------
    UnsupportedRefusal
        If this build has no decoder for the code. A code that ggml names is refused by that name,
        any other by its number.
    """
    found = _BY_GGML_TYPE.get(code)
    if found is not None:
        return found
    if not 0 <= code < len(_GGML_NAMES):
        raise UnsupportedRefusal(
            f"{where}: ggml type {code} is not known to this build, expected 0 to "
            f"{len(_GGML_NAMES) - 1}; check the file, or convert it with an encoding known here"
        )
    name = _GGML_NAMES[code]
    if code in _GGML_REMOVED:
        raise UnsupportedRefusal(
            f"{where}: encoding {name} (ggml type {code}) was removed from the GGUF format; "
            "convert the original checkpoint again"
        )
    known = (enc.name for enc in _BY_GGML_TYPE.values())
    raise UnsupportedRefusal(
        f"{where}: encoding {name} (ggml type {code}) has no decoder in this build, expected one "
        f"of {', '.join(known).upper()}; get or make a file in one of these"
    )
