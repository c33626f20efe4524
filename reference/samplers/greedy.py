"""Greedy decoding: argmax of the logits."""

from typing import Any

import numpy as np

from reference.laws import samplers as laws
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    ON_LOGITS,
    exact,
    no_token,
    option,
    some_logits,
    token_cost,
)


def greedy(logits: Array) -> Array:
    """argmax, the lowest id among equals. logits float32 [vocab] -> token int32 [1]."""
    return np.array([np.argmax(logits)], np.int32)


def make(case: Case) -> Arguments:
    """In rotation the most likely token is the last, one of two, near the end or anywhere."""
    rng = case.rng()
    logits = some_logits(case, rng)
    near, anywhere = rng.integers(1, min(16, len(logits)) + 1), rng.integers(len(logits), size=2)
    places: tuple[Any, ...] = ([-1], anywhere, [-near], [])
    logits[option(case, places)] = np.nextafter(logits.max(), np.inf)
    return {"logits": logits}


OP = Op(
    name="greedy",
    reference=greedy,
    signature="logits: f32[vocab] -> token: i32[1]",
    **ON_LOGITS,
    make=make,
    bound=exact,
    cost=token_cost,
    complaint=no_token,
    laws=laws.GREEDY,
)
