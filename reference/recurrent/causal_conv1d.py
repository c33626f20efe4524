"""Depthwise causal convolution of state space models (Gu and Dao, Mamba, arXiv 2312.00752): y_t = b
+ sum_j w_j x_{t - taps + 1 + j}, by channel."""

import numpy as np

from reference.bounds import TINY, gamma
from reference.laws.common import alone
from reference.laws.recurrent.causal_conv1d import LAWS
from reference.laws.recurrent.state import state_laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.recurrent import state
from reference.sizes import TOKENS, WIDTHS

SIGNATURE = (
    "x: f32[tokens width], weight: f32[taps width], bias: f32[width],"
    " before: f32[slots kept width], sources: i32[tokens], targets: i32[tokens]"
    " -> out: f32[tokens width], states: f32[slots kept width]"
)


def causal_conv1d(
    x: Array, weight: Array, bias: Array, before: Array, sources: Array, targets: Array
) -> tuple[Array, Array]:
    """out[t] = bias + sum over j of weight[j] * x[t - taps + 1 + j], by channel.

    x [tokens, width], weight [taps, width], bias [width]. A sequence's state is its last kept =
    taps - 1 tokens: before [slots, kept, width]; sources and targets are those of
    reference/recurrent/state.py. -> float64 [tokens, width], and `before` with the slots that were
    written.
    """
    out, states = np.zeros(x.shape), before.copy()
    for columns, t in state.runs(sources, targets, states):
        window = np.concatenate([columns, x[t : t + 1]])
        out[t] = bias + (weight.astype(np.float64) * window).sum(axis=0)
        columns[:] = window[1:]
    return out, states


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    width = shape["width"]
    return {
        "x": case.array(rng, shape["tokens"], width),
        "weight": case.array(rng, shape["taps"], width),
        "bias": case.array(rng, width),
        "before": case.array(rng, shape["slots"], shape["kept"], width),
        **state.some_runs(case, rng),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A sum of `taps` products and the bias, in any order; states are copies."""
    taps = len(inputs["weight"])
    sizes = {n: np.abs(inputs[n]) for n in ("x", "weight", "bias", "before")}
    magnitude, _ = causal_conv1d(**{**inputs, **sizes})
    return {
        "out": gamma(taps + 1) * magnitude + (taps + 1) * TINY,
        "states": np.zeros_like(expected["states"], np.float64),
    }


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    moved = 8 * elements + 4 * (shape["taps"] + 1) * shape["width"]
    moved += state.traffic(shape, shape["kept"] * shape["width"])
    return Cost(moved, 2 * shape["taps"] * elements)


def fit(shape: Shape, format: str | None) -> Shape:
    """kept = taps - 1, and at least two slots."""
    taps = max(2, shape["taps"])
    return {**state.fit(shape, format), "taps": taps, "kept": taps - 1}


def complaint(inputs: Arguments) -> str:
    taps, kept = len(inputs["weight"]), inputs["before"].shape[1]
    if kept != taps - 1:
        return f"a state keeps {kept} tokens, {taps} taps want {taps - 1}"
    return state.complaint(inputs)


OP = Op(
    name="causal_conv1d",
    reference=causal_conv1d,
    signature=SIGNATURE,
    axes={
        "tokens": TOKENS,
        "width": WIDTHS,
        "taps": (2, 3, 4, 5),
        "slots": (2, 3, 5, 8, 17),
        "kept": (3,),
    },
    make=make,
    bound=bound,
    cost=cost,
    fit=fit,
    corners=(
        {"tokens": 0, "width": 33, "taps": 4, "slots": 3},
        {"tokens": 65, "width": 33, "taps": 3, "slots": 9},
        {"tokens": 513, "width": 17, "taps": 4, "slots": 3},
        {"tokens": 3, "width": 8192, "taps": 4, "slots": 3},
        {"tokens": 2, "width": 8209, "taps": 3, "slots": 2},
    ),
    complaint=complaint,
    varying=("tokens", "slots"),
    laws=(alone(SIGNATURE, make, "width"), *state_laws(SIGNATURE, make), *LAWS),
)
