"""Token embedding, out[t] = table[tokens[t]]: gather and dequantise rows (ggml's get_rows)."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import alone
from reference.laws.embedding import laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range


def embedding(tokens: Array, weight: Array, format: str) -> Array:
    """out[t] = table[tokens[t]], dequantised.

    tokens int32 [tokens], weight uint8 [vocab, row_bytes] in `format` -> float64 [tokens, hidden].
    Infinities and NaN of a row are copied.
    """
    return FORMATS[format].dequantise(weight[tokens]).astype(np.float64)


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    weight = case.weight(rng, shape["vocab"], shape["hidden"])
    return {"tokens": _some_tokens(case, rng), "weight": weight, "format": case.format}


def _some_tokens(case: Case, rng: np.random.Generator) -> Array:
    """Random tokens, mostly of rows that are not zero, with the last and the first among them."""
    vocab, count = case.shape["vocab"], case.shape["tokens"]
    held = rng.choice(case.sampled(vocab, case.shape["hidden"]), count)
    tokens = np.where(rng.random(count) < 0.8, held, rng.integers(0, vocab, count))
    ends = np.array([vocab - 1, 0])[:count]
    tokens[rng.permutation(count)[:2]] = ends
    return tokens.astype(np.int32)


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: every decoded weight is exact in float32."""
    return {"out": np.zeros_like(expected["out"])}


def complaint(inputs: Arguments) -> str:
    return out_of_range("tokens", inputs["tokens"], len(inputs["weight"]))


def cost(shape: Shape, format: str | None) -> Cost:
    row = FORMATS[format or "F32"].row_bytes(shape["hidden"])
    return Cost(shape["tokens"] * (row + 4 * shape["hidden"] + 4), 0)


def whole_blocks(shape: Shape, format: str | None) -> Shape:
    """`hidden` rounded up to whole blocks of the format."""
    block = FORMATS[format or "F32"].block
    return {**shape, "hidden": -(-shape["hidden"] // block) * block}


def fit(shape: Shape, format: str | None) -> Shape:
    return {**whole_blocks(shape, format), "vocab": max(1, shape["vocab"])}


SIGNATURE = "tokens: i32[tokens], weight: format[vocab hidden] -> out: f32[tokens hidden]"


OP = Op(
    name="embedding",
    reference=embedding,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 7, 9, 33),
        "vocab": (5, 31, 257),
        "hidden": (31, 33, 127, 129, 256),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=tuple(FORMATS),
    fit=fit,
    corners=(
        {"tokens": 0, "vocab": 5, "hidden": 33},
        {"tokens": 1, "vocab": 1, "hidden": 1},
        {"tokens": 3, "vocab": 2, "hidden": 2},
        {"tokens": 2, "vocab": 5, "hidden": 768},
        {"tokens": 5, "vocab": 7, "hidden": 14_336},
        {"tokens": 513, "vocab": 1000, "hidden": 33},
        {"tokens": 65, "vocab": 256_000, "hidden": 8},
    ),
    complaint=complaint,
    nan="element",
    laws=(alone(SIGNATURE, make), *laws(make)),
)
