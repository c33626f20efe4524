"""The normaliser of softmax, ln sum exp(logit): ln p = logit - log_sum_exp."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    ON_LOGITS,
    U64,
    no_token,
    some_logits,
    token_cost,
    total_error,
)


def log_sum_exp(logits: Array) -> Array:
    """max + ln sum exp(logit - max). logits float32 [vocab] -> nats, float64 [1]."""
    x = logits.astype(np.float64)
    return np.array([x.max() + np.log(np.exp(x - x.max()).sum())])


def make(case: Case) -> Arguments:
    return {"logits": some_logits(case, case.rng())}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The sum's relative error is the absolute one of its logarithm."""
    error = total_error(inputs["logits"]) + 8 * U64 * (1 + np.abs(inputs["logits"].max()))
    return {"out": np.full(1, error)}


OP = Op(
    name="log_sum_exp",
    reference=log_sum_exp,
    signature="logits: f32[vocab] -> out: f64[1]",
    **ON_LOGITS,
    make=make,
    bound=bound,
    cost=token_cost,
    complaint=no_token,
    laws=laws.LOG_SUM_EXP,
)
