"""Block formats split into the bit planes that CUDA kernels read
(kernels/cuda/formats/packing.py)."""

from collections.abc import Callable
from functools import cache, partial

from numba import types

from kernels.cpu.formats.decoding import CODINGS, code_at
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS
from kernels.cpu.isa.simd import convert, f16x1, f32x1, load, splat, store
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part
from reference.formats import FORMATS

SIGNATURE = "weight: u8[blocks block_bytes], begins: i64[planes] -> out: u8[packed]"


def sizes(format: str) -> tuple[int, ...]:
    """Bytes in each plane of a block."""
    layout, blocks = LAYOUTS[format], FORMATS[format].block // BLOCK
    integers = layout.parts * (layout.integer_scales + (layout.mins and not layout.packed_scales))
    codes = [4 * bits * blocks for bits in layout.planes]
    return (*codes, *([integers * blocks] if integers else []), 2 * (1 + layout.m))


@cache
def packer(format: str) -> Share:
    """Writes blocks into planes, which begin as zeros."""
    return Share(partial(packing, format), SIGNATURE, format)


def packing(format: str) -> Callable[..., None]:
    layout, coding, per_block = LAYOUTS[format], CODINGS[format], FORMATS[format].block // BLOCK
    part_of, min_of = coding.parts_at()
    copied, d_of, d, m = coding.scale is None, coding.d_at(), coding.d, coding.m or 0
    planes, parts = layout.planes, layout.parts
    zero_point = 0 if planes == (8,) else layout.zero_point
    code_of = code_at(coding.integer, layout.table, zero_point)
    integers, mins, packed, has_m = (
        layout.integer_scales,
        layout.mins,
        layout.packed_scales,
        layout.m,
    )
    bytes_of_integers, scales = parts * (integers + (mins and not packed)), len(sizes(format)) - 1

    @inner
    def put_code(out, begins, at, j, code):
        c, low, plane = j // 4, 0, 0
        for bits in planes:
            byte = begins[plane] + 4 * (at * bits + c % bits) + j % 4
            out[byte] |= (code >> low & ((1 << bits) - 1)) << bits * (c // bits)
            low, plane = low + bits, plane + 1

    def pack(args, thread, n_threads):
        weight, begins, out = arguments(args, SIGNATURE)
        first, last = part(weight.shape[0], thread, n_threads)
        for n in range(first, last):
            data, end = weight[n], begins[scales] + 2 * (1 + has_m) * n
            for b in range(per_block):
                at = n * per_block + b
                for j in range(BLOCK):
                    put_code(out, begins, at, j, code_of(data, 0, BLOCK * b + j))
                for p in range(parts):
                    j = b * BLOCK + p * (BLOCK // parts)
                    byte = begins[scales - 1] + at * bytes_of_integers + p
                    if integers:
                        own = part_of(data, 0, j)
                        out[byte] = (own | min_of(data, 0, j) << 4 if packed else own) & 255
                    if mins and not packed:
                        out[byte + parts] = min_of(data, 0, j)
            if copied:
                store(out, end, load(types.uint16, data, d))
            else:
                store(out, end, convert(f16x1, splat(f32x1, d_of(data, 0, 0))))
            if has_m:
                store(out, end + 2, load(types.uint16, data, m))

    return pack
