"""Scans of selective state space models, h_t = exp(dt A) h_{t-1} + dt B x_t, y_t = C h_t + D x_t:
Mamba (Gu and Dao, arXiv 2312.00752), with decay rates A for each channel, and Mamba 2 (Dao and Gu,
arXiv 2405.21060), with one for each head. The recurrent form is the reference."""

import numpy as np

from reference.bounds import EXP, TINY, U, gamma
from reference.laws.common import alone, scales
from reference.laws.recurrent.ssm_scan import scan_laws
from reference.laws.recurrent.state import state_laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.recurrent import state
from reference.sizes import TOKENS

LARGEST = 2.0**20  # a state is a product of three inputs, an output of four
DEEPEST = 104.0  # e^-104 underflows float32

SCAN = (
    "x: f32[tokens inner], dt: f32[tokens inner], a: f32[state inner], b: f32[tokens state],"
    " c: f32[tokens state], d: f32[inner], before: f32[slots state inner], sources: i32[tokens],"
    " targets: i32[tokens] -> out: f32[tokens inner], states: f32[slots state inner]"
)
HEADS = (
    "x: f32[tokens heads head_dim], dt: f32[tokens heads], a: f32[heads],"
    " b: f32[tokens groups state], c: f32[tokens groups state], d: f32[heads],"
    " before: f32[slots heads state head_dim], sources: i32[tokens], targets: i32[tokens]"
    " -> out: f32[tokens heads head_dim], states: f32[slots heads state head_dim]"
)


