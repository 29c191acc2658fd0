"""Whether the regions of one operand are sound in a file of banks that is damaged.

An index vouches for files. Of an operand that was carried without a change it also holds the hash
of its bytes in the checkpoint, expert after expert, and these are the regions' bytes.
"""

from __future__ import annotations

import hashlib

from larql.errors import ContainerError, LarqlError
from larql.format.banks import EntryRegions
from larql.format.container import Container
from larql.format.index import Representation

__all__ = ["check_regions", "regions_stand"]

_EXACT = "source-exact"


def regions_stand(container: Container, value: Representation) -> bool | None:
    """Return whether an operand's regions have the bytes that were carried.

    Returns
    -------
    bool or None
        None where that cannot be told: the bytes were changed when they were carried, or not all
        of its entries are here.
    """
    if value.fidelity != _EXACT or value.stored_columns is not None:
        return None
    digest = hashlib.sha256()
    try:
        regions = container.entries(value)
        if None in regions.files:
            return None
        for entry in range(len(regions.files)):
            digest.update(regions.stored(entry).data)
    except LarqlError:
        return False
    return digest.hexdigest() == value.source.sha256


def check_regions(container: Container, value: Representation, regions: EntryRegions) -> None:
    """Refuse an operand of experts whose bytes are not those that the index vouches for.

    Of a file that is damaged elsewhere the rest serves, where its bytes are known by themselves.

    Parameters
    ----------
    container : Container
    value : Representation
    regions : EntryRegions
        Where they are.

    Raises
    ------
    ContainerError
        Naming the file.
    """
    try:
        for name in container.bank_names(value.segment):
            container.check_bytes(name)
    except ContainerError as error:
        if not regions_stand(container, value):
            place = regions.place
            raise ContainerError(f"layer {place.layer}, {place.role}: {error}") from None
