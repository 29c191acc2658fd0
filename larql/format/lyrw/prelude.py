"""The first eight bytes of a LYRW file, and the generation that its version belongs to.

They are checked before anything else is read: at another version's stride the offsets of a table
still fall inside the file, and give the bytes of another expert.
"""

from __future__ import annotations

import struct

from larql.errors import ContainerError, GenerationError
from larql.format.generation import Generation
from larql.format.untrusted import refuse_pointer

__all__ = ["MAGIC", "PRELUDE_BYTES", "check_prelude", "generation_name", "lyrw_version"]

MAGIC = 0x4C595257
PRELUDE_BYTES = 8

_VERSIONS: dict[Generation, int] = {Generation.VINDEX2: 1, Generation.VINDEX3: 2}


def lyrw_version(generation: Generation) -> int:
    """Return the LYRW format version that a generation's containers hold."""
    return _VERSIONS[generation]


def generation_name(version: int) -> str | None:
    """Return the name of the generation that a LYRW format version belongs to.

    The version trails the generation by one, also for generations that this build does not have.
    Version 0 belongs to none.
    """
    for generation, number in _VERSIONS.items():
        if number == version:
            return generation.value
    return f"VINDEX{version + 1}" if version > 0 else None


def check_prelude(head: bytes, wanted: Generation, where: str) -> None:
    """Refuse a file that is not LYRW of the version that ``wanted`` holds.

    Parameters
    ----------
    head : bytes
        The first kilobyte of the file, or all of it.
    wanted : Generation
        Whose loader is asking.
    where : str
        The file, to start messages with.

    Raises
    ------
    ContainerError
        If the file is too short, is a Git LFS pointer, or has a foreign magic number.
    GenerationError
        If it belongs to another generation, by name.
    """
    refuse_pointer(head, where, ContainerError)
    if len(head) < PRELUDE_BYTES:
        raise ContainerError(
            f"{where}: {len(head)} bytes are too few for a LYRW file; it is cut short or is "
            "something else"
        )
    magic, version = struct.unpack_from("<II", head)
    if magic != MAGIC:
        expected = struct.pack("<I", MAGIC)
        swapped = head[:4] == expected[::-1]
        raise ContainerError(
            f"{where}: begins with bytes {head[:4].hex(' ')}, expected {expected.hex(' ')} of a "
            f"LYRW file; {'its numbers are big-endian' if swapped else 'it is something else'}"
        )
    if version == lyrw_version(wanted):
        return
    name = generation_name(version)
    if name is None:
        raise GenerationError(
            f"{where}: LYRW format version {version} belongs to no generation; expected "
            f"{lyrw_version(wanted)}"
        )
    raise GenerationError(
        f"{where}: LYRW format version {version} requires the {name} loader; this is the "
        f"{wanted.value} loader, which reads version {lyrw_version(wanted)}"
    )
