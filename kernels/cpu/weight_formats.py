"""quantise and dequantise on the CPU: rows are shared among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.formats.encoding import encode, encode_weighted
from kernels.cpu.runtime.share import arguments, by_format, part
from reference.weight_formats import OPS

QUANTISE, WEIGHTED, DEQUANTISE = (op.signature for op in OPS)
WRITTEN = {name: TAGS[name] for name in OPS[0].formats}


def quantise_to(tag: FormatTag) -> Callable[..., None]:
    def generic(block, thread, n_threads):
        x, out = arguments(block, QUANTISE)
        first, last = part(x.shape[0], thread, n_threads)
        for row in range(first, last):
            encode(tag, x[row], out[row])

    return generic


def weighted_to(tag: FormatTag) -> Callable[..., None]:
    def generic(block, thread, n_threads):
        x, importance, out = arguments(block, WEIGHTED)
        first, last = part(x.shape[0], thread, n_threads)
        for row in range(first, last):
            encode_weighted(tag, x[row], importance, out[row])

    return generic


def dequantise_from(tag: FormatTag) -> Callable[..., None]:
    def generic(block, thread, n_threads):
        data, out = arguments(block, DEQUANTISE)
        first, last = part(out.shape[0], thread, n_threads)
        for row in range(first, last):
            for i in range(out.shape[1]):
                out[row, i] = element(tag, data[row], i)

    return generic


QUANTISE_SHARES = by_format(quantise_to, QUANTISE, WRITTEN)
WEIGHTED_SHARES = by_format(weighted_to, WEIGHTED, {f: TAGS[f] for f in OPS[1].formats})
DEQUANTISE_SHARES = by_format(dequantise_from, DEQUANTISE, TAGS)
