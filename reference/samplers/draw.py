"""Sample by inverse transform: the first token i with p_1 + ... + p_i > u, p = softmax(logits)."""

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    NEARLY_ONE,
    ON_LOGITS,
    exact,
    no_token,
    option,
    some_logits,
    token_cost,
    total_error,
)
from reference.softmax import softmax


def draw(logits: Array, u: float) -> Array:
    """The first token, by id, whose cumulative probability exceeds u: the inverse of the CDF.

    logits float32 [vocab], u in [0, 1) -> token int32 [1].
    """
    possible = np.flatnonzero(softmax(logits) > 0)
    cumulative = np.cumsum(softmax(logits)[possible])
    at = min(int(np.searchsorted(cumulative, u, "right")), len(possible) - 1)
    return possible[at : at + 1].astype(np.int32)


def make(case: Case) -> Arguments:
    rng = case.rng()
    logits, some = some_logits(case, rng), rng.random()
    return {"logits": logits, "u": option(case, (some, NEARLY_ONE, 0.5 + some / 2, 0.0))}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The adjacent tokens, if u is nearer to their boundary than the sums' errors."""
    p = softmax(inputs["logits"])
    after, error = np.cumsum(p), 2 * total_error(inputs["logits"])
    near = (after - p - error <= inputs["u"]) & (inputs["u"] < after + error) & (p > 0)
    return {"token": np.flatnonzero(near)[:, None]}


OP = Op(
    name="draw",
    reference=draw,
    signature="logits: f32[vocab], u: f64 -> token: i32[1]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    also=also,
    cost=token_cost,
    complaint=no_token,
    laws=laws.DRAW,
)
