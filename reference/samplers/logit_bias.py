"""Logit bias: add the user's biases to the logits of some tokens (OpenAI's logit_bias)."""

import numpy as np

from reference.bounds import TINY, U
from reference.laws import samplers as laws
from reference.laws.common import contained
from reference.op import Arguments, Array, Case, Op, Shape, out_of_range
from reference.samplers.distribution import LARGEST, SIZES, cost, some_logits


def logit_bias(logits: Array, ids: Array, biases: Array) -> Array:
    """out[ids] = logits[ids] + biases; -inf forbids a token.

    logits float32 [vocab], ids int32 [biases] (distinct), biases float32 [biases], below +inf
    -> float64 [vocab].
    """
    out = logits.astype(np.float64)
    out[ids] += biases
    return out


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    biases = case.finite(rng, shape["biases"])
    biases[rng.random(biases.shape) < 0.2] = -np.inf
    return {
        "logits": some_logits(case, rng),
        "ids": rng.permutation(shape["vocab"])[: shape["biases"]].astype(np.int32),
        "biases": biases,
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """One float32 addition for tokens with a bias; the others are exact."""
    out = expected["out"]
    touched = np.isin(np.arange(len(out)), inputs["ids"]) & np.isfinite(out)
    return {"out": np.where(touched, U * np.abs(out) + TINY, 0)}


def complaint(inputs: Arguments) -> str:
    if len(np.unique(inputs["ids"])) < len(inputs["ids"]):
        return "ids has a token twice"
    return out_of_range("ids", inputs["ids"], len(inputs["logits"]))


def fit(shape: Shape, format: str | None) -> Shape:
    return {**shape, "biases": min(shape["biases"], shape["vocab"])}


SIGNATURE = "logits: f32[vocab], ids: i32[biases], biases: f32[biases] -> out: f32[vocab]"
OP = Op(
    name="logit_bias",
    reference=logit_bias,
    signature=SIGNATURE,
    axes={"vocab": SIZES, "biases": (0, 1, 3, 8, 17, 50, 257)},
    make=make,
    bound=bound,
    cost=cost,
    fit=fit,
    complaint=complaint,
    corners=(
        {"vocab": 32000, "biases": 50},
        {"vocab": 128256, "biases": 1000},
        {"vocab": 256000, "biases": 256000},
    ),
    nan="element",
    largest=LARGEST,
    varying=("biases",),
    laws=(contained(SIGNATURE, make, "vocab"), *laws.LOGIT_BIAS),
)
