"""Write docs/models.md from the registry of families and the results of the oracles.

python scripts/docs/models.py            rewrite the page
python scripts/docs/models.py --check    exit 1 if it is not what would be written
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from larql.format.source.held import BACKENDS, FamilyReport, reports

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
HEAD = """# Models

Written by `python scripts/docs/models.py` from the registry of families and from what the oracles
gave; `larql models` prints the same.

A checkpoint is compiled if its `config.json` names one of these in `model_type`, or a GGUF file in
`general.architecture`. Every option of a family's configuration is compiled, or refused by name.
The container that comes out names operations and no family.

**Compiles** says of which files: `safetensors` checkpoints, `gguf` files, and `mtp` where a draft
head in a checkpoint becomes a component. **Executes** names the backends that compute all of the
family's oracles, none of them further off than 2e-4.

**Oracles** are tiny checkpoints with random weights and peculiar options, and what transformers
computed from them in float32: see [testing.md](testing.md). The last two columns say how far the
logits of each backend are from those at most, as a share of the largest logit. float32 arithmetic
alone costs up to 1e-4; the smallest single mistake that was tried moves logits by 0.03.

| Family | `model_type` | GGUF | Compiles | Executes | Operations | Oracles | {} | {} |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
FOOT = """
A family that is not here can be added: [adding-a-model.md](adding-a-model.md).
"""


def main() -> int:
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE} is out of date: run python scripts/docs/models.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    found = reports()
    return (
        HEAD.format(*BACKENDS) + "".join(map(row, found)) + "\n" + "".join(map(words, found)) + FOOT
    )


def row(family: FamilyReport) -> str:
    cells = (
        family.name,
        ", ".join(f"`{name}`" for name in family.model_types),
        ", ".join(f"`{name}`" for name in family.architectures),
        ", ".join(family.compiles),
        ", ".join(family.executes),
        ", ".join(name.replace("_", " ") for name in family.operations),
        str(len(family.oracles)),
        *(shown(family.error(backend)) for backend in BACKENDS),
    )
    return "".join(f"| {cell} " for cell in cells) + "|\n"


def shown(error: float | None) -> str:
    return "" if error is None else f"{error:.0e}"


def words(family: FamilyReport) -> str:
    """What is particular to a family, as its file begins."""
    module = importlib.import_module(f"larql.format.source.families.{family.name}")
    first = (inspect.getdoc(module) or "").splitlines()[0]
    names = ", ".join(f"`{oracle.oracle}`" for oracle in family.oracles)
    return f"- {first} {names}\n"


if __name__ == "__main__":
    sys.exit(main())
