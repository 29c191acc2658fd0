"""Tags of LYRW files: what a region is for, how it is encoded and how it is packed.

A tag that this build does not know is kept as its number, because the file may be sound and newer;
only an operation that needs the tag is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from larql.errors import EncodingError
from larql.format.encoding import ENCODINGS, Encoding

__all__ = [
    "UNPAIRED",
    "BankKind",
    "Browse",
    "Format",
    "Layout",
    "Packing",
    "Role",
    "encoding_of",
    "format_code",
    "format_text",
    "packing_of",
    "packing_text",
    "role_text",
    "row_bytes",
    "scales_per_row",
]

UNPAIRED = 0xFFFF
"""``pair_id`` of a region that belongs to no pair."""

PRIVATE_FORMATS = 0x8000
"""Added to ggml's type code where an encoding has no code of its own."""


class Role(IntEnum):
    """What a region is for in its entry."""

    GATE = 0
    UP = 1
    GATE_UP_FUSED = 2
    DOWN = 3
    BIAS = 4
    SCALES = 5
    LATENT_IN = 6
    LATENT_OUT = 7


class Format(IntEnum):
    """Public codes of encodings."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_K = 4
    Q6_K = 5
    Q8_0 = 6
    FP4 = 7
    MXFP4 = 8
    NVFP4 = 9
    MXFP8 = 10


class Packing(IntEnum):
    """How the elements of a region lie in its bytes."""

    ROW_MAJOR = 0
    BLOCKS_INLINE = 1
    BLOCK_VALUES = 2
    BLOCK_SCALES = 3


class BankKind(IntEnum):
    """How the entries of a bank are used."""

    DENSE = 0
    ROUTED = 1
    SHARED = 2


class Browse(IntEnum):
    """Whether a bank's rows can be searched where they lie."""

    NONE = 0
    DIRECT = 1
    STRIDED = 2


class Layout(IntEnum):
    """How gate and up lie in a fused region; stated by index schema 4 only."""

    UNSPECIFIED = 0
    CONTIGUOUS_HALVES = 1
    INTERLEAVED = 2


_PUBLIC = {code.name.lower(): int(code) for code in Format}
_CODES: Mapping[str, int] = MappingProxyType(
    {
        enc.name: _PUBLIC.get(enc.name, PRIVATE_FORMATS + enc.ggml_type)
        for enc in ENCODINGS.values()
        if enc.ggml_type is not None
    }
)
_ENCODINGS: Mapping[int, Encoding] = MappingProxyType(
    {code: ENCODINGS[name] for name, code in _CODES.items()}
)
_MXFP4_BLOCK = ENCODINGS["mxfp4"].block_elements


def format_code(encoding: Encoding) -> int:
    """Return the code of an encoding: the public one, else the private one.

    Raises
    ------
    EncodingError
        If the encoding has neither.
    """
    code = _CODES.get(encoding.name)
    if code is None:
        raise EncodingError(
            f"encoding {encoding.name} has no code in LYRW files; expected one of "
            f"{', '.join(_CODES)}"
        )
    return code


def encoding_of(code: int) -> Encoding | None:
    """Return the encoding of a format code, None if this build has no codec for it."""
    return _ENCODINGS.get(code)


def packing_of(encoding: Encoding) -> Packing:
    """Return the packing under which a whole tensor in ``encoding`` is written."""
    return Packing.BLOCKS_INLINE if encoding.is_block else Packing.ROW_MAJOR


def row_bytes(code: int, packing: int, columns: int) -> int | None:
    """Return the stored bytes of one row of a region.

    Parameters
    ----------
    code, packing : int
        Format and packing of the region.
    columns : int
        Its columns: elements, or scales where it holds the scales of blocks.

    Returns
    -------
    int or None
        Bytes; None where this build does not know how the two tags are stored together.

    Raises
    ------
    EncodingError
        If ``columns`` is not a whole number of blocks.
    """
    if code == Format.MXFP4 and packing == Packing.BLOCK_VALUES:
        if columns % _MXFP4_BLOCK:
            raise EncodingError(
                f"mxfp4 values: {columns} columns are not a multiple of the block of "
                f"{_MXFP4_BLOCK} elements that share a scale"
            )
        return columns // 2
    if code == Format.MXFP4 and packing == Packing.BLOCK_SCALES:
        return columns
    encoding = encoding_of(code)
    if encoding is None or packing not in (Packing.ROW_MAJOR, packing_of(encoding)):
        return None
    return encoding.row_bytes(columns)


def scales_per_row(code: int, columns: int) -> int | None:
    """Return the scales that a row of ``columns`` block values needs, None where not known."""
    return columns // _MXFP4_BLOCK if code == Format.MXFP4 else None


def role_text(role: int) -> str:
    """Return a role for a message: its name, or its number where it is not known."""
    return _text(Role, role, "role")


def format_text(code: int) -> str:
    """Return a format for a message: its name, or its number where it is not known."""
    encoding = encoding_of(code)
    return encoding.name if encoding is not None else _text(Format, code, "format")


def packing_text(packing: int) -> str:
    """Return a packing for a message: its name, or its number where it is not known."""
    return _text(Packing, packing, "packing")


def _text(names: type[IntEnum], code: int, what: str) -> str:
    known = {int(member): member.name.lower() for member in names}
    return known.get(code, f"unknown {what} {code}")
