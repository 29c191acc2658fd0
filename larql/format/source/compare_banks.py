"""Proof that a container's experts are a checkpoint's: both ends are read and hashed again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from larql.errors import LarqlError
from larql.format.closure import Defect
from larql.format.container import Container
from larql.format.index import Representation
from larql.format.source.checkpoint import Checkpoint
from larql.format.source.extract_banks import bank_representation, entry_chunks
from larql.format.source.pieces import BankBinding
from larql.format.source.recode import Recoding

__all__ = ["compare_bank"]


def compare_bank(
    container: Container, checkpoint: Checkpoint, binding: BankBinding, stored: Representation
) -> Iterator[Defect]:
    """Yield what differs between the entries of one operand and the experts that fill it.

    Parameters
    ----------
    container : Container
    checkpoint : Checkpoint
    binding : BankBinding
        What the checkpoint compiles to.
    stored : Representation
        What the container says of it.
    """
    source = binding.encoding
    verbatim = stored.encoding == source
    recoding = Recoding(stored.encoding, verbatim, stored.requested, stored.stored_columns)
    meant = bank_representation(binding, recoding, stored.source.sha256)
    for what, found, expected in (
        ("shape", list(stored.shape), list(meant.shape)),
        ("fidelity", stored.fidelity, meant.fidelity),
        ("segment", stored.segment, meant.segment),
        ("regions", stored.tensor, meant.tensor),
        ("source tensor", stored.source.tensor, meant.source.tensor),
        ("source encoding", stored.source.encoding, meant.source.encoding),
    ):
        if found != expected:
            yield Defect(binding.operand, f"{what} is {found}, the source gives {expected}")
            return
    digest = hashlib.sha256()
    try:
        regions = container.entries(stored)
        for entry in range(binding.shape[0]):
            expected_bytes = _sha256(entry_chunks(checkpoint, binding, entry, recoding, digest))
            found_bytes = _sha256([regions.stored(entry)])
            if expected_bytes != found_bytes:
                name = binding.source.replace("{e}", str(entry))
                yield Defect(
                    stored.segment,
                    f"{binding.operand}, expert {entry}, differs from {name} in the source",
                )
    except LarqlError as error:
        yield Defect(stored.segment, str(error).removeprefix(f"{container.path}/"))
        return
    if digest.hexdigest() != stored.source.sha256:
        yield Defect(
            binding.operand,
            f"{binding.source} has sha256 {digest.hexdigest()}, the index recorded "
            f"{stored.source.sha256}",
        )


def _sha256(pieces: Iterable[object]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)  # type: ignore[arg-type]
    return digest.digest()
