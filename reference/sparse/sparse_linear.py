"""y_i = W_i x over active neurons only: PowerInfer's MUL_MAT_SPARSE (arXiv 2312.12456)."""

from functools import partial

import numpy as np

from reference import linear as dense
from reference.bounds import FACTOR
from reference.embedding import whole_blocks
from reference.laws.common import contained
from reference.laws.sparse.sparse_linear import laws
from reference.linear import linear
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.sparse.neuron_masks import active_rows, complaint, some_mask, some_slots


def sparse_linear(
    x: Array, weight: Array, mask: Array, rows: Array, count: Array, slots: Array, format: str
) -> Array:
    """out[t, i] = W_i . x_t where neuron i is active for token t, else 0.

    x [tokens, hidden], mask uint8 [tokens, neurons]; rows int32 [neurons] and count int32 [1] are
    active_rows of the mask; weight uint8 [held, row_bytes] in `format`, with neuron i's row at
    slots[i], int32 [neurons] -> float64 [tokens, neurons]. Rows and slots of neurons that are not
    active for any token are not read: such a slot may be -1 or anything.
    """
    active = rows[: count[0]]
    out = np.zeros(mask.shape)
    out[:, active] = linear(x, weight[slots[active]], format)
    return np.where(mask, out, 0)


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    x = dense.some_tokens(case, rng, shape["tokens"], shape["hidden"])
    weight = case.weight(rng, shape["held"], shape["hidden"])
    mask = some_mask(rng, shape["tokens"], shape["neurons"], shape["active"])
    rows, count = active_rows(mask)
    slots = slots_of(case, rng, rows[: count[0]])
    found = {"x": x, "weight": weight, "mask": mask, "rows": rows, "count": count}
    return {**found, "slots": slots, "format": case.format}


def slots_of(case: Case, rng: np.random.Generator, active: Array) -> Array:
    """some_slots, but the nonzero rows of a large weight belong to active neurons, half of them the
    last ones. active int32 [count] -> int32 [neurons]."""
    held, count = case.shape["held"], len(active)
    slots = some_slots(rng, active, case.shape["neurons"], held)
    known = rng.permutation(case.sampled(held, case.shape["hidden"]))
    others = rng.permutation(np.setdiff1d(np.arange(held), known))[: max(0, count - len(known))]
    before = rng.permutation(np.concatenate([known[1::2], others]))
    slots[active] = np.concatenate([before, known[::2]])[len(known) + len(others) - count :]
    return slots


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """linear's where the neuron is active; zeros are exact."""
    return {"out": _where_active(inputs, dense.bound(_active(inputs), expected)["out"])}


def as_int8(inputs: Arguments, rounding: str = "int8") -> tuple[Arguments, Array, Array]:
    """linear's where the neuron is active."""
    exact, tight, step = dense.as_int8(_active(inputs), rounding)
    exact = {**inputs, "x": exact["x"]}
    return exact, _where_active(inputs, tight), _where_active(inputs, step)


def _active(inputs: Arguments) -> Arguments:
    """linear's inputs: the active neurons' rows, gathered."""
    slots = inputs["slots"][inputs["rows"][: inputs["count"][0]]]
    return {"x": inputs["x"], "weight": inputs["weight"][slots], "format": inputs["format"]}


def _where_active(inputs: Arguments, values: Array) -> Array:
    """Scatter linear's outputs to where neurons are active; zeros elsewhere [tokens, neurons]."""
    out = np.zeros(inputs["mask"].shape)
    out[:, inputs["rows"][: inputs["count"][0]]] = values
    return np.where(inputs["mask"], out, 0)


def mask_complaint(inputs: Arguments) -> str:
    """An error in rows and count, which must be the mask's, or in active neurons' slots."""
    rows, count = active_rows(inputs["mask"])
    if inputs["count"][0] != count[0] or (inputs["rows"][: count[0]] != rows[: count[0]]).any():
        return "rows and count are not those of the mask"
    slots = inputs["slots"][rows[: count[0]]]
    return complaint(inputs) or out_of_range("slots", slots, len(inputs["weight"]))


def cost(shape: Shape, format: str | None) -> Cost:
    """Rows of active neurons, each for every token; the zeros are written."""
    tokens = shape["tokens"]
    found = dense.cost({**shape, "out": shape["active"]}, format)
    zeros = 4 * tokens * (shape["neurons"] - shape["active"])
    return Cost(found.bytes + zeros + tokens * shape["neurons"], found.operations)


def fit(shape: Shape, format: str | None) -> Shape:
    """Rows of whole blocks, at most all neurons active, none without a token, and a row for
    each."""
    active = min(shape["active"], shape["neurons"]) if shape["tokens"] else 0
    return {**whole_blocks(shape, format), "active": active, "held": max(shape["held"], active)}


FORMATS_OF_SPARSE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K")


SIGNATURE = (
    "x: f32[tokens hidden], weight: format[held hidden], mask: u8[tokens neurons],"
    " rows: i32[neurons], count: i32[1], slots: i32[neurons] -> out: f32[tokens neurons]"
)


OP = Op(
    name="sparse_linear",
    reference=sparse_linear,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 9, 33),
        "hidden": (31, 33, 129, 256),
        "neurons": (31, 33, 65, 127, 300),
        "active": (5, 16, 17, 40, 127, 280),
        "held": (17, 33, 65, 160, 290),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_SPARSE,
    fit=fit,
    # the smallest sizes; more tokens and a larger hidden than a kernel's tile; sizes of models
    corners=(
        {"tokens": 0, "hidden": 33, "neurons": 9, "active": 5, "held": 9},
        {"tokens": 1, "hidden": 1, "neurons": 1, "active": 1, "held": 1},
        {"tokens": 2, "hidden": 2, "neurons": 2, "active": 1, "held": 1},
        {"tokens": 1, "hidden": 64, "neurons": 65, "active": 0, "held": 1},
        {"tokens": 3, "hidden": 64, "neurons": 65, "active": 0, "held": 1},
        {"tokens": 67, "hidden": 2112, "neurons": 50, "active": 33, "held": 40},
        {"tokens": 1, "hidden": 32, "neurons": 14_336, "active": 4_200, "held": 4_300},
        {"tokens": 3, "hidden": 33, "neurons": 11_009, "active": 4_100, "held": 4_100},
        {"tokens": 1, "hidden": 8, "neurons": 65_700, "active": 300, "held": 131_100},
        {"tokens": 65, "hidden": 14_336, "neurons": 20, "active": 17, "held": 18},
        {"tokens": 513, "hidden": 65, "neurons": 300, "active": 280, "held": 300},
    ),
    complaint=mask_complaint,
    rounded={"int8": as_int8, "int8_256": partial(as_int8, rounding="int8_256")},
    nan="token",
    largest=FACTOR,
    varying=("tokens", "active"),
    laws=(contained(SIGNATURE, make), *laws(make)),
)
