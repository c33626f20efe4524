"""quantise and dequantise on the CPU: rows are split among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.formats.encoding import encode, encode_weighted
from kernels.cpu.isa.sweep import over_rows
from kernels.cpu.runtime.share import by_format
from reference.weight_formats import OPS

QUANTISE, WEIGHTED, DEQUANTISE = (op.signature for op in OPS)
WRITTEN = {name: TAGS[name] for name in OPS[0].formats}


def quantise_to(tag: FormatTag) -> Callable[..., None]:
    def generic(row, x, out):
        encode(tag, x[row], out[row])

    return over_rows(QUANTISE, generic)


def weighted_to(tag: FormatTag) -> Callable[..., None]:
    def generic(row, x, importance, out):
        encode_weighted(tag, x[row], importance, out[row])

    return over_rows(WEIGHTED, generic)


def dequantise_from(tag: FormatTag) -> Callable[..., None]:
    def generic(row, data, out):
        for i in range(out.shape[1]):
            out[row, i] = element(tag, data[row], i)

    return over_rows(DEQUANTISE, generic)


QUANTISE_SHARES = by_format(quantise_to, QUANTISE, WRITTEN)
WEIGHTED_SHARES = by_format(weighted_to, WEIGHTED, {f: TAGS[f] for f in OPS[1].formats})
DEQUANTISE_SHARES = by_format(dequantise_from, DEQUANTISE, TAGS)
