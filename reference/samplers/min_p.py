"""Min-p: keep p_i >= p max p (Nguyen et al., arXiv 2407.01082)."""

import math

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    NEARLY_ONE,
    ON_LOGITS,
    U64,
    cost,
    cut_undecided,
    exact,
    mask_tokens,
    option,
    some_depth,
    some_logits,
)


def min_p(logits: Array, p: float) -> Array:
    """Keep tokens at least p times as likely as the most likely one: logit >= max + ln p.

    logits float32 [vocab], 0 < p <= 1 -> [vocab].
    """
    x = logits.astype(np.float64)
    return mask_tokens(logits, x >= x.max() + math.log(p))


def make(case: Case) -> Arguments:
    """In rotation p is too near to a token's exp(logit - max) for float32 to decide."""
    rng = case.rng()
    logits = some_logits(case, rng)
    depth, sign = some_depth(logits, rng), rng.choice([-1, 1])
    near = min(1.0, math.exp(-min(depth, 700)) * (1 + sign * 2.0**-40))
    return {"logits": logits, "p": option(case, (near, 0.05, near, 1.0, 0.7, NEARLY_ONE))}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The logarithm and the sum are float64, here and in the kernel."""
    highest, log_p = float(inputs["logits"].max()), math.log(inputs["p"])
    error = 4 * U64 * (abs(highest) + abs(log_p)) if log_p else 0.0
    return cut_undecided(inputs["logits"], expected["out"], highest + log_p, error) if error else {}


OP = Op(
    name="min_p",
    reference=min_p,
    signature="logits: f32[vocab], p: f64 -> out: f32[vocab]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=cost,
    laws=(
        *laws.filter_laws(make),
        laws.keeps_likeliest(make),
        laws.keeps_more(make, "p", (1.0, 0.5, 0.1, 1e-8)),
        *laws.MIN_P,
    ),
)
