"""Min-p: a floor relative to the most likely token (Nguyen et al., arXiv 2407.01082)."""

import math

import numpy as np

from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    SIZES,
    U64,
    cost,
    cut_undecided,
    dropped,
    exact,
    some_logits,
)


def min_p(logits: Array, p: float) -> Array:
    """Keep tokens at least p times as likely as the most likely one: logit >= max + ln p.

    logits float32 [vocab], 0 < p <= 1 -> [vocab].
    """
    x = logits.astype(np.float64)
    return dropped(logits, x >= x.max() + math.log(p))


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits = some_logits(case, rng)
    return {"logits": logits, "p": float(rng.choice([1e-6, 0.05, 0.1, 0.5, 0.95, 1.0]))}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Logarithm and sum are float64, here and in the kernel."""
    highest, log_p = float(inputs["logits"].max()), math.log(inputs["p"])
    error = 4 * U64 * (abs(highest) + abs(log_p)) if log_p else 0.0
    return cut_undecided(inputs["logits"], expected["out"], highest + log_p, error) if error else {}


OP = Op(
    name="min_p",
    reference=min_p,
    signature="logits: f32[vocab], p: f64 -> out: f32[vocab]",
    axes={"vocab": SIZES},
    make=make,
    bound=exact,
    also=also,
    cost=cost,
)
