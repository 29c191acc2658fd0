"""Compile every kernel at the portable level and emit it for another processor.

Usage: python emit.py DIRECTORY-OF-PACKAGE TRIPLE, with LARQL_ISA=portable. Nothing that is emitted
is run. Prints one JSON object: ``kernels``, a list of what was emitted
(name, types, how many lanes LLVM's code multiplies and adds in one, intrinsics of other processors
and inline assembly, assembly), ``missing``, the kernels that nothing here compiles, and ``plain``,
the assembly of a multiplication and an addition.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import llvmlite.binding as llvm

from larql.kernels import setup

# Compiled kernels are not kept: what is compiled here is not what runs.
setup._CHOSEN[:] = [replace(setup.configure(1), cache_directory=None)]

from numba.core.codegen import JITCodeLibrary, JITCPUCodegen  # noqa: E402


def keep_linked() -> None:
    """Keep every module as it is once linked, and make no machine code of it for this processor.

    What other modules link with is optimised before, as it is where code is run.
    """
    optimise = JITCodeLibrary._optimize_final_module
    linked = JITCodeLibrary._get_module_for_linking

    def kept(library: Any) -> None:
        library.linked = str(library._final_module)

    def optimised(library: Any) -> Any:
        library._ensure_finalized()
        if library._shared_module is None:
            optimise(library)
        return linked(library)

    JITCodeLibrary._optimize_final_module = kept
    JITCodeLibrary._get_module_for_linking = optimised
    JITCPUCodegen._add_module = lambda codegen, module: None
    JITCPUCodegen.set_env = lambda codegen, name, environment: None


keep_linked()

from larql.kernels import (  # noqa: E402
    activation,
    attention_block,
    convolution,
    integer_slab_product,
    product,
    product_q8,
    ring,
    slab_product,
    unit_product,
)
from larql.kernels.encodings import BLOCKS  # noqa: E402
from larql.kernels.integers import INTEGERS  # noqa: E402
from larql.kernels.interleaved import INTERLEAVED  # noqa: E402
from larql.kernels.jit import Variant, compiled_address  # noqa: E402
from larql.kernels.unit_slab import alike_units, has_units  # noqa: E402

KERNELS = Path(setup.__file__).parent
# Kernels whose variant says more than the level; the others are found by their parameters.
UNITED = (
    unit_product._one_of_packed, unit_product._one_of_plain, unit_product._spread_packed,
    unit_product._spread_plain,
)  # fmt: skip
TOLD = {
    *UNITED,
    product._expand_row, product._coded_rows, product._panel, product_q8._rows,
    product_q8._unpack, product_q8._panel, convolution._convolve,
    activation._activate, activation._gate, attention_block._block, ring._write,
    slab_product._expand, slab_product._floats, integer_slab_product._integers,
    integer_slab_product._unpack, integer_slab_product._many,
    unit_product._prepare, unit_product._many,
}  # fmt: skip
FUSED = re.compile(r"call [^\n]*@llvm\.fma\.(?:v(\d+))?f(?:32|64)\(")
FOREIGN = re.compile(r"@(llvm\.x86\.[\w.]+)|call [^\n]*\b(asm) ")
PLAIN = """
define <4 x float> @both(<4 x float> %a, <4 x float> %b, <4 x float> %c) {
  %product = fmul <4 x float> %a, %b
  %sum = fadd <4 x float> %product, %c
  ret <4 x float> %sum
}
"""


def dispatchers() -> dict[str, Any]:
    """Return every function that `larql.kernels.jit.kernel` marked, by module and name."""
    found = {}
    for path in sorted(KERNELS.glob("*.py")):
        module = importlib.import_module(f"larql.kernels.{path.stem}")
        for name, value in vars(module).items():
            made = getattr(value, "__module__", None) == module.__name__
            if made and hasattr(value, "inspect_llvm") and not forced_inline(value):
                found[f"{path.stem}.{name}"] = value
    return found


def forced_inline(dispatcher: Any) -> bool:
    """Return whether a function is only ever compiled into others."""
    return bool(dispatcher.targetoptions.get("forceinline"))


def compile_all(found: dict[str, Any]) -> None:
    """Compile every kernel for the level, with each encoding and function that it takes."""
    level = setup.current().level
    for encoding in BLOCKS:
        product.expander(encoding)
        if encoding not in INTERLEAVED and not has_units(encoding):
            product._coded(encoding)
    for encoding, form in INTERLEAVED.items():
        if has_units(encoding):
            for function in UNITED:
                unit_product._compiled(function, encoding)
            alike = alike_units(encoding)
            unit_product._compiled(unit_product._prepare, alike)
            width = unit_product._WIDEST[setup.current().level]
            unit_product._compiled(unit_product._many, alike, width)
        else:
            slab_product._float_kernel(encoding)
        integer_slab_product._integer_kernel(encoding)
        integer_slab_product._unpacker(encoding)
        integer_slab_product._many_kernel(form.source)
    for encoding in INTEGERS:
        product_q8._few(encoding)
        product_q8._unpacker(encoding)
        product_q8._many(encoding)
    product._plain()
    for kv in ("f32", "f16"):
        attention_block.block_rows_address(kv)
        ring._compiled(kv)
    for kind in activation._FUNCTIONS:
        activation._compiled(activation._activate, kind)
    for kind in activation.KINDS:
        activation._compiled(activation._gate, kind)
    for kind in (*activation.KINDS, convolution.NONE):
        convolution._compiled(kind)
    for value in found.values():
        first = value.py_func.__code__.co_varnames[0]
        if first == "variant" and value not in TOLD:
            compiled_address(value, Variant(level))
    for path in sorted(KERNELS.glob("*.py")):
        module = importlib.import_module(f"larql.kernels.{path.stem}")
        for name, value in vars(module).items():
            if name.startswith("_entry"):
                value()


class Machine:
    """LLVM's back end for one triple, set up as numba sets it up on such a machine."""

    def __init__(self, triple: str) -> None:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self.triple = triple
        name, flags = setup._ELSEWHERE
        self.machine = llvm.Target.from_triple(triple).create_target_machine(
            cpu=name, features=flags, opt=3, reloc="pic", codemodel="default"
        )

    def emit(self, text: str) -> tuple[str, str]:
        """Return a module as it is optimised for the machine, and its assembly."""
        text = re.sub(r"^target (triple|datalayout) = .*$", "", text, flags=re.MULTILINE)
        layout = str(self.machine.target_data)
        head = f'target triple = "{self.triple}"\ntarget datalayout = "{layout}"\n'
        module = llvm.parse_assembly(head + text)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization, options.slp_vectorization = True, False
        builder = llvm.create_pass_builder(self.machine, options)
        builder.getModulePassManager().run(module, builder)
        return str(module), self.machine.emit_assembly(module)


def emitted(machine: Machine, found: dict[str, Any]) -> Iterator[dict[str, object]]:
    """Yield what was emitted of each kernel and signature."""
    for name, dispatcher in found.items():
        for signature, made in dispatcher.overloads.items():
            text, assembly = machine.emit(made.library.linked)
            lanes = sum(int(count or 1) for count in FUSED.findall(text))
            yield {
                "name": name,
                "types": str(signature[0]),
                "fused": lanes,
                "foreign": FOREIGN.findall(text),
                "assembly": assembly,
            }


everything = dispatchers()
compile_all(everything)
target = Machine(sys.argv[2])
report = {
    "level": setup.current().level,
    "kernels": list(emitted(target, everything)),
    "missing": [name for name, value in everything.items() if not value.overloads],
    "plain": target.emit(PLAIN)[1],
}
print(json.dumps(report))
