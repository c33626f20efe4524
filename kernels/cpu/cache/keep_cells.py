"""keep_top and kv_keep on the CPU: KV heads are split among threads.

Selection needs no sort: the lowest kept score is searched bit by bit, as an integer that orders
like scores. Kept cells move within the cache itself, starting with the last slot: each comes from
the same slot or an earlier one, which has not been overwritten yet.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import I32, broadcast, call_llvm, constant, f32x16, load
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part, share
from kernels.cpu.samplers.prefix import key_of
from kernels.shapes import in_place
from reference.cache.keep_cells import MOVED, TOP
from reference.cache.kv_write import FORMATS_OF_CACHE

IN_PLACE = in_place(MOVED)


@intrinsic
def above(typing, v, key):
    """How many lanes of a float32 vector have a key_of integer above this one."""

    def codegen(context, builder, signature, values):
        words = v.of("i32").ir
        bits, zero = builder.bitcast(values[0], words), ir.Constant(words, None)
        size = builder.and_(bits, constant(words, 0x7FFFFFFF))
        own = builder.select(builder.icmp_signed("<", bits, zero), builder.neg(size), bits)
        least = builder.trunc(builder.sub(values[1], ir.IntType(64)(2**31)), I32)
        reaches = builder.icmp_signed(">", own, broadcast(builder, v.of("i32"), least))
        mask = ir.IntType(v.lanes)
        count = call_llvm(builder, f"llvm.ctpop.i{v.lanes}", mask, [builder.bitcast(reaches, mask)])
        return builder.zext(count, ir.IntType(64))

    return types.int64(v, types.int64), codegen


@inner
def reaching(scores, first, end, least):
    """How many scores' integers are at least this one, which is above 0."""
    count, whole = 0, first + max(0, end - first) // 16 * 16
    for j in range(first, whole, 16):
        count += above(load(f32x16, scores, j), least - 1)
    for j in range(whole, end):
        count += key_of(scores[j]) >= least
    return count


@share(TOP)
def keep_top(args, thread, n_threads):
    scores, kept, first, last, out = arguments(args, TOP)
    heads, held = scores.shape
    begin, end = part(heads, thread, n_threads)
    for g in range(begin, end):
        wanted = kept - first - last
        lowest, beyond = 0, 2**32  # at least as many as wanted reach the one, not the other
        while beyond - lowest > 1:
            middle = (lowest + beyond) // 2
            if reaching(scores[g], first, held - last, middle) >= wanted:
                lowest = middle
            else:
                beyond = middle
        equals = wanted - reaching(scores[g], first, held - last, lowest + 1)
        slot = 0
        for j in range(held):
            key = key_of(scores[g, j])
            between = first <= j < held - last
            takes = not between or key > lowest or (key == lowest and equals > 0)
            if takes and slot < kept:
                equals -= between and key == lowest
                out[g, slot] = j
                slot += 1


def move(format: str) -> Callable[..., None]:
    def kv_keep(args, thread, n_threads):
        slots, cells, into, out = arguments(args, IN_PLACE)
        heads, kept = slots.shape
        size = out.shape[1] // heads
        first, last = part(heads, thread, n_threads)
        for g in range(first, last):
            for j in range(kept - 1, -1, -1):
                source, target = cells[slots[g, j]], into[j]
                if source != target:
                    for i in range(g * size, (g + 1) * size):
                        out[target, i] = out[source, i]

    return kv_keep


SHARES: dict[str, Share] = by_format(move, IN_PLACE, {name: name for name in FORMATS_OF_CACHE})
