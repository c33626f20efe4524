"""Small shares for tests, made anew each time: nothing of them is remembered."""

from collections.abc import Callable

import numpy as np

from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, pack_words

SIGNATURE = "x: f64[n] -> out: f64[n]"


def multiplying(factor: float) -> Callable[..., None]:
    @inner
    def product(value):
        return value * factor

    def kernel(block, thread, n_threads):
        x, out = arguments(block, SIGNATURE)
        for i in range(len(x)):
            out[i] = product(x[i])

    return kernel


def share_of(factor: float) -> Share:
    return Share(lambda: multiplying(factor), SIGNATURE)


def result(share: Share) -> float:
    """What the share makes of 1."""
    values = {"x": np.ones(1), "out": np.full(1, np.nan)}
    share(pack_words(SIGNATURE, values))
    return float(values["out"][0])
