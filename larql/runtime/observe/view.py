"""An observed run as NumPy arrays, from its events: of a run just made, or of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from larql.runtime.observe.events import CarrierWrite, End, Event, PositionDone, Readout
from larql.runtime.observe.record import Receipt, RecordReader
from larql.runtime.observe.sites import WriteSite

__all__ = ["LensView", "RunView", "read_record", "view_of"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LensView:
    """Readouts of the lens: P positions, S sites, m declared tokens, k likeliest ones.

    Where there is no readout, numbers are NaN and tokens and ranks -1.

    Attributes
    ----------
    sites : tuple of WriteSite
        The S sites that were read, in execution order.
    tokens : int64 ``[m]``
        The declared tokens.
    log_probabilities : float64 ``[P, S, m]``
        Of the declared tokens, natural logarithm.
    ranks : int64 ``[P, S, m]``
        Of the declared tokens; 1 is the likeliest.
    top_tokens : int64 ``[P, S, k]``
        The likeliest tokens, likeliest first.
    top_log_probabilities : float64 ``[P, S, k]``
    """

    sites: tuple[WriteSite, ...]
    tokens: Int64
    log_probabilities: Float64
    ranks: Int64
    top_tokens: Int64
    top_log_probabilities: Float64


@dataclass(frozen=True, eq=False)
class RunView:
    """An observed run: P positions, W writes.

    Attributes
    ----------
    header : mapping
        Everything the run is a function of.
    receipt : Receipt or None
        None for a record that was cut short.
    sites : tuple of WriteSite
        Of the W writes; the first is the embedding.
    tokens : int64 ``[P]``
        The token of each position.
    carrier_norms, delta_norms : float64 ``[P, W]``
        Euclidean norms of the carrier after a write, and of what the write added to it. No unit:
        they are in the units of the model's hidden states. NaN where they were not finite.
    projections : float64 ``[P, W, dims]``
        The carrier after a write on the basis of the run; ``dims`` is 0 without one.
    lens : LensView or None
        None where no lens was armed.
    end : End or None
        Generated and likeliest tokens; None for a record that was cut short.
    events : tuple of Event
        All events, in order.
    """

    header: Mapping[str, Any]
    receipt: Receipt | None
    sites: tuple[WriteSite, ...]
    tokens: Int64
    carrier_norms: Float64
    delta_norms: Float64
    projections: Float64
    lens: LensView | None
    end: End | None
    events: tuple[Event, ...]

    def text(self, token: int) -> str:
        """Return how a token is displayed, or its number where the record does not say."""
        texts = {} if self.end is None else self.end.texts
        return texts.get(str(token), str(token))


def sites_of(header: Mapping[str, Any]) -> tuple[WriteSite, ...]:
    """Return the sites that a header lists."""
    return tuple(WriteSite(layer, site) for layer, site in header["sites"])


def view_of(header: Mapping[str, Any], receipt: Receipt | None, events: Iterable[Event]) -> RunView:
    """Arrange events in arrays; positions that were run again appear again."""
    told = tuple(events)
    done = [event for event in told if isinstance(event, PositionDone)]
    sites = sites_of(header)
    basis = header["identity"]["observed"]["basis"]
    dims = 0 if basis is None else int(basis["dims"])
    shape = (len(done), len(sites))
    carriers, deltas = np.full(shape, np.nan), np.full(shape, np.nan)
    projections = np.full((*shape, dims), np.nan)
    readouts: list[dict[int, Mapping[str, Any]]] = [{} for _ in done]
    row = 0
    for event in told:
        if isinstance(event, PositionDone):
            row += 1
        elif row == len(done):
            continue  # the beginning of a position that was cut off
        elif isinstance(event, CarrierWrite):
            carriers[row, event.write] = _float(event.carrier)
            deltas[row, event.write] = _float(event.delta)
            projections[row, event.write] = [_float(v) for v in event.projection]
        elif isinstance(event, Readout) and event.reader == "lens":
            readouts[row][event.write] = event.values
    tokens = [-1 if event.token is None else event.token for event in done]
    ends = [event for event in told if isinstance(event, End)]
    declared = header["identity"]["observed"]["readers"].get("lens")
    return RunView(
        header,
        receipt,
        sites,
        np.array(tokens, np.int64),
        carriers,
        deltas,
        projections,
        None if declared is None else _lens(declared, sites, readouts),
        ends[-1] if ends else None,
        told,
    )


def read_record(path: Path | str) -> RunView:
    """Read a run record, and check it.

    Parameters
    ----------
    path : Path or str

    Returns
    -------
    RunView

    Raises
    ------
    RecordError
        If the file is no run record.
    CheckFailed
        If the record was changed, or has no receipt because its run was killed.
    """
    reader = RecordReader(Path(path))
    events = tuple(reader.events())
    reader.require_sound()
    return view_of(reader.header, reader.receipt, events)


def _float(value: float | None) -> float:
    return np.nan if value is None else value


def _lens(
    declared: Mapping[str, Any],
    sites: Sequence[WriteSite],
    readouts: Sequence[Mapping[int, Mapping[str, Any]]],
) -> LensView:
    layers = set(declared["layers"])
    last = {site.layer: w for w, site in enumerate(sites)}
    armed = [
        w
        for w, site in enumerate(sites)
        if site.layer in layers
        and (last[site.layer] == w or (declared["attention"] and site.site == "attention"))
    ]
    count, shape = len(declared["tokens"]), (len(readouts), len(armed))
    log_probabilities = np.full((*shape, count), np.nan)
    ranks = np.full((*shape, count), -1, np.int64)
    top_tokens = np.full((*shape, declared["top"]), -1, np.int64)
    top = np.full((*shape, declared["top"]), np.nan)
    for row, found in enumerate(readouts):
        for s, w in enumerate(armed):
            values = found.get(w)
            if values is None:
                continue
            if count:
                log_probabilities[row, s] = values["log_probabilities"]
                ranks[row, s] = values["ranks"]
            entries = values["top"]
            top_tokens[row, s, : len(entries)] = [entry[0] for entry in entries]
            top[row, s, : len(entries)] = [entry[2] for entry in entries]
    return LensView(
        tuple(sites[w] for w in armed),
        np.array(declared["tokens"], np.int64),
        log_probabilities,
        ranks,
        top_tokens,
        top,
    )
