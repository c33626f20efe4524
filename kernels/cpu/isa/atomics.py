"""Primitives for synchronising threads: atomics, a pause, and calls through addresses.

All atomics of this file are sequentially consistent.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.isa.simd import I32, address_of

I64 = ir.IntType(64)


def _word(array):
    """LLVM's type of the elements of an int32 or int64 array."""
    return ir.IntType(array.dtype.bitwidth)


@intrinsic
def atomic_add(typing, array, index, value):
    """array[index] += value on an int32 or int64 array; returns the previous value."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, _word(array))
        return builder.atomic_rmw("add", pointer, values[2], "seq_cst")

    return array.dtype(array, types.intp, array.dtype), codegen


@intrinsic
def atomic_load(typing, array, index):
    """array[index] of an int32 or int64 array, before anything that follows."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, _word(array))
        return builder.load_atomic(pointer, "seq_cst", array.dtype.bitwidth // 8)

    return array.dtype(array, types.intp), codegen


@intrinsic
def compare_and_swap(typing, array, index, expected, value):
    """Set array[index] of an int32 or int64 array to `value` if it was as expected; returns whether
    it was."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, _word(array))
        found = builder.cmpxchg(pointer, values[2], values[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.intp, array.dtype, array.dtype), codegen


@intrinsic
def pause(typing):
    """Tell the core that this is a spin loop; nothing where there is no such instruction."""

    def codegen(context, builder, signature, values):
        if llvm.get_process_triple().startswith("x86"):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def yield_core(typing):
    """Let another thread run: the C library's sched_yield."""

    def codegen(context, builder, signature, values):
        kind = ir.FunctionType(I32, [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def word_at(typing, address, index):
    """The 64-bit word `index` words beyond an address."""

    def codegen(context, builder, signature, values):
        words = builder.inttoptr(values[0], I64.as_pointer())
        return builder.load(builder.gep(words, [values[1]]))

    return types.uint64(types.uint64, types.intp), codegen


@intrinsic
def put_word(typing, address, index, value):
    """Make `value` the 64-bit word `index` words beyond an address."""

    def codegen(context, builder, signature, values):
        words = builder.inttoptr(values[0], I64.as_pointer())
        builder.store(values[2], builder.gep(words, [values[1]]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.intp, types.uint64), codegen


@intrinsic
def call_share(typing, address, args, thread, n_threads):
    """Call the share compiled at an address (see share.py for the convention)."""

    def codegen(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.intp, types.intp), codegen
