"""The logit lens: what the model's own head says of the carrier in the middle of the layers.

The carrier after a write goes through the run's final norm and head, multiplier and softcap
included, by the one path that logits take. So the lens at the last layer is the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from larql.errors import UsageError
from larql.runtime.head import read_out
from larql.runtime.observe.readers import ArmedRows
from larql.runtime.observe.sites import WriteSite
from larql.runtime.plan import Plan, check_tokens
from larql.runtime.prepared import PreparedOperands
from larql.runtime.readout import HeadReadout

__all__ = ["Lens", "lens_layers"]


def lens_layers(text: str, plan: Plan, name: str = "layers") -> tuple[int, ...]:
    """Return the layers that ``all``, ``none``, ``every:K`` or a list like ``0,5,11`` names.

    ``every:K`` is every K-th executed layer, counted so that the last one is among them.

    Raises
    ------
    UsageError
        If it is none of these, or names a layer that is not executed; ``name``, the option or
        argument, begins the message.
    """
    executed = plan.executed_layers
    if text in ("all", "none"):
        return executed if text == "all" else ()
    kind, colon, step = text.partition(":")
    if kind == "every" and colon and _is_count(step) and int(step) > 0:
        return tuple(reversed(executed[:: -int(step)]))
    wanted = text.split(",")
    if not all(map(_is_count, wanted)):
        raise UsageError(
            f"{name}: {text!r:.60} names no layers; write all, none, every:K, or a list like 0,5,11"
        )
    missing = [layer for layer in map(int, wanted) if layer not in executed]
    if missing:
        raise UsageError(
            f"{name}: layer {missing[0]} is not executed; the run has layers {executed[0]} "
            f"to {executed[-1]}"
        )
    return tuple(sorted(set(map(int, wanted))))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6 and text == str(int(text))


class Lens:
    """Reads carriers through the head of the run that they come from.

    Parameters
    ----------
    prepared : PreparedOperands
        Of a run that ends with logits.
    layers : iterable of int
        Layers whose output is read: the carrier after their last block.
    attention : bool
        Read the carrier after attention too.
    tokens : sequence of int
        Tokens whose log-probability and rank are read.
    top : int
        How many of the likeliest tokens are read, at least 1.

    Raises
    ------
    UsageError
        If a token is outside the vocabulary, ``top`` is not positive, or the run has no head.
    """

    name = "lens"

    def __init__(
        self,
        prepared: PreparedOperands,
        layers: Iterable[int],
        *,
        attention: bool = False,
        tokens: Sequence[int] = (),
        top: int = 5,
    ) -> None:
        plan = prepared.plan
        check_tokens(tokens, plan.component.vocab_size, "tokens")
        if top < 1:
            raise UsageError(f"top {top}: expected at least 1")
        if not plan.has_head:
            raise UsageError("a layer range ends with hidden states; a lens needs a head")
        self.layers = tuple(layers)
        self.attention = attention
        self.tokens = tuple(map(int, tokens))
        self.top = min(top, plan.component.vocab_size)
        self._prepared = prepared
        self._ids = np.array(self.tokens, np.int64)
        wanted = set(self.layers)
        # The output of a layer is what its last block leaves, whatever that block is.
        self._armed = {
            WriteSite(layer.index, block.site)
            for layer in plan.layers
            if layer.index in wanted
            for number, block in enumerate(layer.blocks, start=1)
            if number == len(layer.blocks) or (attention and block.site == "attention")
        }
        self._passes = 0
        self._rows = 0
        self._failure: dict[str, object] | None = None

    def declaration(self) -> Mapping[str, object]:
        """Return layers, sites, tokens and number of top tokens."""
        return {
            "layers": list(self.layers),
            "attention": self.attention,
            "tokens": list(self.tokens),
            "top": self.top,
        }

    def arms(self, site: WriteSite) -> bool:
        """Return whether a site is read."""
        return site in self._armed

    def read(self, rows: ArmedRows) -> Sequence[Mapping[str, object] | None]:
        """Stream the head once for all rows."""
        self._passes += 1
        self._rows += len(rows.carriers)
        prepared = self._prepared
        try:
            found = read_out(prepared.plan, prepared.backend, rows.carriers, self._ids, self.top)
        # A lens looks on: whatever keeps it from reading must not end the run it looks at.
        except Exception as error:  # noqa: BLE001
            self._failed(rows, 0, f"{type(error).__name__}: {error}")
            return [None] * len(rows.carriers)
        return [self._values(rows, i, found) for i in range(len(rows.carriers))]

    def receipt(self) -> Mapping[str, object]:
        """Return passes through the head, rows read in them, and the first failure."""
        return {"head_passes": self._passes, "rows": self._rows, "failure": self._failure}

    def _values(self, rows: ArmedRows, i: int, found: HeadReadout) -> Mapping[str, object] | None:
        if found.broken[i]:
            self._failed(rows, i, f"{int(found.broken[i])} of the logits are not finite")
            return None
        top = zip(
            found.top_tokens[i].tolist(), found.top_logits[i].tolist(),
            found.top_log_probabilities[i].tolist(), strict=True,
        )  # fmt: skip
        values: dict[str, object] = {"top": [list(entry) for entry in top]}
        if self.tokens:
            values |= {
                "logits": found.logits[i].tolist(),
                "log_probabilities": found.log_probabilities[i].tolist(),
                "ranks": found.ranks[i].tolist(),
            }
        return values

    def _failed(self, rows: ArmedRows, i: int, reason: str) -> None:
        if self._failure is None:
            site = rows.sites[i]
            self._failure = {
                "position": rows.positions[i],
                "layer": site.layer,
                "site": site.site,
                "reason": reason,
            }
