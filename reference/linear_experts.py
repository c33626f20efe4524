"""The linear layer of a mixture of experts (grouped GEMM): y_t = x_t W_e^T, e the expert of t."""

from collections.abc import Callable

import numpy as np

from reference import linear as dense
from reference.bounds import FACTOR
from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.laws.linear_experts import laws
from reference.linear import linear
from reference.op import Arguments, Array, Case, Cost, Op, Rounded, Shape, out_of_range
from reference.sparse.neuron_masks import some_slots

SIGNATURE = (
    "x: f32[tokens hidden], ends: i32[experts], weight: format[held out hidden],"
    " slots: i32[experts] -> out: f32[tokens out]"
)


def linear_experts(
    x: Array,
    ends: Array,
    weight: Array,
    slots: Array,
    format: str,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """out = x W_e^T, where tokens ends[e - 1] to ends[e] are those of expert e, and the first
    expert's begin at 0. W_e is weight[slots[e]]: not all need be in memory. Slots and weights of
    experts without tokens are not read.

    `linear` may be one on quantised activations.
    x [tokens, hidden], each token once for each of its experts, in the order of sort_by_expert;
    ends int32 [experts]; weight uint8 [held, out, row_bytes] in `format`; slots int32 [experts] ->
    float64 [tokens, out].
    """
    out = np.zeros((len(x), weight.shape[1]))
    for expert, begin, end in runs(ends):
        out[begin:end] = linear(x[begin:end], weight[slots[expert]], format)
    return out


def runs(ends: Array) -> list[tuple[int, int, int]]:
    """(expert, begin, end) of experts that have tokens."""
    begins = [0, *ends[:-1].tolist()]
    return [(e, b, n) for e, (b, n) in enumerate(zip(begins, ends.tolist(), strict=True)) if b < n]


def make(case: Case) -> Arguments:
    """In a large weight only matrices of experts that have tokens are nonzero."""
    rng, shape = case.rng(), case.shape
    x = dense.some_tokens(case, rng, shape["tokens"], shape["hidden"])
    held, out, hidden = shape["held"], shape["out"], shape["hidden"]
    known = case.some_of(held, out * hidden)
    rows = case.weight(rng, len(known) * out, hidden).reshape(len(known), out, -1)
    weight = rows
    if len(known) < held:  # other matrices are zero pages, never touched
        weight = np.zeros((held, *rows.shape[1:]), np.uint8)
        weight[known] = rows
    able = rng.permutation(shape["experts"])[: len(known)]
    counts = np.zeros(shape["experts"], np.int64)
    counts[able] = some_counts(case, rng, shape["tokens"], len(able))
    active = np.flatnonzero(counts)
    slots = some_slots(rng, active, shape["experts"], held)
    slots[active] = rng.permutation(known)[: len(active)]
    ends = np.cumsum(counts).astype(np.int32)
    return {"x": x, "ends": ends, "weight": weight, "slots": slots, "format": case.format}


def some_counts(case: Case, rng: np.random.Generator, tokens: int, experts: int) -> Array:
    """Numbers of tokens by expert: each of the experts has one, if there are enough tokens, and the
    rest goes to any or to few of them."""
    counts = np.zeros(experts, np.int64)
    counts[rng.permutation(experts)[:tokens]] = 1
    liked = rng.random(experts) ** (1, 8)[case.seed % 2]
    return counts + rng.multinomial(tokens - counts.sum(), liked / liked.sum())


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """linear's for each run."""
    out = np.zeros_like(expected["out"])
    for own, begin, end in by_run(inputs):
        out[begin:end] = dense.bound(own, {"out": expected["out"][begin:end]})["out"]
    return {"out": out}


def by_run(inputs: Arguments) -> list[tuple[Arguments, int, int]]:
    """linear's inputs for each expert that has tokens, and the range of these tokens."""
    x, weight, slots, ends = (inputs[name] for name in ("x", "weight", "slots", "ends"))
    of_all = {"format": inputs["format"]}
    return [
        ({"x": x[begin:end], "weight": weight[slots[expert]], **of_all}, begin, end)
        for expert, begin, end in runs(ends)
    ]


def rounded_as(of_linear: Rounded) -> Rounded:
    """Op.rounded: linear's for each run."""

    def rounded(inputs: Arguments) -> tuple[Arguments, Array, Array]:
        x = np.zeros(inputs["x"].shape)
        tight, step = np.zeros((2, len(x), inputs["weight"].shape[1]))
        for own, begin, end in by_run(inputs):
            exact, tight[begin:end], step[begin:end] = of_linear(own)
            x[begin:end] = exact["x"]
        return {**inputs, "x": x}, tight, step

    return rounded


def unfit_ends(inputs: Arguments) -> str:
    ends, tokens = inputs["ends"], len(inputs["x"])
    if (np.diff(ends, prepend=0) < 0).any() or ends[-1] != tokens:
        return f"ends are not ascending up to the {tokens} tokens"
    return ""


def complaint(inputs: Arguments) -> str:
    if found := unfit_ends(inputs):
        return found
    used = [expert for expert, *_ in runs(inputs["ends"])]
    return out_of_range("slots", inputs["slots"][used], len(inputs["weight"]))


def cost(shape: Shape, format: str | None) -> Cost:
    """The weights read are those of as many experts as can have tokens: exact for a step of one
    token, and nearly so for many."""
    tokens, hidden, out = shape["tokens"], shape["hidden"], shape["out"]
    row = FORMATS[format or "F32"].row_bytes(hidden)
    weight = min(tokens, shape["experts"]) * out * row
    return Cost(weight + 4 * tokens * (hidden + out), 2 * tokens * hidden * out)


def fit(shape: Shape, format: str | None) -> Shape:
    least = {axis: max(1, shape[axis]) for axis in ("experts", "held")}
    return {**whole_blocks(shape, format), **least}


OP = Op(
    name="linear_experts",
    reference=linear_experts,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 9, 17, 33),
        "experts": (1, 2, 3, 5, 8, 17),
        "hidden": (31, 33, 127, 129, 256),
        "out": (16, 31, 33, 65),
        "held": (1, 3, 5, 8, 19),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=tuple(FORMATS),
    fit=fit,
    # the smallest sizes; runs of more tokens and a larger hidden than a kernel's tile; more experts
    # than any model has
    corners=(
        {"tokens": 0, "experts": 3, "hidden": 33, "out": 5, "held": 3},
        {"tokens": 1, "experts": 1, "hidden": 1, "out": 1, "held": 1},
        {"tokens": 3, "experts": 2, "hidden": 2, "out": 2, "held": 2},
        {"tokens": 8, "experts": 64, "hidden": 1056, "out": 17, "held": 40},
        {"tokens": 273, "experts": 3, "hidden": 1056, "out": 33, "held": 3},
        {"tokens": 513, "experts": 8, "hidden": 65, "out": 33, "held": 8},
        {"tokens": 7, "experts": 520, "hidden": 33, "out": 16, "held": 515},
    ),
    complaint=complaint,
    rounded={"int8": rounded_as(dense.as_int8), "int8_256": rounded_as(dense.as_int8_256)},
    nan="token",
    largest=FACTOR,
    laws=laws(SIGNATURE, make),
)
