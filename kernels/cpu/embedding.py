"""embedding on the CPU: tokens are split among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.isa.sweep import over_rows
from kernels.cpu.runtime.share import by_format
from reference.embedding import OP

SIGNATURE = OP.signature


def embedding_from(tag: FormatTag) -> Callable[..., None]:
    def generic(t, tokens, weight, out):
        row = weight[tokens[t]]
        for i in range(out.shape[1]):
            out[t, i] = element(tag, row, i)

    return over_rows(SIGNATURE, generic)


SHARES = by_format(embedding_from, SIGNATURE, TAGS)
