"""XTC, "exclude top choices" (p-e-w, text-generation-webui PR 6335): drop p_i >= t but one."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    NEARLY_ONE,
    ON_LOGITS,
    U64,
    cost,
    depths,
    exact,
    mask_tokens,
    most_likely_first,
    option,
    some_logits,
    total_error,
    undecided,
)
from reference.softmax import softmax


def xtc(logits: Array, probability: float, threshold: float, u: float) -> Array:
    """If the coin u in [0, 1) falls below `probability`, drop every token whose probability is at
    least `threshold`, except the least likely of them (of equals, the one with the highest id).

    A threshold above 0.5 has at most one such token, so nothing is dropped; one of 0 keeps only the
    least likely remaining token.
    logits float32 [vocab] -> [vocab].
    """
    order = most_likely_first(logits)
    choices = order[(softmax(logits) >= threshold)[order] & np.isfinite(logits)[order]]
    keep = np.ones(len(logits), bool)
    if u < probability:
        keep[choices[:-1]] = False
    return mask_tokens(logits, keep)


def make(case: Case) -> Arguments:
    """In rotation u is so near to the probability that float32 would decide differently."""
    rng = case.rng()
    coins = ((0.7, 0.7 - 2.0**-40), (1.0, NEARLY_ONE), (0.3, 0.3), (0.5, rng.random()))
    probability, u = option(case, coins)
    return {
        "logits": some_logits(case, rng),
        "probability": probability,
        "threshold": option(case, (0.01, 1e-5, 0.1, 0.0, 1e-3, 0.5, 0.3)),
        "u": u,
    }


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Tokens whose ln p is within the normaliser's error of ln threshold may be kept or dropped; if
    there are any, so may the least likely of those certainly above."""
    logits = inputs["logits"]
    if inputs["u"] >= inputs["probability"]:
        return {}
    log_sum = np.log(np.sum(np.exp(-depths(logits))))
    threshold = inputs["threshold"]
    margin = -depths(logits) - log_sum - (np.log(threshold) if threshold else -np.inf)
    error = total_error(logits) + 8 * U64 * (abs(float(logits.max())) + log_sum + 100)
    doubtful = np.abs(margin) <= error
    if doubtful.any():
        above = margin > error
        doubtful |= above & (margin == margin[above].min(initial=np.inf))
    return undecided(logits, expected["out"], doubtful)


OP = Op(
    name="xtc",
    reference=xtc,
    signature=("logits: f32[vocab], probability: f64, threshold: f64, u: f64 -> out: f32[vocab]"),
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=cost,
    laws=(*laws.filter_laws(make), *laws.XTC),
)
