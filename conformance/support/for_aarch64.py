"""Numba as on an aarch64 machine, on any machine: it compiles but runs nothing.

Import it before any kernel. As a program,

    python -m conformance.support.for_aarch64 TOLD KERNEL...

it compiles kernels into the cache folder (ASSAY_CACHE) for the machine described in TOLD, which
this prints on that machine without arguments. There the kernels are only loaded, which keeps tests
under emulation bearable. test_arm.py proves that the code equals what that machine compiles.
"""

import json
import platform
import sys
from itertools import chain

import llvmlite.binding as llvm
from llvmlite.binding import targets
from numba import config
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen

TRIPLE = "aarch64-unknown-linux-gnu"


def pretend() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.get_process_triple = targets.get_default_triple = lambda: TRIPLE
    platform.machine = lambda: "aarch64"
    # stop before compiled code is linked or run
    JITCodeLibrary._finalize_specific = lambda library: None
    JITCodeLibrary.get_pointer_to_function = lambda library, name: 0
    JITCPUCodegen.set_env = lambda *_: None


def compile_there(told: str, names: list[str]) -> None:
    compiler, config.CPU_NAME, config.CPU_FEATURES = json.loads(told)
    from kernels import provenance
    from kernels.certificates import shares_of
    from kernels.compiled import SERVICES
    from kernels.cpu.runtime import share
    from kernels.table import find

    provenance.compiler = share.compiler = lambda: compiler
    of_kernels = chain.from_iterable(shares_of(find(name)) for name in names)
    for one in chain(SERVICES, of_kernels):
        print(json.dumps([one.name, one.code.digest]), flush=True)


def main() -> None:
    if not sys.argv[1:]:
        from kernels.provenance import compiler

        print(json.dumps([compiler(), llvm.get_host_cpu_name(), config.CPU_FEATURES]))
        return
    pretend()
    compile_there(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
