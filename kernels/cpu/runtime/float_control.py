"""The register with the rounding mode and the flushing of subnormal numbers: MXCSR on x86-64.
Elsewhere it reads as 0 and is not written."""

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.isa.simd import I32
from kernels.cpu.runtime.share import arguments, share

SIGNATURE = "control: u32[threads] -> "
RAISED = 0x3F  # exception flags
X86 = llvm.get_process_triple().startswith("x86")


def _call(builder, name, pointer):
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    builder.call(function, [builder.bitcast(pointer, ir.IntType(8).as_pointer())])


@intrinsic
def float_control(typing):
    """The register."""

    def codegen(context, builder, signature, values):
        if not X86:
            return I32(0)
        place = cgutils.alloca_once(builder, I32)
        _call(builder, "llvm.x86.sse.stmxcsr", place)
        return builder.load(place)

    return types.uint32(), codegen


@intrinsic
def set_float_control(typing, value):
    """Restore the value that `float_control` returned."""

    def codegen(context, builder, signature, values):
        if X86:
            place = cgutils.alloca_once_value(builder, values[0])
            _call(builder, "llvm.x86.sse.ldmxcsr", place)
        return context.get_dummy_value()

    return types.void(types.uint32), codegen


@share(SIGNATURE)
def read_control(args, thread, n_threads):
    """control[thread] of this thread."""
    (control,) = arguments(args, SIGNATURE)
    control[thread] = float_control()


@share(SIGNATURE)
def restore_control(args, thread, n_threads):
    """Set this thread's register to what control[thread] says."""
    (control,) = arguments(args, SIGNATURE)
    set_float_control(control[thread])
