"""Every way to put one wrong value into a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Step = str | int
WRONG: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    3.0,
    1 << 80,
    10**400,
    "",
    "x",
    "3",
    "\ud800",
    [],
    [None],
    [[]],
    {},
    {"x": 1},
)


def paths(document: object, at: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The place of every value below a document."""
    if isinstance(document, dict):
        children: Sequence[tuple[Step, object]] = list(document.items())
    elif isinstance(document, list):
        children = list(enumerate(document))
    else:
        children = ()
    for step, value in children:
        yield (*at, step)
        yield from paths(value, (*at, step))


def value_at(document: Any, path: tuple[Step, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def replaced(document: object, path: tuple[Step, ...], value: object) -> Any:
    """A copy with another value in one place; what did not change is shared."""
    copied, parent = _copied_along(document, path)
    parent[path[-1]] = value
    return copied


def removed(document: object, path: tuple[Step, ...]) -> Any:
    """A copy without the value in one place; what did not change is shared."""
    copied, parent = _copied_along(document, path)
    del parent[path[-1]]
    return copied


def _copied_along(document: Any, path: tuple[Step, ...]) -> tuple[Any, Any]:
    copied = parent = document.copy()
    for step in path[:-1]:
        parent[step] = parent[step].copy()
        parent = parent[step]
    return copied, parent
