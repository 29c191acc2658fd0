"""The tokens that features write, as ``down_meta.bin`` of a VINDEX2 directory records them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from larql.format.slicing.presets import DOWN_META
from larql.format.vindex2.container import Vindex2
from larql.runtime.walk.answer import BankFeatures

__all__ = ["recorded_tokens"]


def recorded_tokens(
    directory: Vindex2, banks: Sequence[BankFeatures], count: int
) -> tuple[list[BankFeatures], list[str]]:
    """Add the tokens that features write, at most ``count`` and at most what is recorded.

    Returns
    -------
    list of BankFeatures
    list of str
        What the user should know.

    Raises
    ------
    ContainerError, UnsupportedRefusal
        If the records are damaged or newer than this build.
    """
    if DOWN_META not in directory.listed:
        return list(banks), [f"{DOWN_META} is not here, so features have no tokens"]
    records = directory.down_meta
    told = [
        replace(
            bank,
            hits=tuple(
                replace(hit, tokens=tuple(islice(records.tokens(bank.layer, hit.feature), count)))
                for hit in bank.hits
            ),
        )
        for bank in banks
    ]
    notes = []
    if count > records.top_k:
        notes.append(f"{DOWN_META} records {records.top_k} tokens of each feature")
    return told, notes
