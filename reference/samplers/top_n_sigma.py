"""Top-n-sigma: keep logits >= max - n sigma (Tang et al., arXiv 2411.07641)."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
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


def top_n_sigma(logits: Array, n: float) -> Array:
    """Drop logits below max - n sigma, with sigma the standard deviation of the remaining logits.

    logits float32 [vocab], n >= 0 -> [vocab].
    """
    present = logits[np.isfinite(logits)].astype(np.float64)
    sigma = np.sqrt(np.mean((present - present.mean()) ** 2))
    return mask_tokens(logits, logits >= present.max() - n * sigma)


def make(case: Case) -> Arguments:
    """In rotation the cutoff is so near to a token that float32 would decide differently."""
    rng = case.rng()
    logits = some_logits(case, rng)
    sigma = float(logits[np.isfinite(logits)].std(dtype=np.float64))
    near = some_depth(logits, rng) / (sigma or 1) * (1 + rng.choice([-1, 1]) * 2.0**-30)
    return {"logits": logits, "n": option(case, (near, 1.0, near, 0.0, 0.7, 3.0, 1e30))}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A mean off by d adds d^2 to the variance, so at most d to sigma; sums have vocab roundings.

    Twice, for the reference's own rounding.
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
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=cost,
    laws=(
        *laws.filter_laws(make),
        laws.keeps_likeliest(make),
        laws.keeps_more(make, "n", (0.0, 0.5, 1.0, 2.0, 10.0)),
        *laws.TOP_N_SIGMA,
    ),
)
