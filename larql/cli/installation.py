"""What is installed beside larql: whether it can be imported, and whether it was tested with it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires

__all__ = ["DISTRIBUTION", "import_failures", "tested_ranges", "within"]

DISTRIBUTION = "larql-vindex3"


def import_failures(modules: list[str]) -> dict[str, str]:
    """Import modules in a child process, so that one that kills the interpreter is reported too.

    Parameters
    ----------
    modules : list of str
        Import names, in the order to try them.

    Returns
    -------
    dict
        What went wrong, by module. Those after one that ended the process were not tried.
    """
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "        print(name, 'ok', flush=True)\n"
        "    except BaseException as error:\n"
        "        text = ' '.join(str(error).split())\n"
        "        print(name, type(error).__name__ + ': ' + text, flush=True)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, *modules],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    results = dict(line.partition(" ")[::2] for line in child.stdout.splitlines())
    died = f"importing it ends the process (status {child.returncode})"
    failures: dict[str, str] = {}
    for module in modules:
        result = results.get(module)
        if result is None:
            failures[module] = died
            break  # what follows was not tried
        if result != "ok":
            failures[module] = result
    return failures


def tested_ranges() -> dict[str, str]:
    """Read the version ranges that larql declares for what it requires.

    Returns
    -------
    dict
        Ranges such as ``">=0.61,<0.69"`` by name; empty when larql runs without being installed.
    """
    try:
        declared = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    pattern = re.compile(r"([A-Za-z0-9_.-]+?)\s*([<>=!~][^;]*)$")
    matches = (pattern.match(entry.strip()) for entry in declared)
    return {match[1].lower(): match[2].replace(" ", "") for match in matches if match is not None}


def within(found: str, wanted: str) -> bool:
    """Tell whether a version lies in a range, by its release numbers.

    Parameters
    ----------
    found : str
        A version, e.g. ``"0.68.1"``.
    wanted : str
        Clauses ``>=`` and ``<`` separated by commas; others are taken to hold.

    Returns
    -------
    bool
    """
    release = _release(found)
    for clause in wanted.split(","):
        bound = re.fullmatch(r"(>=|<)([\d.]+)", clause)
        if bound is not None and (release >= _release(bound[2])) != (bound[1] == ">="):
            return False
    return True


def _release(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
