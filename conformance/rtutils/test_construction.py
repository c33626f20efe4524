"""Kernels with forbidden constructs, which no finite trial detects, are refused with the
construct's name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.certificates import code_of
from kernels.cpu.isa.atomics import call_share, yield_core
from kernels.cpu.isa.simd import I32
from kernels.cpu.runtime.construction import CALLED, complaint_about
from kernels.cpu.runtime.object_code import optimised
from kernels.cpu.runtime.share import Share, arguments
from kernels.kernel import Kernel
from kernels.trial import demanded

RELU = "x: f32[n] -> out: f32[n]"
I8, I64, F64 = ir.IntType(8), ir.IntType(64), ir.DoubleType()
BYTES = I8.as_pointer()
Build = Callable[[Any], Any]  # of an IRBuilder: what is added to every element, a float64


def share_with(build: Build) -> Share:
    """relu with this additional code."""

    @intrinsic
    def planted(typing):
        def codegen(context, builder, signature, values):
            return build(builder)

        return types.float64(), codegen

    def kernel(args, thread, n_threads):
        x, out = arguments(args, RELU)
        for i in range(len(x)):
            out[i] = max(x[i], np.float32(0)) + planted()

    return Share(lambda: kernel, RELU)


def construction_of(function: Callable[..., None]) -> str:
    return complaint_about(optimised(function))


def variable(builder: Any, name: str, kind: Any) -> Any:
    found = ir.GlobalVariable(builder.module, kind, name)
    found.linkage, found.initializer = "internal", ir.Constant(kind, None)
    return found


def counting(name: str, **properties: str) -> Build:
    """A global variable with these properties that counts calls."""

    def build(builder: Any) -> Any:
        calls = variable(builder, name, I64)
        for key, value in properties.items():
            setattr(calls, key, value)
        count = builder.add(builder.load(calls), I64(1))
        builder.store(count, calls)
        return builder.uitofp(count, F64)

    return build


def static_scratch(builder: Any) -> Any:
    """A static array shared by all threads."""
    scores = variable(builder, "scores", ir.ArrayType(F64, 64))
    where = builder.and_(builder.ptrtoint(builder.alloca(I64), I64), I64(63))
    builder.store(F64(1), cgutils.gep_inbounds(builder, scores, 0, where))
    return builder.load(cgutils.gep_inbounds(builder, scores, 0, 7))


def kept_by_pointer(builder: Any) -> Any:
    """A factor cached by its address."""
    last, factor = variable(builder, "last_weight", I64), variable(builder, "factor", F64)
    here = builder.ptrtoint(builder.alloca(I64), I64)
    with builder.if_then(builder.icmp_unsigned("!=", builder.load(last), here)):
        builder.store(here, last)
        builder.store(builder.uitofp(here, F64), factor)
    return builder.load(factor)


def environment(builder: Any) -> Any:
    environ = ir.GlobalVariable(builder.module, BYTES, "environ")
    return builder.uitofp(builder.ptrtoint(builder.load(environ), I64), F64)


def calling(name: str, result: Any = I64, *arguments: Any) -> Build:
    """A call of a function by name, with zeros."""

    def build(builder: Any) -> Any:
        kind = ir.FunctionType(result, arguments)
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        found = builder.call(function, [ir.Constant(a, None) for a in arguments])
        if isinstance(result, ir.PointerType):
            found = builder.ptrtoint(found, I64)
        if isinstance(result, ir.LiteralStructType):
            found = builder.extract_value(found, 0)
        if isinstance(result, ir.VoidType):
            return F64(0)
        return found if isinstance(found.type, ir.DoubleType) else builder.uitofp(found, F64)

    return build


def rounding(builder: Any) -> Any:
    """The floating-point control register, left in another mode."""
    mode = cgutils.alloca_once_value(builder, I32(0x7F80))
    kind = ir.FunctionType(ir.VoidType(), [BYTES])
    load = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.ldmxcsr")
    builder.call(load, [builder.bitcast(mode, BYTES)])
    return F64(0)


def address(builder: Any) -> Any:
    """A fixed address of this process's memory."""
    return builder.load(builder.inttoptr(I64(0x7FF000001000), F64.as_pointer()))


def segment(builder: Any) -> Any:
    """Thread-local memory, by the register fs."""
    return builder.uitofp(builder.load(builder.inttoptr(I64(0), ir.PointerType(I64, 257))), F64)


def assembly(builder: Any) -> Any:
    kind = ir.FunctionType(I64, [])
    return builder.uitofp(builder.asm(kind, "rdtsc", "={ax},~{dx}", [], True), F64)


def empty_assembly(constraints: str) -> Build:
    """Assembly without instructions, of a vector, whose result these constraints place."""

    def build(builder: Any) -> Any:
        v = ir.VectorType(I32, 4)
        operands = [ir.Constant(v, None)] * constraints.count(",")
        kind = ir.FunctionType(v, [v] * len(operands))
        found = builder.asm(kind, "", constraints, operands, False)
        return builder.uitofp(builder.extract_element(found, I32(0)), F64)

    return build


