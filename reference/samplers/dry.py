"""DRY, "don't repeat yourself" (p-e-w, text-generation-webui PR 5677): l - m b^(n - a)."""

import numpy as np

from reference.bounds import U
from reference.laws import samplers as laws
from reference.laws.common import contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.samplers.distribution import LARGEST, U64, option, some_logits

HEAVIEST = float(np.finfo(np.float32).max)


def dry(
    logits: Array,
    context: Array,
    breakers: Array,
    multiplier: float,
    base: float,
    allowed: int,
) -> Array:
    """l - multiplier * base^(length - allowed) for tokens that would extend a repetition of at
    least `allowed` tokens.

    A token's length is that of the longest suffix of the context that also precedes an earlier
    occurrence of the token. Repetitions do not cross a breaker, and breakers are never penalised.
    The penalty is at most the largest float32.
    logits float32 [vocab], context int32 [context], breakers int32 [breakers], multiplier >= 0,
    base >= 1, allowed >= 0 tokens -> float64 [vocab].
    """
    out = logits.astype(np.float64)
    tokens, lengths = repeats(context, breakers)
    tokens, lengths = tokens[lengths >= allowed], lengths[lengths >= allowed]
    with np.errstate(over="ignore"):
        penalties = multiplier * np.power(np.float64(base), lengths - allowed)
    out[tokens] -= np.minimum(penalties, HEAVIEST)
    return out


def repeats(context: Array, breakers: Array) -> tuple[Array, Array]:
    """The tokens of the context that are no breakers, and the longest repetition that each
    extends."""
    length, lengths = 0, np.zeros(len(context), np.int64)
    matching = np.arange(len(context))  # positions that follow the last `length` tokens
    while matching.size:
        lengths[matching] = length
        matching = matching[matching > length]
        last = context[-1 - length]
        if last in breakers:
            break
        matching = matching[context[matching - 1 - length] == last]
        length += 1
    tokens, own = np.unique(context, return_inverse=True)
    longest = np.zeros(len(tokens), np.int64)
    np.maximum.at(longest, own, lengths)
    penalised = ~np.isin(tokens, breakers)
    return tokens[penalised], longest[penalised]


def make(case: Case) -> Arguments:
    """A context over few tokens, so that it has repetitions; in rotation it ends as it begins, for
    up to 5,000 tokens, or has some breakers."""
    rng, shape = case.rng(), case.shape
    logits, context = some_logits(case, rng), shape["context"]
    left = np.flatnonzero(~np.isneginf(logits))
    few = rng.choice(left if left.size else len(logits), 4)
    breakers = rng.integers(0, shape["vocab"], shape["breakers"])
    shaped = option(case, ("again", "random", "broken"))
    said = rng.choice(few, context, p=(0.4, 0.3, 0.29, 0.01))
    if shaped == "again" and context > 1:
        length = min(context // 2, 5000)
        said[-length:] = said[:length]
    if shaped == "broken":
        breakers[-1:] = few[3]
    return {
        "logits": logits,
        "context": said.astype(np.int32),
        "breakers": breakers.astype(np.int32),
        "multiplier": option(case, (0.7, 1.0, 3.0, 0.3, 1e30)),
        "base": option(case, (1.0005, 1.75, 1.0, 1.001, 4.0, 1.2, 1.0005)),
        "allowed": option(case, (2, 0, 1, 5, 0, 2, 0, 1, 300, 2, 3)),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Float64, with a power's error growing with its exponent, then rounded to float32."""
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


SIGNATURE = (
    "logits: f32[vocab], context: i32[context], breakers: i32[breakers], multiplier: f64,"
    " base: f64, allowed: i64 -> out: f32[vocab]"
)
OP = Op(
    name="dry",
    reference=dry,
    signature=SIGNATURE,
    axes={
        "vocab": (2, 3, 5, 33, 257, 1000),
        "context": (0, 1, 2, 7, 8, 16, 17, 40, 64, 65, 120, 257, 1000),
        "breakers": (0, 1, 2, 4, 17),
    },
    corners=(
        {"vocab": 1, "context": 2000, "breakers": 0},
        {"vocab": 33, "context": 5000, "breakers": 1},
        {"vocab": 1000, "context": 70000, "breakers": 257},
        {"vocab": 32000, "context": 131072, "breakers": 4},
        {"vocab": 128256, "context": 120, "breakers": 1},
        {"vocab": 256000, "context": 2000, "breakers": 2},
    ),
    make=make,
    bound=bound,
    cost=cost,
    complaint=complaint,
    nan="element",
    largest=LARGEST,
    varying=("context", "breakers"),
    laws=(contained(SIGNATURE, make, "vocab"), *laws.DRY),
)
