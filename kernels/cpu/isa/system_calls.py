"""The C library from compiled code: semaphores, futexes, reads, and the time.

Semaphores are POSIX's unnamed ones, in bytes of an array; `memory` and `at` tell where.
"""

import platform
import sys
import time

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.isa.atomics import I64
from kernels.cpu.isa.simd import I32, address_of, call_llvm

I8 = ir.IntType(8)
CLOCK = I32(getattr(time, "CLOCK_MONOTONIC", 1))  # its value differs between systems
ERRNO = "__error" if sys.platform == "darwin" else "__errno_location"
DONTNEED = 4  # of posix_fadvise
FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call's number, on Linux
HAS_FUTEX = sys.platform == "linux" and platform.machine() in FUTEX
WAIT, WAKE = 128, 129  # of process-private futexes
NAP = 50_000  # nanoseconds between two polls of a word where there is no futex


def _of_semaphore(name, doc):
    def operation(typing, memory, at):
        def codegen(context, builder, signature, values):
            semaphore = address_of(context, builder, signature.args[0], values, I8)
            return call_llvm(builder, name, I32, [semaphore])

        return types.int32(memory, types.intp), codegen

    operation.__doc__, operation.__name__ = doc, name
    return intrinsic(operation)


sem_post = _of_semaphore("sem_post", "Let one waiter past, now or when it comes; 0.")
sem_wait = _of_semaphore("sem_wait", "Sleep until let past; -1 if a signal's handler ended it.")


def _futex(builder, word, operation, value, limit):
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    call = cgutils.get_or_insert_function(builder.module, kind, "syscall")
    number = I64(FUTEX[platform.machine()])
    nobody = ir.Constant(pointer, None)
    builder.call(call, [number, word, I64(operation), value, limit, nobody, I64(0)])


@intrinsic
def sleep_on(typing, array, index, seen, nanoseconds):
    """Sleep at most so long, below a second, while array[index], of int32, is as seen: until
    `wake_all`, a signal, or spuriously. Without futexes it is a nap."""

    def codegen(context, builder, signature, values):
        word = address_of(context, builder, signature.args[0], values, I32)
        limit = cgutils.alloca_once(builder, ir.LiteralStructType([I64, I64]))
        builder.store(I64(0), cgutils.gep_inbounds(builder, limit, 0, 0))
        longest = values[3] if HAS_FUTEX else I64(NAP)
        builder.store(longest, cgutils.gep_inbounds(builder, limit, 0, 1))
        if HAS_FUTEX:
            _futex(builder, word, WAIT, builder.sext(values[2], I64), limit)
        else:
            nothing = ir.Constant(limit.type, None)
            call_llvm(builder, "nanosleep", I32, [limit, nothing])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int32, types.int64), codegen


@intrinsic
def wake_all(typing, array, index):
    """Wake all threads that sleep on array[index]."""

    def codegen(context, builder, signature, values):
        if HAS_FUTEX:
            word = address_of(context, builder, signature.args[0], values, I32)
            _futex(builder, word, WAKE, I64(2**31 - 1), ir.Constant(I8.as_pointer(), None))
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def last_error(typing):
    """The errno of this thread."""

    def codegen(context, builder, signature, values):
        return builder.load(call_llvm(builder, ERRNO, I32.as_pointer(), []))

    return types.int32(), codegen


@intrinsic
def call_preadv(typing, function, fd, iovecs, n_iovecs, offset):
    """Call the preadv at address `function`: bytes read, or -1 and an errno."""

    def codegen(context, builder, signature, values):
        address, fd, iovecs, count, offset = values
        arguments = [builder.trunc(fd, I32), iovecs, builder.trunc(count, I32), offset]
        kind = ir.FunctionType(I64, [a.type for a in arguments])
        return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)

    words = [types.int64] * 5
    return types.int64(*words), codegen


@intrinsic
def drop_cached(typing, fd, offset, n_bytes):
    """Tell the system that this part of a file need not stay in the page cache."""

    def codegen(context, builder, signature, values):
        fd, offset, n_bytes = values
        arguments = [builder.trunc(fd, I32), offset, n_bytes, I32(DONTNEED)]
        call_llvm(builder, "posix_fadvise", I32, arguments)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def nanoseconds(typing):
    """The monotonic clock: the C library's clock_gettime."""

    def codegen(context, builder, signature, values):
        moment = cgutils.alloca_once(builder, ir.LiteralStructType([I64, I64]))
        kind = ir.FunctionType(I32, [I32, moment.type])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [CLOCK, moment])
        seconds, rest = (builder.load(cgutils.gep_inbounds(builder, moment, 0, i)) for i in (0, 1))
        return builder.add(builder.mul(seconds, I64(10**9)), rest)

    return types.int64(), codegen
