"""Machine code for other CPUs than this one: compiled and inspected, never run."""

import os
import re
from collections.abc import Collection
from functools import cache

import llvmlite.binding as llvm

from conformance.support.child import output_of
from conformance.support.rooms import ROOT


def python_for(
    cpu: str, features: Collection[str], program: str, *arguments: str, **variables: str
) -> str:
    """The program's output in a Python process whose Numba compiles for this CPU (LLVM's names)."""
    setting = {
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in sorted(features)),
    }
    environment = {**os.environ, **setting, **variables}
    return output_of(program, *arguments, cwd=ROOT, env=environment, timeout=900)


@cache
def _targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def assembly(code: str, triple: str, cpu: str, features: str = "") -> str:
    """Compile LLVM IR to the assembly of another machine."""
    _targets()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, codemodel="small")
    module = llvm.parse_assembly(re.sub(r"(?m)^target .*$", "", code))
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    return machine.emit_assembly(module)


def called(text: str) -> set[str]:
    """The functions that this AArch64 or x86-64 assembly calls by name."""
    return set(re.findall(r"\t(?:bl?|callq?|jmp)\t([A-Za-z_][\w.]*)", text))
