"""kv_write on the CPU, in place: tokens are split among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.formats.encoding import encode
from kernels.cpu.isa.sweep import over_rows
from kernels.cpu.runtime.share import by_format
from kernels.shapes import in_place
from reference.cache.kv_write import FORMATS_OF_CACHE, OP

SIGNATURE = in_place(OP.signature)


def write_as(tag: FormatTag) -> Callable[..., None]:
    def generic(t, x, cells, out):
        encode(tag, x[t], out[cells[t]])

    return over_rows(SIGNATURE, generic)


SHARES = by_format(write_as, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
