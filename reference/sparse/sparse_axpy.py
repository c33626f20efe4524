"""y = sum_i a_i W_i over active neurons only: PowerInfer's AXPY (arXiv 2312.12456)."""

import numpy as np

from reference.bounds import FACTOR, TINY, gamma
from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.laws.common import alone, contained
from reference.laws.sparse.sparse_axpy import laws
from reference.linear import some_tokens
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.sparse.neuron_masks import active_rows, some_mask
from reference.sparse.sparse_linear import slots_of


def sparse_axpy(
    a: Array, weight: Array, rows: Array, count: Array, slots: Array, format: str
) -> Array:
    """out_t = sum of a[t, i] * W_i over the first `count` neurons i in `rows`.

    a [tokens, neurons], rows int32 [neurons], count int32 [1]; weight uint8 [held, row_bytes] in
    `format`, with neuron i's row W_i [hidden] at slots[i], int32 [neurons]
    -> float64 [tokens, hidden]. Rows and slots of other neurons are not read: such a slot may be -1
    or anything. Weights are finite: a row whose factors are 0 for all tokens may be read or
    skipped.
    """
    active = rows[: count[0]]
    w = FORMATS[format].dequantise(weight[slots[active]]).astype(np.float64)
    return a[:, active].astype(np.float64) @ w


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    weight = case.in_range().weight(rng, shape["held"], shape["hidden"])
    rows, count = active_rows(some_mask(rng, 1, shape["neurons"], shape["active"]))
    active = rows[: count[0]]
    slots = slots_of(case, rng, active)
    a = some_tokens(case, rng, shape["tokens"], shape["neurons"])
    a[:, active] *= _evened(case, weight[slots[active]])
    found = {"a": a, "weight": weight, "rows": rows, "count": count}
    return {**found, "slots": slots, "format": case.format}


def _evened(case: Case, rows: Array) -> Array:
    """Powers of two that give rows similar magnitudes: next to large terms, errors in small ones
    would not show. -> float32 [rows]."""
    w = FORMATS[case.format or "F32"].dequantise(rows)
    exponents = np.frexp(np.abs(w).max(axis=1, initial=0))[1]
    return np.asarray(np.ldexp(np.float32(1), -exponents))


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A dot product over the active neurons, in any order: gamma(count + 1) * sum |a||w|. Each
    product and sum may be flushed."""
    active = inputs["rows"][: inputs["count"][0]]
    w = FORMATS[inputs["format"]].dequantise(inputs["weight"][inputs["slots"][active]])
    size = np.abs(inputs["a"][:, active]).astype(np.float64) @ np.abs(w).astype(np.float64)
    return {"out": gamma(len(active) + 1) * size + 2 * TINY * len(active)}


def complaint(inputs: Arguments) -> str:
    rows, count = inputs["rows"], int(inputs["count"][0])
    if not 0 <= count <= len(rows):
        return f"count is {count}, not 0 to {len(rows)}"
    active = rows[:count]
    if (np.diff(active) <= 0).any() or (active < 0).any() or (active >= len(rows)).any():
        return "rows are not ascending neurons"
    return out_of_range("slots", inputs["slots"][active], len(inputs["weight"]))


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, active, hidden = shape["tokens"], shape["active"], shape["hidden"]
    weight = active * FORMATS[format or "F32"].row_bytes(hidden)
    return Cost(weight + 4 * tokens * (hidden + active), 2 * tokens * active * hidden)


def fit(shape: Shape, format: str | None) -> Shape:
    """Rows of whole blocks, at most all neurons active, and a row for each."""
    active = min(shape["active"], shape["neurons"])
    return {**whole_blocks(shape, format), "active": active, "held": max(shape["held"], active)}


SIGNATURE = (
    "a: f32[tokens neurons], weight: format[held hidden], rows: i32[neurons], count: i32[1],"
    " slots: i32[neurons] -> out: f32[tokens hidden]"
)


OP = Op(
    name="sparse_axpy",
    reference=sparse_axpy,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 9, 33),
        "neurons": (31, 33, 65, 127, 300),
        "hidden": (31, 33, 129, 256),
        "active": (3, 4, 17, 127, 280),
        "held": (17, 33, 65, 160, 290),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=tuple(FORMATS),
    fit=fit,
    # the smallest sizes; more than a kernel's tile; sizes of models
    corners=(
        {"tokens": 0, "neurons": 9, "hidden": 33, "active": 5, "held": 9},
        {"tokens": 1, "neurons": 1, "hidden": 1, "active": 1, "held": 1},
        {"tokens": 2, "neurons": 2, "hidden": 2, "active": 1, "held": 1},
        {"tokens": 3, "neurons": 65, "hidden": 64, "active": 0, "held": 1},
        {"tokens": 67, "neurons": 100, "hidden": 544, "active": 61, "held": 80},
        {"tokens": 3, "neurons": 1600, "hidden": 33, "active": 60, "held": 70},
        {"tokens": 67, "neurons": 1600, "hidden": 33, "active": 60, "held": 70},
        {"tokens": 1, "neurons": 14_336, "hidden": 65, "active": 4_200, "held": 4_300},
        {"tokens": 5, "neurons": 11_009, "hidden": 33, "active": 4_100, "held": 4_100},
        {"tokens": 1, "neurons": 65_700, "hidden": 9, "active": 300, "held": 131_100},
        {"tokens": 3, "neurons": 40, "hidden": 14_336, "active": 33, "held": 40},
        {"tokens": 513, "neurons": 300, "hidden": 65, "active": 280, "held": 300},
    ),
    complaint=complaint,
    nan="token",
    largest=FACTOR,
    varying=("tokens", "active"),
    laws=(alone(SIGNATURE, make), contained(SIGNATURE, make), *laws(SIGNATURE, make)),
)
