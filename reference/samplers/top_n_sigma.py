"""Top-n-sigma: a floor in standard deviations below the best logit (arXiv 2411.07641)."""

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


def top_n_sigma(logits: Array, n: float) -> Array:
    """Drop logits below max - n sigma; sigma is the deviation of the logits not removed yet.

    logits float32 [vocab], n >= 0 -> [vocab].
    """
    present = logits[np.isfinite(logits)].astype(np.float64)
    sigma = np.sqrt(np.mean((present - present.mean()) ** 2))
    return dropped(logits, logits >= present.max() - n * sigma)


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits = some_logits(case, rng)
    return {"logits": logits, "n": float(rng.choice([0.0, 0.5, 1.0, 2.0, 3.0]))}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A mean off by d adds d^2 to the variance, so at most d to sigma; sums have vocab roundings.

    Twice, since the reference rounds too.
    """
    logits, n = inputs["logits"], inputs["n"]
    present = logits[np.isfinite(logits)].astype(np.float64)
    highest, sigma, roundings = present.max(), present.std(), (len(present) + 8) * U64
    of_sigma = roundings * (sigma + np.mean(np.abs(present)))
    error = 2 * (n * of_sigma + 2 * U64 * (abs(highest) + n * sigma)) if n else 0.0
    return cut_undecided(logits, expected["out"], highest - n * sigma, error) if error else {}


OP = Op(
    name="top_n_sigma",
    reference=top_n_sigma,
    signature="logits: f32[vocab], n: f64 -> out: f32[vocab]",
    axes={"vocab": SIZES},
    make=make,
    bound=exact,
    also=also,
    cost=cost,
)
