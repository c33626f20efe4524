"""linear in plain scalar loops over the file's own layout: variant `scalar`.

Slow, and correct on any machine: the engine's fallback when a faster variant has no certificate.
Activations stay float32 whatever the weight's format.
"""

from collections.abc import Callable

import numpy as np

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.runtime.share import arguments, by_format, part
from reference.linear import OP

SIGNATURE = OP.signature


def scalar_kernel(tag: FormatTag) -> Callable[..., None]:
    def scalar(args, thread, n_threads):
        x, weight, out = arguments(args, SIGNATURE)
        tokens, hidden = x.shape
        first, last = part(out.shape[1], thread, n_threads)
        for row in range(first, last):
            for t in range(tokens):
                total = np.float32(0)
                for k in range(hidden):
                    total += element(tag, weight[row], k) * x[t, k]
                out[t, row] = total

    return scalar


SHARES = by_format(scalar_kernel, SIGNATURE, TAGS)
