"""Run records of runs that never were: every number is chosen, and easy to find again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from larql.runtime.observe.events import (
    CarrierWrite,
    End,
    PositionDone,
    Readout,
    RoutingTrace,
)
from larql.runtime.observe.record import RecordWriter
from larql.runtime.observe.soundness import fingerprint

# A token is text everywhere: markup, a formula, a template of the plotting library, no glyph.
TEXTS = {
    "0": "The",
    "1": " cat",
    "2": "</script><b>bold</b>",
    "3": "<img src=x onerror=alert(1)>",
    "4": "$\\frac$",  # no formula: whoever reads it as one fails
    "5": "%{z} & {{ run }}",
    "6": "\u7684\U0001f600\u202e\n",
}
LAYERS = 3
EXPERTS = 4


def log_probability(position: int, layer: int, token: int) -> float:
    """Return what the record says of a token."""
    return -(1.0 + position + layer / 8 + token / 64)


def rank(position: int, layer: int, token: int) -> int:
    return 1 + position * 100 + (LAYERS - 1 - layer) * 10 + token


def norm(position: int, write: int) -> float:
    return 1.5 + position + write / 4


def likeliest(position: int, layer: int) -> int:
    return (position + layer) % len(TEXTS)


def header_of(
    tokens: Sequence[int], declared: Sequence[int] | None, title: str = "tiny <i>model</i>"
) -> dict[str, Any]:
    lens = {"layers": list(range(LAYERS)), "attention": False, "tokens": declared, "top": 2}
    identity = {
        "container": {"fingerprint": "f" * 64, "model": title},
        "component": "target",
        "backend": "production",
        "activations": "f32",
        "kv": "f32",
        "executed_layers": list(range(LAYERS)),
        "tokens": list(tokens),
        "tokens_sha256": "0" * 64,
        "vocab": 8,
        "observed": {
            "basis": None,
            "interventions": None,
            "readers": {} if declared is None else {"lens": lens},
        },
    }
    sites = [[None, "embed"]]
    sites += [[layer, site] for layer in range(LAYERS) for site in ("attention", "ffn")]
    return {
        "run_id": "<run>",
        "provenance_fingerprint": fingerprint(identity),
        "identity": identity,
        "sites": sites,
    }


def write_record(
    path: Path,
    *,
    tokens: Sequence[int] = (0, 1, 2, 3),
    declared: Sequence[int] | None = (2, 4),
    routed: bool = False,
    unread: tuple[int, int] | None = None,
    ending: str = "whole",
    experts: int = EXPERTS,
    texts: Mapping[str, str] = TEXTS,
) -> Path:
    """Write a record of a position for each token.

    ``unread`` is a (position, layer) that the lens could not read; ``ending`` is ``whole``,
    ``failed`` (the receipt says so) or ``killed`` (within the last line, without a receipt).
    """
    with path.open("wb") as stream:
        writer = RecordWriter(header_of(tokens, declared), stream, path)
        for position, token in enumerate(tokens):
            writer.take(CarrierWrite(position, 0, norm(position, 0), norm(position, 0)))
            for layer in range(LAYERS):
                for write in (2 * layer + 1, 2 * layer + 2):
                    carrier = norm(position, write)
                    writer.take(CarrierWrite(position, write, carrier, carrier / 2))
                write = 2 * layer + 2
                if routed and layer:
                    scores = tuple(float(expert) for expert in range(experts))
                    chosen = (EXPERTS - 1, position % (EXPERTS - 1))
                    margin = None if position else 0.25
                    writer.take(RoutingTrace(position, write, scores, chosen, (0.75, 0.25), margin))
                if declared is not None and (position, layer) != unread:
                    writer.take(
                        Readout(position, write, "lens", _values(position, layer, declared))
                    )
            writer.take(PositionDone(position, token))
            writer.flush()
        if ending != "killed":
            writer.take(End(len(tokens), (1,), ((1, 2.0, -0.5),), texts))
            failure = None
            if unread is not None:
                failure = {
                    "position": unread[0], "layer": unread[1], "site": "ffn", "reason": "<odd>",
                }  # fmt: skip
            writer.receipt(
                complete=ending == "whole",
                readers={"lens": {"head_passes": 1, "rows": 12, "failure": failure}},
                fired=(),
                environment={"tool": "larql"},
            )
    if ending == "killed":
        path.write_bytes(path.read_bytes()[:-5])
    return path


def _values(position: int, layer: int, declared: Sequence[int]) -> dict[str, object]:
    first = likeliest(position, layer)
    second = (first + 1) % len(TEXTS)
    values: dict[str, object] = {
        "top": [[token, 1.0, log_probability(position, layer, token)] for token in (first, second)]
    }
    if declared:
        values["logits"] = [0.0 for _ in declared]
        values["log_probabilities"] = [log_probability(position, layer, t) for t in declared]
        values["ranks"] = [rank(position, layer, t) for t in declared]
    return values
