"""Greedy decoding by row: argmax of the logits and its log-probability."""

from dataclasses import replace

import numpy as np

from reference.laws import samplers as laws
from reference.laws.common import alone
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.samplers import greedy
from reference.samplers.distribution import (
    LARGEST,
    SIZES,
    U64,
    VOCABULARIES,
    no_token,
    total_error,
)

SIGNATURE = "logits: f32[rows vocab] -> token: i32[rows], logprob: f64[rows]"


def argmax(logits: Array) -> tuple[Array, Array]:
    """argmax, the lowest id among equals, and its ln p = -ln sum exp(logit - max).

    logits float32 [rows, vocab] -> tokens int32 [rows], nats float64 [rows].
    """
    x = logits.astype(np.float64)
    sums = np.exp(x - x.max(axis=1, keepdims=True)).sum(axis=1)
    return np.argmax(logits, axis=1).astype(np.int32), -np.log(sums)


def make(case: Case) -> Arguments:
    """Each row is a case of greedy's with its own seed."""
    rows, one = case.shape["rows"], {"vocab": case.shape["vocab"]}
    cases = (replace(case, shape=one, seed=case.seed + i) for i in range(rows))
    made = [greedy.make(own)["logits"] for own in cases]
    return {"logits": np.array(made, np.float32).reshape(rows, one["vocab"])}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The token is exact. The sum's relative error is the absolute one of its logarithm."""
    of_sums = np.array([total_error(row) for row in inputs["logits"]])
    error = of_sums + 8 * U64 * (1 + np.abs(expected["logprob"]))
    return {"token": np.zeros(len(of_sums)), "logprob": error}


def complaint(inputs: Arguments) -> str:
    """At least one token must be possible in every row."""
    return next(filter(None, (no_token({"logits": x}) for x in inputs["logits"])), "")


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["rows"] * shape["vocab"]
    return Cost(4 * elements, 4 * elements)


OP = Op(
    name="argmax",
    reference=argmax,
    signature=SIGNATURE,
    axes={"rows": (0, 1, 2, 3, 7), "vocab": SIZES},
    make=make,
    bound=bound,
    cost=cost,
    corners=(*({"rows": 1, **one} for one in VOCABULARIES), {"rows": 41, "vocab": 33}),
    complaint=complaint,
    largest=LARGEST,
    varying=("rows",),
    laws=(alone(SIGNATURE, make, "rows"), *laws.ARGMAX),
)
