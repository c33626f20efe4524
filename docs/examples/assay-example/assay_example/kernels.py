"""CPU kernels, written as shares like those in Assay's kernels/cpu."""

import math

from assay_example.l2_norm import SIGNATURE as L2_NORM
from assay_example.sums import sum_of_squares
from kernels.cpu.runtime.share import arguments, part, share
from kernels.kernel import Kernel
from reference.rms_norm import SIGNATURE as RMS_NORM


@share(RMS_NORM)
def rms_norm(args, thread, n_threads):
    x, weight, eps, out = arguments(args, RMS_NORM)
    tokens, hidden = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        factor = 1.0 / math.sqrt(sum_of_squares(x[t]) / hidden + eps)
        for i in range(hidden):
            out[t, i] = float(x[t, i]) * factor * float(weight[i])


@share(L2_NORM)
def l2_norm(args, thread, n_threads):
    x, eps, out = arguments(args, L2_NORM)
    tokens, hidden = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        length = math.sqrt(sum_of_squares(x[t]))
        factor = 1.0 / (eps if length < eps else length)  # NaN is not less than eps, so it stays
        for i in range(hidden):
            out[t, i] = float(x[t, i]) * factor


KERNELS = (
    Kernel("rms_norm", "example", rms_norm, splits="tokens"),
    Kernel("l2_norm", "example", l2_norm, splits="tokens"),
)
