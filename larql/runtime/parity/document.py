"""A comparison as a document: a function of its inputs, without times."""

from __future__ import annotations

from larql.errors import Refusal
from larql.format.container import Container
from larql.runtime.observe.lines import digits
from larql.runtime.parity.blocks import LayerVerdict
from larql.runtime.parity.compare import Comparison, Wanted
from larql.runtime.parity.decode import FreeRun, TeacherForced
from larql.runtime.parity.ends import Ending, Ends
from larql.runtime.parity.verdict import Checkpoint
from larql.runtime.run import RunOptions

__all__ = ["arm_document", "comparison_document", "verdict_text"]

Document = dict[str, object]


def verdict_text(found: Comparison) -> str:
    """Return the verdict in the vocabulary: one of those of checkpoints, or ``refused(kind)``."""
    if found.halt is not None:
        return f"refused({found.halt.refusal.kind.value})"
    assert found.verdict is not None
    return found.verdict.value


def arm_document(name: str, container: Container, options: RunOptions) -> Document:
    """Return what an arm is."""
    return {
        "name": name,
        "container": container.path.absolute(),
        "fingerprint": container.fingerprint,
        "component": options.component,
        "draft_depth": options.draft_depth,
        "backend": options.backend,
        "activations": options.activations,
        "kv": options.kv,
        "chunk": options.chunk,
        "profile": options.profile,
        "shard": options.experts.shard,
    }


def comparison_document(found: Comparison, wanted: Wanted) -> Document:
    """Return a comparison, what was not reached as null."""
    tolerance = wanted.tolerance
    return {
        "tokens": list(wanted.tokens),
        "tolerance": {
            "name": tolerance.name,
            "relative": tolerance.relative,
            "floor": tolerance.floor,
            "asserts_bits": tolerance.asserts_bits,
        },
        "verdict": verdict_text(found),
        "agrees": found.agrees,
        "trivial": list(found.trivial),
        "blank": list(found.blank),
        "refusal": None
        if found.halt is None
        else {
            "phase": found.halt.phase,
            "arm": found.halt.arm,
            **_refusal(found.halt.refusal),
        },
        "sweep": None
        if found.sweep is None
        else {
            "verdict": found.sweep.verdict,
            "earliest_causal_operation": _checkpoint(found.sweep.causal),
            "layers": [_layer(layer) for layer in found.sweep.layers],
        },
        "oracle": [
            {
                "arm": leg.arm,
                "layer": leg.layer,
                "tolerance": leg.tolerance.name,
                "verdict": leg.verdict,
                "checkpoints": [_checkpoint(c) for c in leg.checkpoints],
            }
            for leg in found.oracle
        ],
        "propagation": None
        if found.propagation is None
        else {
            "verdict": found.propagation.verdict,
            "first_differing_boundary": _checkpoint(found.propagation.first),
            "boundaries": [_checkpoint(c) for c in found.propagation.boundaries],
        },
        "ends": None if found.ends is None else _ends(found.ends),
        "teacher_forced": None
        if found.teacher_forced is None
        else _teacher_forced(found.teacher_forced),
        "free_running": None if found.free_run is None else _free_run(found.free_run),
    }


def _refusal(refusal: Refusal) -> Document:
    return {"kind": refusal.kind, "message": str(refusal), "at": refusal.at}


def _checkpoint(found: Checkpoint | None) -> Document | None:
    if found is None:
        return None
    return {
        "site": found.site,
        "stage": found.stage,
        "verdict": found.verdict,
        "error": None if found.error is None else digits(found.error),
        "position": found.position,
        "blank": found.blank,
    }


def _layer(layer: LayerVerdict) -> Document:
    return {
        "layer": layer.layer,
        "verdict": layer.verdict,
        "checkpoints": [_checkpoint(c) for c in layer.checkpoints],
    }


def _ending(ending: Ending) -> Document:
    return {
        "top": [{"token": token, "logit": logit} for token, logit in ending.top],
        "argmax": ending.argmax,
        "margin": ending.margin,
    }


def _ends(ends: Ends) -> Document:
    return {
        "verdict": ends.verdict,
        "before_norm": _checkpoint(ends.before),
        "after_norm": _checkpoint(ends.after),
        "logits": _checkpoint(ends.logits),
        "baseline": _ending(ends.baseline),
        "examined": _ending(ends.examined),
    }


def _teacher_forced(found: TeacherForced) -> Document:
    return {
        "verdict": found.verdict,
        "steps": [
            {
                "position": step.position,
                "token": step.token,
                "verdict": step.verdict,
                "logits": _checkpoint(step.logits),
                "first_difference": _checkpoint(step.first),
                "argmax": {"baseline": step.argmax[0], "examined": step.argmax[1]},
            }
            for step in found.steps
        ],
    }


def _free_run(found: FreeRun) -> Document:
    return {
        "verdict": found.verdict,
        "baseline": list(found.baseline),
        "examined": list(found.examined),
        "differs_at": found.differs_at,
        "margin": None if found.margin is None else digits(found.margin),
    }
