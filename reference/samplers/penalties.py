"""Penalties on earlier tokens: repetition (CTRL, Keskar et al., arXiv 1909.05858), frequency and
presence (OpenAI), in llama.cpp's order."""

import numpy as np

from reference.bounds import TINY, U
from reference.laws import samplers as laws
from reference.laws.common import contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.samplers.distribution import ON_LOGITS, U64, option, some_logits


def penalties(
    logits: Array,
    repeated: Array,
    counts: Array,
    repetition: float,
    frequency: float,
    presence: float,
) -> Array:
    """Where repeated > 0: l <= 0 ? l * repetition : l / repetition. Then, where counts > 0:
    l - counts * frequency - presence.

    llama.cpp counts the same last n tokens in both; vLLM takes prompt and output as `repeated` and
    the output alone as `counts`. logits float32 [vocab], repeated and counts int32 [vocab],
    repetition > 0 -> float64 [vocab].
    """
    x = logits.astype(np.float64)
    x = np.where(repeated > 0, np.where(x <= 0, x * repetition, x / repetition), x)
    return np.where(counts > 0, x - counts * frequency - presence, x)


def make(case: Case) -> Arguments:
    """Counts as in a text, and a few beyond 8, 16 or 24 bits."""
    rng, vocab = case.rng(), case.shape["vocab"]
    many = np.array([255, 256, 300, 65535, 65536, 70000, 2**24 + 1, 2**31 - 1])
    often, said = rng.random((2, vocab)) < 0.1, rng.poisson(0.3, (2, vocab))
    repeated, counts = np.where(often, rng.choice(many, (2, vocab)), said).astype(np.int32)
    return {
        "logits": some_logits(case, rng),
        "repeated": repeated,
        "counts": counts,
        "repetition": option(case, (1.1, 0.9, 1e6, 1.5, 1.0, 0.7, 1e-6)),
        "frequency": option(case, (0.3, -0.5, 0.0, 0.7, 2.0, 0.2, 1.0, -2.0, 0.0, 1e-3, 0.1)),
        "presence": option(case, (-0.3, 0.7, 0.0, 2.0, 0.4, 0.0, -2.0, 0.3)),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Float64 until the result is rounded to float32; other logits are exact."""
    out, counts = expected["out"], inputs["counts"]
    terms = counts * abs(inputs["frequency"]) + abs(inputs["presence"])
    error = U * np.abs(out) + 8 * U64 * (np.abs(out) + terms) + TINY
    touched = (inputs["repeated"] > 0) | (counts > 0)
    return {"out": np.where(touched & np.isfinite(out), error, 0)}


def cost(shape: Shape, format: str | None) -> Cost:
    return Cost(16 * shape["vocab"], 5 * shape["vocab"])


SIGNATURE = (
    "logits: f32[vocab], repeated: i32[vocab], counts: i32[vocab], repetition: f64,"
    " frequency: f64, presence: f64 -> out: f32[vocab]"
)
OP = Op(
    name="penalties",
    reference=penalties,
    signature=SIGNATURE,
    **ON_LOGITS,
    make=make,
    bound=bound,
    cost=cost,
    nan="element",
    laws=(contained(SIGNATURE, make, "vocab"), *laws.PENALTIES),
)
