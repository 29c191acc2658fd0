"""How a container is executed, as the options that commands share say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from larql.cli.expert_options import RefusalPolicy
from larql.cli.options import ActivationKind, Backend, KvKind

if TYPE_CHECKING:
    from larql.runtime.expert_access import ExpertAccess
    from larql.runtime.run import RunOptions

__all__ = ["run_options"]


def run_options(
    backend: Backend,
    activations: ActivationKind,
    kv: KvKind,
    threads: int | None,
    chunk: int | None,
    profile: str | None,
    *,
    prefault: bool = False,
    component: str = "target",
    draft_depth: int | None = None,
    experts: ExpertAccess | None = None,
    refusals: RefusalPolicy = RefusalPolicy.STRICT,
) -> RunOptions:
    """Return the run that the options of a command ask for.

    Parameters
    ----------
    backend, activations, kv, threads, chunk, profile, prefault, component, draft_depth, refusals
        As on the command line; what a command has no option for keeps its default.
    experts : ExpertAccess or None
        What :func:`~larql.cli.expert_options.expert_access` makes of the options about experts;
        None: all that the container holds.
    """
    # Not above: commands that refuse their options do it before the kernels are loaded.
    from larql.runtime.expert_access import EVERYTHING
    from larql.runtime.run import RunOptions

    return RunOptions(
        component,
        backend.value,
        draft_depth,
        threads,
        chunk,
        activations.value,
        kv.value,
        prefault,
        profile,
        EVERYTHING if experts is None else experts,
        refusals is RefusalPolicy.BEST_EFFORT,
    )
