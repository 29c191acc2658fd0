"""``larql doctor``: what this machine and installation offer, and what stands in the way."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from larql import __version__
from larql.cli import installation, render
from larql.cli.options import Profile
from larql.cli.output import Output, output_of
from larql.errors import CheckFailed, LarqlError, UsageError

__all__ = ["command"]

# Distribution and import name of what a run needs; import order is also the order of the report.
_NEEDED: Mapping[str, str] = {
    "numpy": "numpy",
    "llvmlite": "llvmlite",
    "numba": "numba",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "huggingface_hub": "huggingface_hub",
    "jinja2": "jinja2",
    "platformdirs": "platformdirs",
    "typer": "typer",
    "rich": "rich",
}
_VARIABLES = re.compile(
    r"(LARQL|NUMBA|HF|HUGGING_FACE|OMP|GOMP|KMP|PIP)_.*|XDG_CACHE_HOME|HTTPS?_PROXY|NO_PROXY",
    re.IGNORECASE,
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY", re.IGNORECASE)

Facts = dict[str, object]


@dataclass(frozen=True)
class Finding:
    """Something a user should know.

    Attributes
    ----------
    state : {'broken', 'note'}
        Whether larql cannot do its work, or can but not as well as it might.
    what : str
        The part concerned.
    found : str
        What was seen.
    advice : str
        What to do.
    """

    state: Literal["broken", "note"]
    what: str
    found: str
    advice: str


Warm = Annotated[
    str | None,
    typer.Option(
        "--warm",
        metavar="MODEL",
        help="Also compile the kernels that this model needs, under both activation policies.",
        show_default=False,
    ),
]


def command(ctx: typer.Context, warm: Warm = None, profile: Profile = None) -> None:
    """Report what this machine and installation offer.

    Versions, instruction set, threads, memory, cache and the environment variables that change
    what larql does. Nothing is sent or fetched. Exit status 1 means that something needed does
    not work; each such line says what to do. Attach the output to a report of a defect.

    Examples
    --------
    larql doctor
    larql doctor --json | jq .kernels

    larql doctor --warm model.vindex3
    """
    output = output_of(ctx)
    environment = _environment()  # before the kernels' setup adds to it
    if warm is not None:
        _warm(warm, profile, output)
    elif profile is not None:
        raise UsageError("--profile is of a model; give --warm MODEL with it")
    findings: list[Finding] = []
    sections: dict[str, Facts] = {
        "versions": _versions(findings),
        "system": _system(findings),
        "kernels": _kernels(findings),
        "cache": _cache(findings),
        "environment": environment,
    }
    broken = [finding for finding in findings if finding.state == "broken"]
    if output.json:
        render.document(output, {"ok": not broken, "findings": findings, **sections})
    else:
        _print(sections, findings)
    if broken:
        raise CheckFailed(
            f"{len(broken)} of the things larql needs do not work: "
            + ", ".join(finding.what for finding in broken)
        )


def _warm(model: str, profile: str | None, output: Output) -> None:
    """Compile what a model needs; how long it took goes to standard error."""
    from larql.cli.models import open_model

    container = open_model(model, output)
    from larql.runtime.run import RunOptions, open_run
    from larql.runtime.warm import warm

    for activations, kv in (("f32", "f32"), ("q8", "f32"), ("f32", "f16")):
        options = RunOptions(activations=activations, kv=kv, profile=profile)
        seconds = warm(open_run(container, options))
        render.notice(
            output, f"kernels for {activations} activations, {kv} keys and values: {seconds:.1f} s"
        )


def _print(sections: Mapping[str, Facts], findings: list[Finding]) -> None:
    for title, facts in sections.items():
        render.line(title)
        render.key_values([_for_people(name, value) for name, value in facts.items()])
        render.line()
    for finding in findings:
        render.line(
            render.printable(f"{finding.state}: {finding.what}: {finding.found}; {finding.advice}")
        )
    if not findings:
        render.line("Everything larql needs is here.")


def _for_people(name: str, value: object) -> tuple[str, object]:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"  {name.removesuffix('_bytes')}", render.bytes_text(value)
    return f"  {name}", value


def _versions(findings: list[Finding]) -> Facts:
    facts: Facts = {"larql": __version__, "python": platform.python_version()}
    ranges = installation.tested_ranges()
    failures = installation.import_failures(list(_NEEDED.values()))
    for distribution, module in _NEEDED.items():
        try:
            found = version(distribution)
        except PackageNotFoundError:
            found = "missing"
        facts[distribution] = found
        failure = failures.get(module)
        wanted = ranges.get(distribution)
        if failure is not None:
            findings.append(
                Finding(
                    "broken",
                    distribution,
                    failure,
                    f"reinstall {installation.DISTRIBUTION} with pip",
                )
            )
        elif wanted and found != "missing" and not installation.within(found, wanted):
            findings.append(
                Finding(
                    "note",
                    distribution,
                    f"{found} is outside the tested range {wanted}",
                    f"install a version in the range, or a newer {installation.DISTRIBUTION}",
                )
            )
    facts["pip"] = version("pip") if find_spec("pip") is not None else None
    if facts["pip"] is None:
        findings.append(
            Finding(
                "note",
                "pip",
                "not installed in this environment",
                "'larql pull pypi://…' needs it: python -m ensurepip",
            )
        )
    return facts


def _system(findings: list[Finding]) -> Facts:
    usable = len(os.sched_getaffinity(0))
    limit = _number(Path("/sys/fs/cgroup/memory.max")) or _number(
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    )
    memory = _memory()
    # Unlimited is written as a number near 2**63 by the older kernel interface.
    if limit is not None and limit >= memory.get("MemTotal", limit):
        limit = None
    if sys.platform != "linux":
        findings.append(Finding("note", "system", sys.platform, "larql is tested on Linux only"))
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": usable,
        "cpu_quota": _text(Path("/sys/fs/cgroup/cpu.max")),
        "memory_bytes": memory.get("MemTotal"),
        "memory_available_bytes": memory.get("MemAvailable"),
        "memory_limit_bytes": limit,
    }


def _cpu_model() -> str | None:
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return None


def _memory() -> dict[str, int]:
    entries = (
        re.match(r"(\w+):\s+(\d+) kB", line)
        for line in (_text(Path("/proc/meminfo")) or "").splitlines()
    )
    return {entry[1]: int(entry[2]) * 1024 for entry in entries if entry is not None}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _kernels(findings: list[Finding]) -> Facts:
    import warnings

    from larql.kernels import setup

    try:
        with warnings.catch_warnings():
            # An unwritable cache is reported below, once, with the other findings.
            warnings.simplefilter("ignore", setup.KernelCacheWarning)
            facts: Facts = dict(setup.features())
    except (ValueError, RuntimeError) as error:
        advice = "correct or unset the variable it names"
        findings.append(Finding("broken", "kernels", str(error), advice))
        return {}
    if facts["isa"] != facts["isa_host"]:
        findings.append(
            Finding(
                "note",
                "instruction set",
                f"{facts['isa']} is forced, this machine offers {facts['isa_host']}",
                "unset LARQL_ISA for speed; the answers are the same",
            )
        )
    if facts["kernel_cache"] is None:
        findings.append(
            Finding(
                "note",
                "kernel cache",
                "not writable: every run compiles its kernels again",
                "set LARQL_CACHE_DIR to a directory you may write to",
            )
        )
    return facts


def _cache(findings: list[Finding]) -> Facts:
    from larql.format import cache

    try:
        root = cache.cache_root()
        entries = cache.entries()
    except LarqlError as error:
        findings.append(
            Finding("note", "cache", str(error), "models cannot be pulled or kept until then")
        )
        return {}
    existing = next(path for path in (root, *root.parents) if path.exists())
    writable = _takes_files(existing)
    if not writable:
        findings.append(
            Finding(
                "note",
                "cache",
                f"{root} is not writable",
                "set LARQL_CACHE_DIR to a directory you may write to",
            )
        )
    facts: Facts = {"directory": str(root), "writable": writable}
    for kind in cache.KINDS:
        held = [entry for entry in entries if entry.kind == kind]
        facts[f"{kind}_entries"] = len(held)
        facts[f"{kind}_bytes"] = sum(entry.bytes for entry in held)
    facts["free_bytes"] = shutil.disk_usage(existing).free
    return facts


def _takes_files(directory: Path) -> bool:
    # Asking for permission is not enough: root has it on file systems that take no files.
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _environment() -> Facts:
    return {
        name: _without_secrets(name, value)
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name)
    }


def _without_secrets(name: str, value: str) -> str:
    if _SECRET.search(name):
        return "(set, not shown)"
    return re.sub(r"(?<=://)[^/@\s]*@", "***@", value)
