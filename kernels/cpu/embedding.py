"""embedding on the CPU: tokens are shared among threads."""

from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.runtime.share import arguments, by_format, part
from reference.embedding import OP

SIGNATURE = OP.signature


def embedding_from(tag: FormatTag) -> Callable[..., None]:
    def generic(block, thread, n_threads):
        tokens, weight, out = arguments(block, SIGNATURE)
        first, last = part(len(tokens), thread, n_threads)
        for t in range(first, last):
            row = weight[tokens[t]]
            for i in range(out.shape[1]):
                out[t, i] = element(tag, row, i)

    return generic


SHARES = by_format(embedding_from, SIGNATURE, TAGS)