def ssm_scan(
    x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, before: Array, sources: Array,
    targets: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Mamba: s = exp(dt a) s + dt b x, then out = c s + d x, with a state for each channel.

    x, dt (at least 0) [tokens, inner], a (at most 0) [state, inner], b, c [tokens, state], d
    [inner], before [slots, state, inner]; sources and targets are those of
    reference/recurrent/state.py.
    -> float64 [tokens, inner], and `before` with the slots that were written.
    """
    x, dt = x.astype(np.float64), dt.astype(np.float64)
    out, states = np.zeros(x.shape), before.astype(np.float64)
    for s, t in state.runs(sources, targets, states):
        s[:] = np.exp(dt[t] * a) * s + b[t][:, None] * (dt[t] * x[t])
        out[t] = c[t].astype(np.float64) @ s + d * x[t]
    return out, states


def ssm_scan_heads(
    x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, before: Array, sources: Array,
    targets: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """Mamba 2: the same, where each head has one dt, a and d, and head h has the b and c of group h
    * groups / heads.

    x [tokens, heads, head_dim], dt (at least 0) [tokens, heads], a (at most 0), d [heads], b, c
    [tokens, groups, state], before [slots, heads, state, head_dim].
    -> float64 [tokens, heads, head_dim], and `before` with the slots that were written.
    """
    x, dt = x.astype(np.float64), dt.astype(np.float64)
    out, states = np.zeros(x.shape), before.astype(np.float64)
    b, c = (np.repeat(each, x.shape[1] // each.shape[1], axis=1) for each in (b, c))
    for s, t in state.runs(sources, targets, states):
        decay = np.exp(dt[t] * a)[:, None, None]
        s[:] = decay * s + b[t][:, :, None] * (dt[t][:, None] * x[t])[:, None, :]
        out[t] = (c[t][:, :, None] * s).sum(axis=1) + d[:, None] * x[t]
    return out, states


def make(case: Case) -> Arguments:
    shape, rng = case.shape, case.rng()
    inner, size = shape["inner"], shape["state"]
    return {
        "x": case.array(rng, shape["tokens"], inner),
        "dt": np.abs(case.array(rng, shape["tokens"], inner)),
        "a": -np.abs(case.array(rng, size, inner)),
        "b": case.array(rng, shape["tokens"], size),
        "c": case.array(rng, shape["tokens"], size),
        "d": case.array(rng, inner),
        "before": case.array(rng, shape["slots"], size, inner),
        **state.some_runs(case, rng),
    }


def make_heads(case: Case) -> Arguments:
    shape, rng = case.shape, case.rng()
    tokens, heads, size = shape["tokens"], shape["heads"], shape["state"]
    return {
        "x": case.array(rng, tokens, heads, shape["head_dim"]),
        "dt": np.abs(case.array(rng, tokens, heads)),
        "a": -np.abs(case.array(rng, heads)),
        "b": case.array(rng, tokens, shape["groups"], size),
        "c": case.array(rng, tokens, shape["groups"], size),
        "d": case.array(rng, heads),
        "before": case.array(rng, shape["slots"], heads, size, shape["head_dim"]),
        **state.some_runs(case, rng),
    }


def propagate(sizes: Array, exponent: Array, added: Array) -> None:
    """Propagate a state's magnitude and error, sizes [2, ...], by one step in place: s = e^exponent
    s + added.

    The exponent is one product, so the factor has a relative error of U * |exponent| besides exp's
    own, and below float32's range it is 0. Its product with the state rounds, the added term has
    two roundings, and the sum rounds.
    """
    decay = np.exp(exponent)
    own = np.expm1(U * np.minimum(np.abs(exponent), DEEPEST) + EXP)
    kept = decay * (1 + own) * (1 + gamma(3))
    magnitude, error = sizes
    error[:] = kept * error + (kept - decay) * magnitude + gamma(4) * added
    error += TINY * (3 + magnitude)
    magnitude[:] = decay * magnitude + added


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A state's errors grow from token to token (`propagate`); an output sums them, with `state`
    products and that of d."""
    x, dt, a = (inputs[n].astype(np.float64) for n in ("x", "dt", "a"))
    b, c, d = (np.abs(inputs[n]).astype(np.float64) for n in "bcd")
    out, sizes = np.zeros(x.shape), _sizes(inputs["before"])
    for s, t in state.runs(inputs["sources"], inputs["targets"], sizes):
        propagate(s, dt[t] * a, b[t][:, None] * (dt[t] * np.abs(x[t])))
        held, through = c[t] @ (s[0] + s[1]), d * np.abs(x[t])
        out[t] = c[t] @ s[1] + gamma(len(a) + 2) * (held + through) + (len(a) + 3) * TINY
    return {"out": out, "states": sizes[:, 1]}


def bound_of_heads(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    x, dt, a = (inputs[n].astype(np.float64) for n in ("x", "dt", "a"))
    b, c, d = (np.abs(inputs[n]).astype(np.float64) for n in "bcd")
    b, c = (np.repeat(each, x.shape[1] // each.shape[1], axis=1)[..., None] for each in (b, c))
    out, sizes, size = np.zeros(x.shape), _sizes(inputs["before"]), b.shape[2]
    for s, t in state.runs(inputs["sources"], inputs["targets"], sizes):
        exponent = np.broadcast_to((dt[t] * a)[:, None, None], s[0].shape)
        propagate(s, exponent, b[t] * (dt[t][:, None] * np.abs(x[t]))[:, None, :])
        held, through = (c[t] * (s[0] + s[1])).sum(axis=1), d[:, None] * np.abs(x[t])
        out[t] = (c[t] * s[1]).sum(axis=1) + gamma(size + 2) * (held + through)
        out[t] += (size + 3) * TINY
    return {"out": out, "states": sizes[:, 1]}


def _sizes(before: Array) -> Array:
    """Magnitudes and errors [slots, 2, ...] of the initial states."""
    magnitude = np.abs(before.astype(np.float64))
    return np.stack([magnitude, np.zeros_like(magnitude)], axis=1)


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, inner, size = shape["tokens"], shape["inner"], shape["state"]
    moved = 4 * (3 * tokens * inner + (size + 1) * inner + 2 * tokens * size)
    return Cost(moved + state.traffic(shape, size * inner), 7 * tokens * size * inner)


def cost_of_heads(shape: Shape, format: str | None) -> Cost:
    tokens, heads, size = shape["tokens"], shape["heads"], shape["state"]
    inner = heads * shape["head_dim"]
    moved = 4 * (2 * tokens * inner + tokens * heads + 2 * tokens * shape["groups"] * size)
    return Cost(moved + state.traffic(shape, size * inner), 5 * tokens * size * inner)


def fit_heads(shape: Shape, format: str | None) -> Shape:
    """heads is a multiple of groups."""
    groups = max(1, shape["groups"])
    heads = -(-max(1, shape["heads"]) // groups) * groups
    return {**state.fit(shape, format), "groups": groups, "heads": heads}


def complaint_of_heads(inputs: Arguments) -> str:
    heads, groups = inputs["x"].shape[1], inputs["b"].shape[1]
    if not groups or heads % groups:
        return f"{heads} heads are not a multiple of {groups} groups"
    return state.complaint(inputs)


OPS = (
    Op(
        name="ssm_scan",
        reference=ssm_scan,
        signature=SCAN,
        axes={
            "tokens": TOKENS,
            "inner": (1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 129),
            "state": (1, 2, 3, 8, 16, 17),
            "slots": (2, 3, 5, 8, 17),
        },
        make=make,
        bound=bound,
        cost=cost,
        fit=state.fit,
        corners=(
            {"tokens": 0, "inner": 33, "state": 16, "slots": 3},
            {"tokens": 65, "inner": 33, "state": 16, "slots": 9},
            {"tokens": 513, "inner": 17, "state": 3, "slots": 3},
            {"tokens": 2, "inner": 5120, "state": 16, "slots": 2},
            {"tokens": 3, "inner": 8209, "state": 5, "slots": 2},
        ),
        complaint=state.complaint,
        largest=LARGEST,
        varying=("tokens", "slots"),
        laws=(alone(SCAN, make, "inner"), *state_laws(SCAN, make),
              *scan_laws(make),
              scales(make, ["x", "before"], [-1, 0, 2])),
    ),
    Op(
        name="ssm_scan_heads",
        reference=ssm_scan_heads,
        signature=HEADS,
        axes={
            "tokens": TOKENS,
            "heads": (1, 2, 3, 4, 6, 8),
            "head_dim": (1, 2, 8, 15, 16, 17, 33, 64),
            "groups": (1, 2, 3),
            "state": (1, 2, 3, 16, 17, 33),
            "slots": (2, 3, 5, 8, 17),
        },
        make=make_heads,
        bound=bound_of_heads,
        cost=cost_of_heads,
        fit=fit_heads,
        corners=(
            {"tokens": 0, "heads": 2, "head_dim": 17, "groups": 1, "state": 16, "slots": 3},
            {"tokens": 65, "heads": 2, "head_dim": 33, "groups": 2, "state": 16, "slots": 9},
            {"tokens": 513, "heads": 1, "head_dim": 17, "groups": 1, "state": 3, "slots": 3},
            {"tokens": 3, "heads": 24, "head_dim": 64, "groups": 1, "state": 128, "slots": 2},
            {"tokens": 2, "heads": 128, "head_dim": 64, "groups": 8, "state": 128, "slots": 2},
        ),
        complaint=complaint_of_heads,
        largest=LARGEST,
        varying=("tokens", "slots"),
        laws=(*state_laws(HEADS, make_heads), *scan_laws(make_heads),
              scales(make_heads, ["x", "before"], [-1, 0, 2])),
    ),
)  # fmt: skip
