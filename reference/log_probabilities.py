"""Log-probabilities in 16 bits, as llama.cpp stores a base run's, and the KL divergence from them
to another model's logits, sum p (ln p - ln q) (Kullback and Leibler, 1951)."""

import numpy as np

from reference.bounds import EXP, TINY, U, gamma
from reference.laws import log_probabilities as laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.samplers.distribution import (
    LARGEST,
    ON_LOGITS,
    SIZES,
    U64,
    no_token,
    plateau,
    some_logits,
    total_error,
)

STEPS = 65535  # the likeliest token's code
DEEPEST = 16.0  # nats below the likeliest token, where log-probabilities are clipped
FORGOTTEN = -16.0  # tokens with ln p <= -16 are skipped


def quantise_log_probabilities(logits: Array) -> tuple[Array, Array]:
    """code = (logit - low) / scale to the nearest, ties to even, with low = max(min, max - 16) and
    scale = (max - low) / 65535; a token's log-probability is then scale * code + least, where least
    = low - log_sum_exp.

    logits float32 [vocab] -> codes uint16 [vocab], line [2]: scale and least in nats. Codes and
    scale are defined in float32, so that every correct kernel gives the same bits. (Almost) equal
    logits have scale 0 and codes 0.
    """
    top = logits.max()
    low = np.maximum(logits.min(), top - np.float32(DEEPEST))
    scale = (top - low) / np.float32(STEPS)
    scale = scale if scale >= TINY else np.float32(0)
    codes = np.zeros(logits.shape, np.uint16)
    if scale:
        inverse = np.float32(1) / scale
        above = logits > low
        codes[above] = np.rint(inverse * (logits[above] - low))
    depths = np.exp(logits.astype(np.float64) - np.float64(top))
    least = np.float64(low) - np.float64(top) - np.log(depths.sum())
    return codes, np.array([scale, least])


def decoded(codes: Array, line: Array) -> Array:
    """Dequantised log-probabilities, float64 [vocab]."""
    scale, least = line.astype(np.float64)
    return np.asarray(scale * codes + least)


def kl_divergence(logits: Array, codes: Array, line: Array) -> Array:
    """sum p (ln p - ln q) in nats over the tokens with ln p > -16, where p is decoded from the
    codes and q is the softmax of the logits.

    logits float32 [vocab], codes uint16 [vocab], line float32 [2] -> float64 [1]. The cutoff is
    that of llama.cpp's perplexity tool: clipping raised the probabilities of the skipped tokens. So
    p need not sum to one, and the result is at least S ln S, with S the sum of p over the tokens
    that count, which may be slightly negative.
    """
    base, fitted = decoded(codes, line), logits.astype(np.float64)
    fitted -= fitted.max()  # first, or a large one would swallow the logarithm
    fitted -= np.log(np.exp(fitted).sum())
    counts = base > FORGOTTEN
    p = np.exp(base[counts])
    return np.array([np.sum(p * (base[counts] - fitted[counts]))])


def make_quantise(case: Case) -> Arguments:
    return {"logits": some_logits(case, case.rng())}


def bound_quantise(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero where the definition fixes every bit; for `least` the sum's relative error, which the
    logarithm makes absolute, and the rounding to float32."""
    least = total_error(inputs["logits"]) + 8 * U64 + U * np.abs(expected["line"][1]) + TINY
    return {"codes": np.zeros(expected["codes"].shape), "line": np.array([0, least])}


def make_divergence(case: Case) -> Arguments:
    """The base has other logits, or in half of all cases nearly the same."""
    rng, vocab = case.rng(), case.shape["vocab"]
    logits, other = case.array(rng, vocab), case.array(rng, vocab)
    if vocab > max(SIZES):
        logits, other = plateau(logits, rng), plateau(other, rng)
    if case.seed % 2:
        other = logits + np.float32(0.01) * other
    codes, line = quantise_log_probabilities(other)
    return {"logits": logits, "codes": codes, "line": line.astype(np.float32)}


def bound_divergence(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A term has the errors of ln p, ln q and p, which exp derives from ln p's; if ln p is nearer
    to the cutoff than its rounding, the whole term is in doubt. Code 0 is `least`, unrounded. ln q
    is (logit - max) - ln sum. Second-order errors are covered by a factor of 1.001."""
    codes, line = inputs["codes"], inputs["line"]
    base = decoded(codes, line)
    depth = inputs["logits"].astype(np.float64) - np.float64(inputs["logits"].max())
    sum_error = total_error(inputs["logits"])
    log_sum = np.log(np.exp(depth).sum())
    of_base = np.where(codes > 0, U * (base - np.float64(line[1]) + np.abs(base)), 0)
    gap = base - depth
    difference = gap + log_sum
    of_difference = of_base + U * (np.abs(depth) + np.abs(gap) + np.abs(difference) + log_sum)
    of_difference += sum_error + 8 * U64
    p = np.exp(base)
    term = p * np.abs(difference)
    error = p * of_difference + term * (EXP + of_base + gamma(8) + len(base) * 2 * U64)
    doubtful = (codes > 0) & (np.abs(base - FORGOTTEN) <= of_base)
    counts = (base > FORGOTTEN) | doubtful
    total = error[counts].sum() + term[doubtful].sum()
    return {"out": np.array([total * (1 + 2.0**-10) + TINY])}


def complaint(inputs: Arguments) -> str:
    for name in ("line", "logits"):
        if not np.isfinite(inputs[name]).all():
            return f"{name} holds NaN or infinity"
    return no_token(inputs)


def cost_quantise(shape: Shape, format: str | None) -> Cost:
    return Cost(6 * shape["vocab"], 6 * shape["vocab"])


def cost_divergence(shape: Shape, format: str | None) -> Cost:
    return Cost(6 * shape["vocab"], 12 * shape["vocab"])


OPS = (
    Op(
        name="quantise_log_probabilities",
        reference=quantise_log_probabilities,
        signature="logits: f32[vocab] -> codes: u16[vocab], line: f32[2]",
        **ON_LOGITS,
        make=make_quantise,
        bound=bound_quantise,
        cost=cost_quantise,
        complaint=no_token,
        laws=laws.QUANTISE,
    ),
    Op(
        name="kl_divergence",
        reference=kl_divergence,
        signature="logits: f32[vocab], codes: u16[vocab], line: f32[2] -> out: f64[1]",
        **{**ON_LOGITS, "largest": LARGEST / 16},  # sixteen terms are added in float32
        make=make_divergence,
        bound=bound_divergence,
        cost=cost_divergence,
        complaint=complaint,
        laws=laws.DIVERGENCE,
    ),
)
