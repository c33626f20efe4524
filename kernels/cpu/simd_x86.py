"""Vector instructions that only x86-64 has."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.simd import I32, address_of, broadcast, call_llvm, i8x64, i32x16


@intrinsic
def to_unsigned(typing, v):
    """Each signed byte raised by 128."""

    def codegen(context, builder, signature, values):
        return builder.xor(values[0], ir.Constant(v.ir, [-128] * v.lanes))

    return v(v), codegen


@intrinsic
def splat4(typing, array, offset):
    """i8x64: the four bytes at array[offset:], sixteen times."""

    def codegen(context, builder, signature, values):
        word = builder.load(address_of(context, builder, signature.args[0], values, I32))
        word.align = 1
        return builder.bitcast(broadcast(builder, i32x16, word), i8x64.ir)

    return i8x64(array, types.intp), codegen


@intrinsic
def dot4(typing, sums, unsigned, signed):
    """sums + the dot of each lane's four unsigned with its four signed bytes (AVX-512 VNNI)."""

    def codegen(context, builder, signature, values):
        sums_, left, right = values
        pair = [builder.bitcast(left, i32x16.ir), builder.bitcast(right, i32x16.ir)]
        return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.512", i32x16.ir, [sums_, *pair])

    return i32x16(i32x16, i8x64, i8x64), codegen
