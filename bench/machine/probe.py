"""Shares that only move memory or multiply: how fast this machine can be at most.

They are run by the same team of threads as kernels. Each repeats its work as often as its first
argument says, so that a sample lasts milliseconds, and leaves a result that proves the number of
loads or operations: if it is right, nothing was optimised away. Stores are plain ones, as in every
kernel here: they first fetch the line they write. A kernel with non-temporal stores would move less
than it counts, and would need a probe that does the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.isa.amx import request
from kernels.cpu.isa.simd import (
    I32,
    Vector,
    address_of,
    call_llvm,
    fma,
    less,
    load,
    prefetch,
    splat,
    store,
    zero,
)
from kernels.cpu.runtime.share import Share, arguments, by_format, part, share
from kernels.provenance import cpu_features

I8, I64 = ir.IntType(8), ir.IntType(64)
X86 = llvm.get_process_triple().startswith("x86")
BITS = 512 if "avx512f" in cpu_features() else 256 if "avx" in cpu_features() else 128

# One step of a loop fills eight registers: enough sums in flight to hide the latency of adding.
STEP = 8 * BITS // 32  # elements of 4 bytes
FLOATS, WORDS = Vector("f32", STEP), Vector("i32", STEP)

READ = "repeats: i64, streams: i64, x: i32[size] -> out: i32[lanes]"
WRITE = "repeats: i64, k: f64, x: f32[size], y: f32[size] -> out: f32[size]"
# Prefetch distance in elements, and cache level (3 the first, 2 the second): the best choice
# differs between CPUs by a seventh.
AHEAD, FAR = (512, 3), (2048, 2)
LINE = 16  # elements of a cache line


def reading(asks: tuple[int, int]) -> Callable[..., None]:
    """A reader that prefetches so many elements ahead; 0 leaves prefetching to the CPU."""
    ahead, cache = asks

    def read(args, thread, n_threads):
        """Minus the sum of x, in STEP lanes per thread; each part is read as `streams` at once."""
        repeats, streams, x, out = arguments(args, READ)
        first, last = part(x.size // STEP, thread, n_threads)
        length = (last - first) // streams
        sums = zero(WORDS)
        for _ in range(repeats):
            for i in range(first, first + length):
                for s in range(streams):
                    start = (i + s * length) * STEP
                    if ahead:
                        for line in range(STEP // LINE):
                            prefetch(x, start + ahead + line * LINE, cache)
                    sums = less(sums, load(WORDS, x, start))
        store(out, thread * STEP, sums)

    return read


WAYS = {"plain": (0, 3), "ahead": AHEAD, "far": FAR}
READS: dict[str, Share] = by_format(reading, READ, WAYS)


@share(WRITE)
def copy(args, thread, n_threads):
    """out = x"""
    repeats, _, x, _, out = arguments(args, WRITE)
    first, last = part(x.size // STEP, thread, n_threads)
    for _ in range(repeats):
        for i in range(first, last):
            store(out, i * STEP, load(FLOATS, x, i * STEP))


@share(WRITE)
def triad(args, thread, n_threads):
    """out = x + k * y"""
    repeats, k, x, y, out = arguments(args, WRITE)
    first, last = part(x.size // STEP, thread, n_threads)
    for _ in range(repeats):
        for i in range(first, last):
            at = i * STEP
            store(out, at, fma(splat(FLOATS, k), load(FLOATS, y, at), load(FLOATS, x, at)))


Step = Callable[[Any, Any, Any, Any], Any]  # builder, sums, x, y -> sums
Emit = Callable[[Any, Any, Any, Any], None]  # builder, ones, sums, repeats: the whole loop


# What an arithmetic multiplies, and its sums' type: the contents of memory, and of the result.
ELEMENTS = {"f32": ("f4", "f4"), "bf16": ("u2", "f4"), "int8": ("u1", "u4")}


@dataclass(frozen=True, slots=True)
class Unit:
    """A way to multiply and add: the CPU features it needs and its loop.

    The loop reads `operand` from memory full of it, in the type that ELEMENTS gives. Every repeat
    increases each of the sums, `sums` numbers of 4 bytes, by `raises`, and does `operations`, a
    multiply-add being two.
    """

    arithmetic: str
    requires: frozenset[str]
    emit: Emit
    operand: int | float
    sums: int
    raises: int
    operations: int


def hidden(builder: Any, value: Any) -> Any:
    """The value, opaque to the optimiser, so that it cannot assume that repeats are the same."""
    register = "v" if X86 else "w"  # a vector register of x86 or ARM
    kind = ir.FunctionType(value.type, [value.type])
    return builder.call(ir.InlineAsm(kind, "", f"={register},0", True), [value])


ONE_IN_BF16 = 0x3F80
CHAINS = 12 if X86 else 24  # sums in flight: latency times units of the widest CPUs, or more


def chains(kind: ir.VectorType, step: Step) -> Emit:
    """CHAINS independent sums of this type, each advanced once a repeat."""

    def emit(builder: Any, ones: Any, sums: Any, repeats: Any) -> None:
        ones, sums = (builder.bitcast(p, kind.as_pointer()) for p in (ones, sums))

        def value_at(pointer: Any, i: int) -> Any:
            value = builder.load(builder.gep(pointer, [I64(i)]))
            value.align = 1
            return value

        x = cgutils.alloca_once_value(builder, value_at(ones, 0))
        y = [value_at(ones, i) for i in range(CHAINS)]
        held = [cgutils.alloca_once_value(builder, value_at(sums, i)) for i in range(CHAINS)]
        with cgutils.for_range(builder, repeats):
            builder.store(hidden(builder, builder.load(x)), x)
            for i in range(CHAINS):
                builder.store(step(builder, builder.load(held[i]), builder.load(x), y[i]), held[i])
        for i in range(CHAINS):
            builder.store(builder.load(held[i]), builder.gep(sums, [I64(i)])).align = 1

    return emit


def _vector(element: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def one_instruction(arithmetic: str, instruction: str, bits: int, *requires: str) -> Unit:
    """Sums of 32 bits that an instruction advances by x * x: of a float, or of all the bfloat16 or
    bytes that the same 32 bits hold."""
    operand, products = {"f32": (1.0, 1), "bf16": (ONE_IN_BF16, 2), "int8": (1, 4)}[arithmetic]
    count = CHAINS * bits // 32
    kind = _vector(I32 if arithmetic == "int8" else ir.FloatType(), bits // 32)
    factor = _vector(I32, bits // 32) if arithmetic == "bf16" else kind

    def step(builder: Any, sums: Any, x: Any, y: Any) -> Any:
        factors = [builder.bitcast(v, factor) for v in (x, x)]
        return call_llvm(builder, f"llvm.{instruction}", kind, [sums, *factors])

    emit = chains(kind, step)
    return Unit(
        arithmetic, frozenset(requires), emit, operand, count, products, 2 * products * count
    )


def pairs(bits: int, to_16: str, to_32: str, *requires: str) -> Unit:
    """int8 on x86 without VNNI: products added in pairs to 16 bits, those in pairs to 32."""
    lanes = bits // 32
    bytes_, words, kind = (
        _vector(I8, 4 * lanes),
        _vector(ir.IntType(16), 2 * lanes),
        _vector(I32, lanes),
    )

    def step(builder: Any, sums: Any, x: Any, y: Any) -> Any:
        factors = [builder.bitcast(v, bytes_) for v in (x, y)]
        products = call_llvm(builder, f"llvm.x86.{to_16}", words, factors)
        ones = ir.Constant(words, [1] * (2 * lanes))
        return builder.add(sums, call_llvm(builder, f"llvm.x86.{to_32}", kind, [products, ones]))

    count = CHAINS * lanes
    return Unit("int8", frozenset(requires), chains(kind, step), 1, count, 4, 8 * count)


def tiles(arithmetic: str, product: str, operand: int, depth: int) -> Unit:
    """AMX: four products of 16 x `depth` by `depth` x 16 elements, in 64 bytes, into four tiles."""
    size, void = 1024, ir.VoidType()
    config = bytearray(64)
    config[0] = 1
    for tile in range(8):
        config[16 + 2 * tile], config[48 + tile] = 64, 16  # bytes a row, rows

    def emit(builder: Any, ones: Any, sums: Any, repeats: Any) -> None:
        def amx(name: str, *values: Any) -> None:
            call_llvm(builder, f"llvm.x86.{name}", void, list(values))

        stored = ir.Constant(ir.ArrayType(I8, 64), config)
        amx(
            "ldtilecfg",
            builder.bitcast(cgutils.alloca_once_value(builder, stored), I8.as_pointer()),
        )
        for tile in range(8):
            source = ones if tile >= 4 else builder.gep(sums, [I64(tile * size)])
            amx("tileloadd64", I8(tile), source, I64(64))
        with cgutils.for_range(builder, repeats):
            for tile, left, right in ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)):
                amx(product, I8(tile), I8(left), I8(right))
        for tile in range(4):
            amx("tilestored64", I8(tile), builder.gep(sums, [I64(tile * size)]), I64(64))
        amx("tilerelease")

    requires = frozenset({f"amx-{arithmetic}", "amx-tile"})
    return Unit(arithmetic, requires, emit, operand, size, depth, 2 * 4 * 16 * 16 * depth)


UNITS: dict[str, Unit] = {
    "fma": one_instruction("f32", "fmuladd.v4f32", 128),
    "avx2 fma": one_instruction("f32", "fmuladd.v8f32", 256, "avx2", "fma"),
    "avx512 fma": one_instruction("f32", "fmuladd.v16f32", 512, "avx512f"),
    "avx2": pairs(256, "avx2.pmadd.ub.sw", "avx2.pmadd.wd", "avx2"),
    "avx512": pairs(512, "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512", "avx512bw"),
    "avx_vnni": one_instruction("int8", "x86.avx512.vpdpbusd.256", 256, "avxvnni"),
    "avx512_vnni": one_instruction("int8", "x86.avx512.vpdpbusd.512", 512, "avx512vnni"),
    "avx512_bf16": one_instruction("bf16", "x86.avx512bf16.dpbf16ps.512", 512, "avx512bf16"),
    "amx": tiles("int8", "tdpbssd", 1, 64),
    "amx_bf16": tiles("bf16", "tdpbf16ps", ONE_IN_BF16, 32),
}

PEAK = "repeats: i64, ones: u8[bytes] -> sums: u8[threads bytes]"


@intrinsic(prefer_literal=True)
def spin(typing, unit, ones, sums, thread, repeats):
    """Run a unit's loop on this thread's sums."""
    emit = UNITS[unit.literal_value].emit

    def codegen(context, builder, signature, values):
        _, ones_, sums_, thread_, repeats_ = values
        start = address_of(context, builder, signature.args[1], [ones_, I64(0)], I8)
        stride = context.make_array(signature.args[2])(context, builder, sums_).strides
        offset = builder.mul(thread_, builder.extract_value(stride, 0))
        emit(
            builder,
            start,
            address_of(context, builder, signature.args[2], [sums_, offset], I8),
            repeats_,
        )
        return context.get_dummy_value()

    return types.void(unit, ones, sums, types.intp, types.int64), codegen


def peak_kernel(unit: str) -> Callable[..., None]:
    def peak(args, thread, n_threads):
        repeats, ones, sums = arguments(args, PEAK)
        spin(unit, ones, sums, thread, repeats)

    return peak


PEAKS: dict[str, Share] = by_format(peak_kernel, PEAK, {name: name for name in UNITS})


def available() -> dict[str, Unit]:
    """The units of this machine that a process may use."""
    features = cpu_features()
    found = {name: unit for name, unit in UNITS.items() if unit.requires <= features}
    tiled = {name for name in found if name.startswith("amx")}
    if tiled and not request():
        return {name: unit for name, unit in found.items() if name not in tiled}
    return found
