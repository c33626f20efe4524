"""Vector instructions that only x86-64 has; each names the CPU feature it needs."""

from collections.abc import Iterable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    I32,
    bf16x32,
    broadcast,
    call_llvm,
    constant,
    lanewise,
    narrow_to_bf16,
    shuffle,
    suffix,
)

I16 = ir.IntType(16)


def in_order(builder: Any, values: Iterable[Any]) -> list[Any]:
    """These vectors and integers, of which LLVM knows nothing from here on, so that it computes
    nothing of one before all are there. It takes no instruction."""
    given = list(values)
    kinds, places = [v.type for v in given], range(len(given))
    registers = ("=r" if isinstance(kind, ir.IntType) else "=v" for kind in kinds)
    words = ",".join([*registers, *map(str, places)])
    result = ir.LiteralStructType(kinds) if len(given) > 1 else kinds[0]
    kept = builder.call(ir.InlineAsm(ir.FunctionType(result, kinds), "", words), given)
    return [builder.extract_value(kept, i) for i in places] if len(given) > 1 else [kept]


@lanewise
def to_unsigned(builder, kind, v):
    """Each signed byte plus 128."""
    return builder.xor(v, constant(kind.ir, -128))


def looked_up(builder: Any, index: Any, table: Sequence[int]) -> Any:
    """Table lookup of each byte by its four low bits, bits five to eight being zero: i8x32 (AVX2)
    or i8x64 (AVX-512)."""
    values = ir.Constant(index.type, [*table] * (index.type.count // 16))
    return shuffled(builder, values, index)


@intrinsic
def picked(typing, table, codes, shift):
    """f32x16: of a table of sixteen, the one that each byte's or word's four bits from `shift` on
    name (AVX-512)."""

    def codegen(context, builder, signature, values):
        words = ir.VectorType(I32, table.lanes)
        moved = broadcast(builder, table.of("i32"), builder.trunc(values[2], I32))
        wide = values[1] if codes.element == "i32" else builder.zext(values[1], words)
        index = builder.lshr(wide, moved)
        name = "llvm.x86.avx512.permvar.sf.512"
        return call_llvm(builder, name, table.ir, [values[0], index])

    return table(table, codes, types.intp), codegen


def shuffled(builder: Any, tables: Any, index: Any) -> Any:
    """`looked_up` in a table of sixteen bytes for each sixteen of `index`; a shorter table is
    repeated."""
    lanes = index.type.count
    name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}[lanes]
    tables = shuffle(builder, tables, tables, [i % tables.type.count for i in range(lanes)])
    return call_llvm(builder, name, index.type, [tables, index])


def permuted(builder: Any, table: Any, index: Any) -> Any:
    """Each byte's value of 64, by its six low bits: of i8x64 (AVX-512 VBMI)."""
    return call_llvm(builder, "llvm.x86.avx512.permvar.qi.512", index.type, [table, index])


def permuted_of_two(builder: Any, low: Any, high: Any, index: Any) -> Any:
    """Each byte's value of 128, by its seven low bits: of i8x64 (AVX-512 VBMI)."""
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    return call_llvm(builder, name, index.type, [low, index, high])


def dots_of_bytes(builder: Any, unsigned: Any, signed: Any) -> Any:
    """Two neighbours' products added in int16, which saturates: of i8x32 (AVX2) or i8x64 (AVX-512
    BW)."""
    lanes = unsigned.type.count
    name = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}[lanes]
    return call_llvm(builder, name, ir.VectorType(I16, lanes // 2), [unsigned, signed])


def dots_of_fours(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """See `dot4`."""
    words = [sums, *(builder.bitcast(v, sums.type) for v in (unsigned, signed))]
    name = f"llvm.x86.avx512.vpdpbusd.{32 * sums.type.count}"
    return call_llvm(builder, name, sums.type, words)


def dots_of_halves(builder: Any, a: Any, b: Any) -> Any:
    """Two neighbours' products added in int32: of i16x16 (AVX2) or i16x32 (AVX-512 BW)."""
    lanes = a.type.count
    name = {16: "llvm.x86.avx2.pmadd.wd", 32: "llvm.x86.avx512.pmaddw.d.512"}[lanes]
    return call_llvm(builder, name, ir.VectorType(I32, lanes // 2), [a, b])


def with_sign_of(builder: Any, v: Any, sign: Any) -> Any:
    """Each byte of v negated where `sign` is negative, and zero where it is zero: i8x32 (AVX2)."""
    return call_llvm(builder, "llvm.x86.avx2.psign.b", v.type, [v, sign])


@intrinsic
def dot4(typing, sums, unsigned, signed):
    """sums + the dot of each lane's four unsigned with its four signed bytes: i32x16 and i8x64
    (AVX-512 VNNI), or i32x8 and i8x32 (AVX-VNNI, or AVX-512 VNNI and VL). Sums wrap around."""

    def codegen(context, builder, signature, values):
        return dots_of_fours(builder, *values)

    return sums(sums, unsigned, signed), codegen


@intrinsic
def dot2(typing, sums, a, b):
    """f32x16: sums + a[2i+1] b[2i+1], rounded, then + a[2i] b[2i], rounded (AVX-512 BF16).

    a and b are bf16x32. Subnormal inputs count as zero and subnormal results become zero.
    """

    def codegen(context, builder, signature, values):
        i32x16 = ir.VectorType(I32, sums.lanes)
        pairs = [values[0], *(builder.bitcast(v, i32x16) for v in values[1:])]
        return call_llvm(builder, "llvm.x86.avx512bf16.dpbf16ps.512", sums.ir, pairs)

    return sums(sums, a, b), codegen


def _narrowed(builder: Any, hardware: bool, first: Any, second: Any) -> Any:
    """Two f32x16 concatenated as one bf16x32 (AVX-512 BF16, or portable code)."""
    if hardware:
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        return call_llvm(builder, name, bf16x32.ir, [second, first])
    low, high = (narrow_to_bf16(builder, v, 16) for v in (first, second))
    return shuffle(builder, low, high, range(32))


def _paired(builder: Any, hardware: bool, first: Any, second: Any) -> Any:
    both = _narrowed(builder, hardware, first, second)
    return shuffle(builder, both, both, [i // 2 + i % 2 * 16 for i in range(32)])


def _of_two(made: Any, hardware: bool) -> Any:
    """An intrinsic of two f32x16 -> bf16x32, generated by made(builder, hardware, first,
    second)."""

    @intrinsic
    def one(typing, first, second):
        def codegen(context, builder, signature, values):
            return made(builder, hardware, *values)

        return bf16x32(first, second), codegen

    return one


def narrow(hardware: bool) -> Any:
    """An intrinsic of two f32x16: both as one bf16x32, round to nearest even; the instruction
    flushes subnormal numbers to zero."""
    return _of_two(_narrowed, hardware)


def in_pairs(hardware: bool) -> Any:
    """An intrinsic of two f32x16: the two of every lane side by side, as bf16x32."""
    return _of_two(_paired, hardware)


def scaled_pairs(hardware: bool, shifts: bool) -> Any:
    """An intrinsic of (codes, scale, offset): for the first and the last two of every lane's four
    codes, which are not negative, code * scale + offset, rounded to float32 and then to bfloat16:
    bf16x32, a lane's two side by side.

    codes i8x64; scale four f32x16, each a 256th of the one before, for codes that stay at their
    place in a word; or, of scales so small that a 256th is none, all the same, and it `shifts`."""
    lanes = 16

    @intrinsic
    def pairs(typing, codes, scale, offset):
        def codegen(context, builder, signature, values):
            words = builder.bitcast(values[0], ir.VectorType(I32, lanes))

            def value(byte: int) -> Any:
                code = builder.and_(words, constant(words.type, 255 << 8 * byte))
                if shifts:
                    code = builder.lshr(code, constant(words.type, 8 * byte))
                times = builder.extract_value(values[1], byte)
                factors = [builder.uitofp(code, offset.ir), times, values[2]]
                return call_llvm(builder, f"llvm.fma.{suffix(offset)}", offset.ir, factors)

            def pair(first: int) -> Any:
                return _paired(builder, hardware, value(first), value(first + 1))

            return context.make_tuple(builder, signature.return_type, [pair(0), pair(2)])

        return types.UniTuple(bf16x32, 2)(codes, scale, offset), codegen

    return pairs
