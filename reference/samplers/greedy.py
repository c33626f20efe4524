"""The most likely token."""

import numpy as np

from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import SIZES, exact, no_number, some_logits, token_cost


def greedy(logits: Array) -> Array:
    """argmax, the lowest id among equals. logits float32 [vocab] -> token int32 [1]."""
    return np.array([np.argmax(logits)], np.int32)


def make(case: Case) -> Arguments:
    return {"logits": some_logits(case, case.rng())}


OP = Op(
    name="greedy",
    reference=greedy,
    signature="logits: f32[vocab] -> token: i32[1]",
    axes={"vocab": SIZES},
    make=make,
    bound=exact,
    cost=token_cost,
    complaint=no_number,
)
