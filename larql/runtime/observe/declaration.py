"""What is to be seen of a run, and the header that declares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from larql.errors import UsageError
from larql.runtime.observe.basis import Basis
from larql.runtime.observe.capture import CaptureRequest
from larql.runtime.observe.interventions import Intervention, interventions_sha256
from larql.runtime.observe.readers import Reader
from larql.runtime.observe.sites import write_sites
from larql.runtime.observe.soundness import fingerprint
from larql.runtime.run import Run

__all__ = ["Declaration", "Extent", "header_of"]


@dataclass(frozen=True)
class Declaration:
    """What is to be seen, and changed.

    Attributes
    ----------
    readers : tuple of Reader
    basis : Basis or None
        What carriers are projected on.
    head_norms, patterns : bool
        Norms of attention heads, and their softmax weights.
    interventions : tuple of Intervention
        In the order in which they are made at one site.
    captures : tuple of CaptureRequest
        Vectors to keep; the record does not depend on them.
    """

    readers: tuple[Reader, ...] = ()
    basis: Basis | None = None
    head_norms: bool = False
    patterns: bool = False
    interventions: tuple[Intervention, ...] = ()
    captures: tuple[CaptureRequest, ...] = ()


@dataclass(frozen=True)
class Extent:
    """How far a run goes.

    Attributes
    ----------
    tokens : tuple of int
        Given tokens.
    generate : int
        Most tokens to generate, the likeliest each time.
    end_ids : tuple of int
        Tokens that end generation.
    top : int
        How many of the likeliest tokens the end of the record tells.
    """

    tokens: tuple[int, ...]
    generate: int = 0
    end_ids: tuple[int, ...] = ()
    top: int = 5


def header_of(
    run: Run, extent: Extent, declaration: Declaration, run_id: str | None, context: int
) -> dict[str, object]:
    """Return a record's header: all that the log is a function of, with its hash.

    Threads, chunks, times and paths are not in it. Nor is the context, but where it decides which
    of two lists of rotary frequencies is used, that is, as ``rope_list``.
    ``provenance_fingerprint`` is the sha256 of the identity as JSON with sorted keys and no spaces;
    the run id is its beginning unless one is given.

    Raises
    ------
    UsageError
        If the run id is empty.
    """
    if run_id == "":
        raise UsageError("the run id is empty; give a name, or none")
    identity = _identity(run, extent, declaration, context)
    identity_hash = fingerprint(identity)
    return {
        "run_id": identity_hash[:16] if run_id is None else run_id,
        "provenance_fingerprint": identity_hash,
        "identity": identity,
        "sites": [[site.layer, site.site] for site in write_sites(run.prepared.plan)],
    }


def _identity(
    run: Run, extent: Extent, declaration: Declaration, context: int
) -> dict[str, object]:
    provenance = run.provenance(extent.tokens, context)
    taken: Sequence[str] = (
        "container", "component", "backend", "numerics", "activations", "kv", "executed_layers",
        "tokens", "tokens_sha256",
    )  # fmt: skip
    basis = declaration.basis
    made = declaration.interventions
    observed: Mapping[str, object] = {
        "basis": None
        if basis is None
        else {"dims": len(basis.rows), "seed": basis.seed, "sha256": basis.sha256()},
        "head_norms": declaration.head_norms,
        "patterns": declaration.patterns,
        "readers": {reader.name: reader.declaration() for reader in declaration.readers},
        "interventions": None
        if not made
        else {
            "sha256": interventions_sha256(made),
            "declared": [one.declaration() for one in made],
        },
    }
    return {
        **{n: provenance[n] for n in (*taken, "rope_list", "experts") if n in provenance},
        **({} if run.left_out is None else {"refusals": "best-effort"}),
        "generate": extent.generate,
        "end_of_text_ids": list(extent.end_ids),
        "top": extent.top,
        "hidden": run.prepared.plan.component.hidden_size,
        "vocab": run.prepared.plan.component.vocab_size,
        "observed": observed,
    }
