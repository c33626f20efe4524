"""kv_write on the CPU, into the cache itself: tokens are shared among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.formats.encoding import encode
from kernels.cpu.runtime.share import arguments, by_format, part
from kernels.shapes import in_place
from reference.kv_write import FORMATS_OF_CACHE, OP

SIGNATURE = in_place(OP.signature)


def write_as(tag: FormatTag) -> Callable[..., None]:
    def generic(block, thread, n_threads):
        x, cells, out = arguments(block, SIGNATURE)
        first, last = part(len(cells), thread, n_threads)
        for t in range(first, last):
            encode(tag, x[t], out[cells[t]])

    return generic


SHARES = by_format(write_as, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
