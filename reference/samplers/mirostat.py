"""Mirostat: truncate to control the surprise -log2 p (Basu et al., arXiv 2007.14966)."""

import math

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    ON_LOGITS,
    U64,
    VOCABULARIES,
    cost,
    cut_undecided,
    depths,
    exact,
    mask_tokens,
    most_likely_first,
    option,
    some_logits,
    total_error,
)
from reference.samplers.top_k import top_k

CONSIDERED = 100  # m: the most likely tokens, to which Zipf's exponent is fitted
FLATTEST = 2.0**-20  # the smallest exponent, whose inverse is taken


def mirostat_v1(logits: Array, mu: float) -> Array:
    """Top-k, with k from Zipf's law for the maximum surprise mu in bits.

    logits float32 [vocab] -> [vocab]; fewer than two tokens are unchanged.
    """
    if np.isfinite(logits).sum() < 2:
        return logits
    return top_k(logits, wanted_k(zipf_exponent(logits), mu, len(logits)))


def zipf_exponent(logits: Array) -> float:
    """s = sum t b / sum t^2 over neighbours among the m most likely tokens,
    t = ln((i + 2) / (i + 1)), b = ln(p_i / p_{i+1})."""
    best = logits[most_likely_first(logits)][:CONSIDERED].astype(np.float64)
    best = best[np.isfinite(best)]
    i = np.arange(len(best) - 1)
    t, b = np.log((i + 2) / (i + 1)), best[:-1] - best[1:]
    return max(FLATTEST, float(np.sum(t * b) / np.sum(t * t)))


def log_k(s: float, mu: float, vocab: int) -> float:
    """ln k for k = (e 2^mu / (1 - vocab^-e))^(1/s), e = s - 1."""
    e, log_vocab = s - 1, math.log(vocab)
    fraction = e / -math.expm1(-e * log_vocab) if e else 1 / log_vocab
    return (math.log(fraction) + mu * math.log(2)) / s


def wanted_k(s: float, mu: float, vocab: int) -> int:
    """k as a number of tokens, clamped to [1, vocab]."""
    wanted = log_k(s, mu, vocab)
    return vocab if wanted >= math.log(vocab) else int(math.exp(max(0.0, wanted)))


def mirostat_v2(logits: Array, mu: float) -> Array:
    """Drop tokens whose surprise -log2 p is above mu bits, but never the most likely one.

    logits float32 [vocab] -> [vocab].
    """
    surprise = (depths(logits) + np.log(np.exp(-depths(logits)).sum())) / math.log(2)
    keep = surprise <= mu
    keep[np.argmax(logits)] = True
    return mask_tokens(logits, keep)


def mirostat_mu(mu: float, surprise: float, tau: float, eta: float) -> float:
    """Update mu after a token: mu - eta (surprise - tau), in bits except for the rate eta."""
    return mu - eta * (surprise - tau)


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits = some_logits(case, rng)
    bits = math.log2(len(logits))  # the surprise of a uniform distribution
    mu = option(case, (bits, 20 * rng.random(), bits + 1, 5.0, -1.0, 10.0))
    return {"logits": logits, "mu": mu}


def also_v1(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """s has the roundings of its sums, all of like sign, and k those of s and of its formula."""
    logits, mu, vocab = inputs["logits"], inputs["mu"], len(inputs["logits"])
    if np.isfinite(logits).sum() < 2:
        return {}
    s, eta = zipf_exponent(logits), 4 * CONSIDERED * U64
    near = set()
    for nudged in (s * (1 - eta), s, s * (1 + eta)):
        wanted = log_k(nudged, mu, vocab)
        error = 16 * U64 * (abs(mu) + math.log(vocab) + s) / s
        near |= {
            min(vocab, int(math.exp(min(math.log(vocab) + 1, max(0.0, wanted + sign * error)))))
            for sign in (-1, 1)
        }
    if len(near) == 1:
        return {}
    return {"out": np.stack([top_k(logits, k) for k in range(min(near), max(near) + 1)])}


def also_v2(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The normaliser's error moves the cutoff; the most likely token is always kept."""
    logits, mu = inputs["logits"], inputs["mu"]
    log_sum, highest = np.log(np.exp(-depths(logits)).sum()), float(logits.max())
    cut = highest + log_sum - mu * math.log(2)
    error = total_error(logits) + 8 * U64 * (abs(highest) + log_sum + abs(mu))
    other = cut_undecided(logits, expected["out"], cut, error)
    other["out"][0, np.argmax(logits)] = highest
    return other


PAIRS = ({"vocab": 2}, {"vocab": 2})  # the smallest vocab with a Zipf exponent, for two mu
SIGNATURE = "logits: f32[vocab], mu: f64 -> out: f32[vocab]"
OPS = (
    Op(
        name="mirostat_v1",
        reference=mirostat_v1,
        signature=SIGNATURE,
        **{**ON_LOGITS, "corners": (*VOCABULARIES, *PAIRS)},
        make=make,
        bound=exact,
        also=also_v1,
        cost=cost,
        laws=(
            *laws.filter_laws(make),
            laws.keeps_likeliest(make),
            laws.keeps_more(make, "mu", (-20.0, 4.0, 6.0, 8.0, 60.0)),
        ),
    ),
    Op(
        name="mirostat_v2",
        reference=mirostat_v2,
        signature=SIGNATURE,
        **ON_LOGITS,
        make=make,
        bound=exact,
        also=also_v2,
        cost=cost,
        laws=(
            *laws.filter_laws(make),
            laws.keeps_likeliest(make),
            laws.keeps_more(make, "mu", (-4.0, 1.0, 3.0, 10.0, 60.0)),
            *laws.MIROSTAT_V2,
        ),
    ),
)
