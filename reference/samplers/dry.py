"""DRY, "don't repeat yourself" (p-e-w, oobabooga/text-generation-webui pull request 5677)."""

import numpy as np

from reference.bounds import U
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.samplers.distribution import U64, some_logits

LARGEST = float(np.finfo(np.float32).max)


def dry(
    logits: Array,
    context: Array,
    breakers: Array,
    multiplier: float,
    base: float,
    allowed: int,
) -> Array:
    """l - multiplier * base^(length - allowed) for tokens that would extend a repeat of at least
    `allowed` tokens.

    A token's length is that of the longest end of the context which also stands right before an
    earlier occurrence of the token. Repeats do not reach across a breaker, and breakers are never
    penalised. The penalty is at most the largest float32.
    logits float32 [vocab], context int32 [context], breakers int32 [breakers], multiplier >= 0,
    base >= 1, allowed >= 0 tokens -> float64 [vocab].
    """
    out = logits.astype(np.float64)
    for token, length in repeats(context.tolist(), set(breakers.tolist())).items():
        if length >= allowed:
            with np.errstate(over="ignore"):
                penalty = multiplier * np.power(np.float64(base), length - allowed)
            out[token] -= min(penalty, LARGEST)
    return out


def repeats(context: list[int], breakers: set[int]) -> dict[int, int]:
    """Each token of the context that is no breaker, with the length of its longest repeat."""
    longest: dict[int, int] = {}
    for position, token in enumerate(context):
        if token not in breakers:
            length = 0
            while length < position and _continues(context, position, length, breakers):
                length += 1
            longest[token] = max(longest.get(token, 0), length)
    return longest


def _continues(context: list[int], position: int, length: int, breakers: set[int]) -> bool:
    """Whether the match of `length` tokens before position and at the end grows by one."""
    last = context[-1 - length]
    return context[position - 1 - length] == last and last not in breakers


def make(case: Case) -> Arguments:
    """A context over few tokens, so that it repeats itself."""
    rng, shape = case.rng(), case.shape
    few = rng.integers(0, shape["vocab"], 3)
    return {
        "logits": some_logits(case, rng),
        "context": rng.choice(few, shape["context"]).astype(np.int32),
        "breakers": rng.integers(0, shape["vocab"], shape["breakers"]).astype(np.int32),
        "multiplier": float(rng.choice([0.8, 1.0, 3.0])),
        "base": float(rng.choice([1.0, 1.75, 4.0])),
        "allowed": int(rng.choice([0, 1, 2, 5])),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Float64, a power's error growing with its exponent, then rounded to float32."""
    out, logits = expected["out"], inputs["logits"]
    touched = np.isfinite(out) & (out != logits)
    with np.errstate(invalid="ignore"):
        penalty = np.abs(out - logits)
    error = U * np.abs(out) + (len(inputs["context"]) + 8) * U64 * (np.abs(out) + penalty)
    return {"out": np.where(touched, error, 0)}


def complaint(inputs: Arguments) -> str:
    return out_of_range("context", inputs["context"], len(inputs["logits"]))


def cost(shape: Shape, format: str | None) -> Cost:
    return Cost(8 * shape["vocab"] + 4 * shape["context"], shape["vocab"] + shape["context"])


OP = Op(
    name="dry",
    reference=dry,
    signature=(
        "logits: f32[vocab], context: i32[context], breakers: i32[breakers], multiplier: f64,"
        " base: f64, allowed: i64 -> out: f32[vocab]"
    ),
    axes={"vocab": (1, 5, 33, 1000), "context": (0, 1, 7, 40, 64, 120), "breakers": (0, 1, 2)},
    make=make,
    bound=bound,
    cost=cost,
    complaint=complaint,
)
