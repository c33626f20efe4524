"""Filters that keep a prefix of the sorted tokens, without sorting: top_k, top_p, typical,
mirostat_v1.

Tokens are weighted (one each, or their mass) into 2,048 bins of their sort key's leading bits; the
bin where the running weight reaches the target is split by the next bits, and again, until one key
is left. So the cost is a few passes over the vocabulary, whatever k or p. `out` holds the weights
until the result replaces them.
"""

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import f32x16, max_lanes, splat, sum_lanes
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.sweep import alone, store_some
from kernels.cpu.runtime.closures import inner
from kernels.cpu.samplers.mass import GONE, chunk, highest, powers
from reference.samplers import mirostat
from reference.samplers.top_k import OP as TOP_K
from reference.samplers.top_p import OP as TOP_P
from reference.samplers.typical import OP as TYPICAL

BINS = 2048
CONSIDERED = 100  # tokens to which mirostat_v1 fits Zipf's exponent
FLATTEST = 2.0**-20


@intrinsic
def bits_of(typing, value):
    """The bits of a float32 as an int32."""

    def codegen(context, builder, signature, values):
        return builder.bitcast(values[0], ir.IntType(32))

    return types.int32(types.float32), codegen


@njit(inline="always")
def key_of(value):
    """An integer in [0, 2^32) that orders like the float32; both zeros have the same."""
    bits = np.int64(bits_of(value))
    return 2**31 + (bits if bits >= 0 else -(bits & 0x7FFFFFFF))


@njit(inline="always")
def by_logit(logit, top, centre):
    return key_of(logit)


@njit(inline="always")
def most_by_logit(lanes):
    return key_of(max_lanes(lanes))


@njit(inline="always")
def by_distance(logit, top, centre):
    """Key of the distance of the surprise top - logit, in nats, from the centre, nearest first."""
    depth = np.float64(top) - np.float64(logit)
    return key_of(np.float32(-abs(depth - centre)))


@njit(inline="always")
def most_by_distance(lanes):
    return 2**32 if max_lanes(lanes) > GONE else 0


def keeper(key, most):
    """The filter that sorts by `key`; `most` bounds the keys of sixteen logits."""

    @inner
    def crossing(logits, weights, top, centre, target):
        """The key at which the weight of larger keys is below target and with its own is not, and
        the remainder of the target. If all weigh less, a key below any."""
        bins = stack(np.float64, BINS)
        prefix, above = 0, 0.0
        for shift, width in ((21, 11), (10, 11), (0, 10)):
            least = max(prefix << (shift + width), key_of(GONE) + 1)
            bins[:] = 0.0
            for i in range(0, logits.size, 16):
                if most(chunk(logits, i)) >= least:
                    for j in range(i, min(i + 16, logits.size)):
                        k = key(logits[j], top, centre)
                        if k >> (shift + width) == prefix:
                            bins[(k >> shift) & ((1 << width) - 1)] += weights[j]
            b = (1 << width) - 1
            while b > 0 and above + bins[b] < target:
                above += bins[b]
                b -= 1
            prefix = prefix << width | b
        return prefix, target - above

    @inner
    def keep(logits, top, centre, target, out):
        """Keep tokens by descending key, ties by ascending id, while the weight before them is
        below target. The weights are in `out`."""
        edge, room = crossing(logits, out, top, centre, target)
        least = max(edge, key_of(GONE) + 1)
        for i in range(0, logits.size, 16):
            if most(chunk(logits, i)) < least:
                store_some(out, i, logits.size, splat(f32x16, GONE))
                continue
            for j in range(i, min(i + 16, logits.size)):
                k = key(logits[j], top, centre)
                if k > edge:
                    out[j] = logits[j]
                elif k == edge and room > 0:
                    room -= out[j]
                    out[j] = logits[j]
                else:
                    out[j] = GONE

    return keep


keep_by_logit = keeper(by_logit, most_by_logit)
keep_by_distance = keeper(by_distance, most_by_distance)


@inner
def keep_largest(logits, k, out):
    for i in range(logits.size):
        out[i] = 1.0 if logits[i] > GONE else 0.0
    keep_by_logit(logits, np.float32(0), 0.0, np.float64(k), out)


@alone(TOP_K.signature)
def top_k(logits, k, out):
    keep_largest(logits, k, out)


@inner
def weigh(logits, top, out):
    """Write each token's exp(logit - top) to out; returns their sum."""
    mass = 0.0
    for i in range(0, logits.size, 16):
        lanes = chunk(logits, i)
        weights = splat(f32x16, np.float32(0))
        if max_lanes(lanes) > GONE:
            weights = powers(lanes, top)
            mass += sum_lanes(weights)
        store_some(out, i, logits.size, weights)
    return mass


@inner
def mean_depth(logits, top, weights, mass):
    """The expectation of top - logit under the weights, whose sum is mass; in nats."""
    moment = 0.0
    for i in range(logits.size):
        if weights[i] > 0:
            moment += np.float64(weights[i]) * (np.float64(top) - np.float64(logits[i]))
    return moment / mass


@alone(TOP_P.signature)
def top_p(logits, p, out):
    top = highest(logits)
    mass = weigh(logits, top, out)
    keep_by_logit(logits, top, 0.0, p * mass if p < 1 else np.inf, out)


@alone(TYPICAL.signature)
def typical(logits, p, out):
    top = highest(logits)
    mass = weigh(logits, top, out)
    centre = mean_depth(logits, top, out, mass)
    # "until the sum exceeds p": the weight before a token may equal it
    target = np.nextafter(p * mass, np.inf) if p < 1 else np.inf
    keep_by_distance(logits, top, centre, target, out)


@alone(mirostat.SIGNATURE)
def mirostat_v1(logits, mu, out):
    best = stack(np.float64, CONSIDERED)
    keep_largest(logits, CONSIDERED, out)
    count = 0
    for i in range(logits.size):
        if out[i] > GONE:
            place_in_order(best, count, out[i])
            count += 1
    if count < 2:
        for i in range(len(out)):
            out[i] = logits[i]
    else:
        keep_largest(logits, wanted_k(zipf_exponent(best, count), mu, logits.size), out)


@inner
def place_in_order(best, count, value):
    """Insert into the first `count` values, which descend."""
    at = count
    while at > 0 and best[at - 1] < value:
        best[at] = best[at - 1]
        at -= 1
    best[at] = value


@inner
def zipf_exponent(best, count):
    """The slope of log probability over log rank, by least squares through neighbours."""
    products = squares = 0.0
    for i in range(count - 1):
        t = math.log((i + 2) / (i + 1))
        products += t * (best[i] - best[i + 1])
        squares += t * t
    return max(FLATTEST, products / squares)


@inner
def wanted_k(s, mu, vocab):
    e, log_vocab = s - 1, math.log(vocab)
    fraction = e / -math.expm1(-e * log_vocab) if e != 0 else 1 / log_vocab
    log_k = (math.log(fraction) + mu * math.log(2.0)) / s
    return vocab if log_k >= log_vocab else int(math.exp(max(0.0, log_k)))
