"""attention on the CPU, plainly: two passes over a token's cells, one element at a time. For any
head_dim, and as the fallback: (token, head) pairs are split among threads."""

import math
from collections.abc import Callable

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.runtime.share import arguments, by_format, part
from reference.attention.attention import OP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS

SIGNATURE = OP.signature


def plain(tag: FormatTag) -> Callable[..., None]:
    layout = FORMATS[tag.format]
    block_elements, block_bytes = layout.block, layout.block_bytes

    def scalar(args, thread, n_threads):
        (
            q, k, v, lists, spans, positions, cell_positions, slopes, sinks, scale, softcap, out,
        ) = arguments(args, SIGNATURE)  # fmt: skip
        tokens, heads, head_dim = q.shape
        group = heads * head_dim // (k.shape[1] // block_bytes * block_elements)
        first, last = part(tokens * heads, thread, n_threads)
        for item in range(first, last):
            t, h = item // heads, item % heads
            cells = lists[spans[t, 0]]
            column = h // group * head_dim
            sink = float(sinks[h])
            highest, total = sink, 0.0
            for passes in range(2):  # find the largest score, then sum what exp makes of them
                out[t, h, :] = 0
                total = math.exp(sink - highest) if passes else 0.0
                for j in range(spans[t, 1], spans[t, 2]):
                    cell = cells[j]
                    dot = 0.0
                    for d in range(head_dim):
                        dot += float(q[t, h, d]) * element(tag, k[cell], column + d)
                    score = dot * scale
                    if softcap != 0.0:
                        score = softcap * math.tanh(score / softcap)
                    score -= slopes[h] * (positions[t] - cell_positions[cell])
                    if passes == 0:
                        highest = max(highest, score)
                    else:
                        weight = math.exp(score - highest)
                        total += weight
                        for d in range(head_dim):
                            out[t, h, d] += weight * element(tag, v[cell], column + d)
            for d in range(head_dim):
                if spans[t, 2] > spans[t, 1]:
                    out[t, h, d] /= total

    return scalar


SHARES = by_format(plain, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
