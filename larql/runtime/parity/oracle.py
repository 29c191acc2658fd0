"""The independent leg: one layer over dequantised weights, in reference arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from larql.format.codec import decode
from larql.format.encoding import ENCODINGS
from larql.format.graph import ExpertBank
from larql.runtime.backends.reference.backend import ReferenceBackend
from larql.runtime.backends.reference.experts import Experts
from larql.runtime.observe.sites import write_sites
from larql.runtime.operands import StoredBank, StoredOperand
from larql.runtime.parity.arms import Arm, Pair, rounding_of
from larql.runtime.parity.blocks import CARRIER
from larql.runtime.parity.recorder import Recorder, Seen
from larql.runtime.parity.verdict import (
    Checkpoint,
    Tolerance,
    Verdict,
    compare_rows,
    weakest,
)
from larql.runtime.prepared import PreparedOperands, prepare
from larql.runtime.session import Session
from larql.runtime.slices import LayerRange

__all__ = ["OracleLeg", "compare_with_oracle", "prepare_oracle"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class OracleLeg:
    """One arm's layer against the oracle of its own container, on identical input.

    Attributes
    ----------
    arm : str
    layer : int
    tolerance : Tolerance
    verdict : Verdict
    checkpoints : tuple of Checkpoint
        The carrier after each write of the layer.
    """

    arm: str
    layer: int
    tolerance: Tolerance
    verdict: Verdict
    checkpoints: tuple[Checkpoint, ...]


@dataclass(frozen=True)
class _DequantisedBank(StoredBank):
    """A bank whose entries are float32 when they are asked for."""

    def entry(self, expert: int) -> StoredOperand:
        """Return one expert's matrix or vector, decoded."""
        return _dequantised(super().entry(expert))


class _Dequantised(ReferenceBackend):
    """Reference arithmetic over weights that were decoded as a whole before."""

    def bind(self, operand: StoredOperand) -> None:
        """Keep the operand's values."""
        super().bind(_dequantised(operand))

    def bind_experts(self, bank: ExpertBank, operands: Mapping[str, StoredBank]) -> Experts:
        """Bind operands that decode an expert as a whole when it is chosen."""
        decoded = {name: _DequantisedBank(**vars(operand)) for name, operand in operands.items()}
        return super().bind_experts(bank, decoded)


def _dequantised(operand: StoredOperand) -> StoredOperand:
    columns = operand.stored_columns or operand.shape[-1]
    stored = operand.data.reshape(-1, operand.row_bytes)
    whole = decode(operand.encoding, stored, columns)[:, : operand.shape[-1]]
    values = np.ascontiguousarray(whole, dtype="<f4")
    return StoredOperand(
        operand.name, ENCODINGS["f32"], operand.shape, values.view(np.uint8).reshape(-1)
    )


def prepare_oracle(arm: Arm, layer: int) -> PreparedOperands:
    """Prepare one layer of an arm's container over dequantised weights.

    Raises
    ------
    UsageError
        If there is no such layer, or it needs more than the hidden states that enter it.
    Refusal
        If an operand is missing or contradictory.
    """
    plan = arm.run.prepared.plan
    wanted = LayerRange(layer, layer + 1)
    return prepare(
        arm.run.container,
        plan.component.id,
        wanted,
        _Dequantised("f32"),
        selection=arm.run.prepared.selection,
        experts=arm.run.options.experts,
    )


def compare_with_oracle(
    pair: Pair,
    oracles: Mapping[str, PreparedOperands],
    layer: int,
    seen: Mapping[str, Seen],
    context: int,
) -> tuple[OracleLeg, ...]:
    """Compare a layer of both arms with its oracle.

    Parameters
    ----------
    pair : Pair
    oracles : mapping
        By name of the arm, of :func:`prepare_oracle`.
    layer : int
    seen : mapping
        By name of the arm: what it computed with every block reading the baseline's carriers.
    context : int
        The room that the arms' sessions have.

    Returns
    -------
    tuple of OracleLeg
        The baseline's, then that of the examined arm.
    """
    sites = write_sites(pair.baseline.run.prepared.plan)
    writes = [w for w, site in enumerate(sites) if site.layer == layer]
    entering = writes[0] - 1
    locked = seen["baseline"].carriers[[entering, *writes]]
    legs = []
    for arm in (pair.baseline, pair.examined):
        made = _layer_of(arm, oracles[arm.name], locked, context)
        tolerance = rounding_of(arm.numerics, ("reference", "f32", "f32"))
        found = tuple(
            compare_rows(
                str(sites[w]), CARRIER, made.carriers[n], seen[arm.name].carriers[w], tolerance
            )
            for n, w in enumerate(writes, start=1)
        )
        verdict = weakest(c.verdict for c in found)
        assert verdict is not None
        legs.append(OracleLeg(arm.name, layer, tolerance, verdict, found))
    return tuple(legs)


def _layer_of(arm: Arm, oracle: PreparedOperands, locked: Float32, context: int) -> Seen:
    count = locked.shape[1]
    recorder = Recorder(count, locked)
    session = Session(oracle, context, count, recorder)
    with arm.asked():
        session.advance_hidden(locked[0])
    return recorder.seen()
