"""Top-p (nucleus, Holtzman et al., arXiv 1904.09751): the smallest set with sum p_i >= p."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    NEARLY_ONE,
    ON_LOGITS,
    cost,
    exact,
    mask_tokens,
    most_likely_first,
    option,
    prefix_undecided,
    some_logits,
)
from reference.softmax import softmax


def top_p(logits: Array, p: float) -> Array:
    """Keep the smallest prefix of the tokens, most likely first, whose probabilities sum to >= p.

    Equals are ordered by id. So a token is kept if the sum before it is less than p; the first
    always is, and p >= 1 keeps all. logits float32 [vocab], p > 0 -> [vocab].
    """
    order = most_likely_first(logits)
    probability = softmax(logits)[order]
    before = np.cumsum(probability) - probability
    keep = np.empty(len(logits), bool)
    keep[order] = (before < p) | (p >= 1)
    return mask_tokens(logits, keep)


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits, some = some_logits(case, rng), rng.random()
    p = option(case, (some, 0.95, 0.9999, 1.0, 0.3, NEARLY_ONE, 1e-30, 0.7, 0.01))
    return {"logits": logits, "p": p}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The order is exact; the sums have errors."""
    logits, p = inputs["logits"], inputs["p"]
    if p >= 1:
        return {}
    score = -logits.astype(np.float64)
    return prefix_undecided(logits, expected["out"], score, np.zeros(len(logits)), p)


OP = Op(
    name="top_p",
    reference=top_p,
    signature="logits: f32[vocab], p: f64 -> out: f32[vocab]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=cost,
    laws=(
        *laws.filter_laws(make),
        laws.keeps_likeliest(make),
        laws.keeps_more(make, "p", (1e-6, 0.3, 0.7, 0.95, 1.0)),
        *laws.TOP_P,
    ),
)
