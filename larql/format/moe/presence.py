"""Which operands of a container are here, whole or in part, and which are declared elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from larql.format.banks import runs_of
from larql.format.closure import operand_contracts
from larql.format.container import Container

__all__ = ["InPart", "Presence", "presence_of"]


@dataclass(frozen=True)
class InPart:
    """An operand of experts of which some entries are here.

    Attributes
    ----------
    operand : str
    experts : tuple of (int, int)
        Half-open runs of the entries that are here.
    population : int
    """

    operand: str
    experts: tuple[tuple[int, int], ...]
    population: int


@dataclass(frozen=True)
class Presence:
    """Where the operands of a container are.

    Attributes
    ----------
    whole : tuple of str
        All of it is here.
    in_part : tuple of InPart
    elsewhere : tuple of str
        The graph needs it and it is not here.
    """

    whole: tuple[str, ...]
    in_part: tuple[InPart, ...]
    elsewhere: tuple[str, ...]


def presence_of(container: Container) -> Presence:
    """Return where the operands of a container without defects are; tables are read, no weight.

    Raises
    ------
    ContainerError, UnsupportedRefusal
        If graph or tables cannot be read.
    """
    whole, in_part = [], []
    for name, value in container.operands.items():
        if not container.holds_bank(value):
            whole.append(name)
            continue
        present = [file is not None for file in container.entries(value).files]
        if all(present):
            whole.append(name)
        else:
            in_part.append(InPart(name, tuple(runs_of(present)), len(present)))
    components = () if container.index.system_graph is None else container.graph.components
    needed = (contract.name for c in components for contract in operand_contracts(c))
    elsewhere = dict.fromkeys(name for name in needed if name not in container.operands)
    return Presence(tuple(whole), tuple(in_part), tuple(elsewhere))
