"""Locally typical sampling (Meister et al., arXiv 2202.00666): the smallest |-ln p_i - H|."""

import numpy as np

from reference.bounds import U
from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    NEARLY_ONE,
    ON_LOGITS,
    cost,
    depths,
    exact,
    mask_tokens,
    mean,
    option,
    prefix_undecided,
    relative_errors,
    some_logits,
)
from reference.softmax import softmax

FARTHEST = 1e300  # the distance of a removed token


def typical(logits: Array, p: float) -> Array:
    """Keep the tokens whose surprise is nearest to the entropy, until their probabilities exceed p.

    Ascending |-ln p_i - H|, H = -sum p_i ln p_i, in nats; equals by id. p >= 1 keeps all. logits
    float32 [vocab], p > 0 -> [vocab].
    """
    order = np.argsort(distance(logits), kind="stable")
    probability = softmax(logits)[order]
    before = np.cumsum(probability) - probability
    keep = np.empty(len(logits), bool)
    keep[order] = (before <= p) | (p >= 1)
    return mask_tokens(logits, keep)


def distance(logits: Array) -> Array:
    """|-ln p - H| = |(max - logit) - E(max - logit)|: the normaliser cancels. [vocab], nats."""
    depth = depths(logits)
    return np.asarray(np.abs(depth - mean(softmax(logits), depth)))


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits, some = some_logits(case, rng), rng.random()
    p = option(case, (0.3, some, 0.7, 1.0, 0.95, NEARLY_ONE, 1e-30, 0.9999, 0.01))
    return {"logits": logits, "p": p}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """E(max - logit) has the errors of its terms; the distance is then rounded to float32."""
    logits, p = inputs["logits"], inputs["p"]
    if p >= 1:
        return {}
    probability, depth, score = softmax(logits), depths(logits), distance(logits)
    centre = mean(probability, depth)
    of_centre = mean(probability, relative_errors(logits) * (depth + centre))
    score = np.where(np.isfinite(score), score, FARTHEST)
    return prefix_undecided(logits, expected["out"], score, of_centre + 2 * U * score, p)


OP = Op(
    name="typical",
    reference=typical,
    signature="logits: f32[vocab], p: f64 -> out: f32[vocab]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=cost,
    laws=(
        *laws.filter_laws(make),
        laws.keeps_more(make, "p", (1e-9, 0.3, 0.7, 0.95, 1.0)),
        *laws.TYPICAL,
    ),
)