VOID = ir.VoidType()
PLANTED: dict[str, tuple[Build, str]] = {
    "a counter": (
        counting("calls"), "has the global variable calls, which lasts from call to call"
    ),
    "a counter of the thread": (
        counting("here", storage_class="thread_local"), "has the global variable here"
    ),
    "an exported variable": (counting("shared", linkage=""), "has the global variable shared"),
    "static scratch": (static_scratch, "has the global variable scores"),
    "cached by pointer": (kept_by_pointer, "has the global variable last_weight"),
    "environ": (environment, "reads the global variable environ"),
    "clock": (calling("clock"), "calls clock"),
    "time": (calling("time", I64, BYTES), "calls time"),
    "getenv": (calling("getenv", BYTES, BYTES), "calls getenv"),
    "getpid": (calling("getpid", I32), "calls getpid"),
    "sched_getcpu": (calling("sched_getcpu", I32), "calls sched_getcpu"),
    "malloc": (calling("malloc", BYTES, I64), "calls malloc"),
    "Numba's memory": (calling("NRT_Allocate", BYTES, I64), "calls NRT_Allocate, for memory"),
    "errno": (calling("__errno_location", BYTES), "calls __errno_location"),
    "Python": (calling("PyErr_Clear", VOID), "calls PyErr_Clear"),
    "Python's pickles": (calling("numba_unpickle", BYTES, BYTES, I32, BYTES), "calls numba_unpick"),
    "fesetround": (calling("fesetround", I32, I32), "calls fesetround"),
    "another share": (calling(CALLED, VOID, I64, I64, I64), "calls called_share"),
    "the cycle counter": (calling("llvm.readcyclecounter"), "calls llvm.readcyclecounter"),
    "x86's time stamp": (calling("llvm.x86.rdtsc"), "calls llvm.x86.rdtsc"),
    "x86's random numbers": (
        calling("llvm.x86.rdrand.64", ir.LiteralStructType([I64, I32])), "calls llvm.x86.rdrand.64"
    ),
    "the rounding mode": (rounding, "calls llvm.x86.sse.ldmxcsr"),
    "the stack's address": (
        calling("llvm.returnaddress", BYTES, I32), "calls llvm.returnaddress"
    ),
    "an address": (address, "reads an absolute address"),
    "a segment": (segment, "reads memory of the thread"),
    "assembly": (assembly, "runs inline assembly"),
    "a register's old value": (empty_assembly("=v"), "runs inline assembly"),
    "a register's old value beside an operand": (empty_assembly("=v,v"), "runs inline assembly"),
    "a named register": (empty_assembly("={xmm7},0"), "runs inline assembly"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "complaint"), PLANTED.values(), ids=PLANTED.keys())
def test_state_and_environment_access_is_refused(build, complaint):
    assert complaint in construction_of(share_with(build).function)


def test_empty_assembly_is_allowed():
    """Its result is its operand, and it has no instruction."""
    assert not construction_of(share_with(empty_assembly("=v,0")).function)


def calls_an_address(args, thread, n_threads):
    """An indirect call, whose target could be anything."""
    call_share(np.uint64(thread), args, thread, n_threads)


def yields_the_core(args, thread, n_threads):
    yield_core()


def fails(args, thread, n_threads):
    """A kernel that raises, through Numba's own error function."""
    if thread > n_threads:
        raise ValueError("no such thread")


TABLE = np.arange(9.0)


def reads_a_table(args, thread, n_threads):
    """Constants are allowed."""
    x, out = arguments(args, RELU)
    for i in range(len(x)):
        out[i] = TABLE[i % 9]


@pytest.mark.parametrize(
    ("kernel", "complaint"),
    [
        (calls_an_address, "calls an address"),
        (yields_the_core, "calls sched_yield"),
        (fails, ""),
        (reads_a_table, ""),
    ],
)
def test_constructs_allowed_for_helpers_and_kernels(kernel, complaint):
    found = construction_of(kernel)
    assert found.startswith(complaint) if complaint else not found


def allocates(args, thread, n_threads):
    x, out = arguments(args, RELU)
    out[0] = np.zeros(len(x), np.float32)[0]


def returns_a_new_array(args, thread, n_threads):
    x, out = arguments(args, RELU)
    out[0] = x.copy()[0]


@pytest.mark.parametrize("kernel", [allocates, returns_a_new_array])
def test_allocations_are_refused(kernel):
    with pytest.raises(TypeError, match=f"^{kernel.__name__} makes an array.*`scratch`"):
        optimised(kernel)


def test_forbidden_kernels_are_refused_without_running():
    """The trial refuses this one, which would end the process, with one plain line."""
    kernel = Kernel("relu", "planted", share_with(calling("abort", VOID)))
    certificate = demanded(kernel)
    assert certificate.cases == 0
    assert certificate.failure == f"{kernel.share.name} calls abort"
    assert certificate.code == code_of(kernel)
