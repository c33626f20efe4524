"""The gated delta rule (Yang, Kautz and Hatamizadeh, Gated Delta Networks, arXiv 2412.06464), as in
Qwen 3 Next: S_t = S_{t-1} (a_t (I - b_t k_t k_t^T)) + b_t v_t k_t^T, o_t = S_t q_t, with a_t =
exp(g_t), s = S^T. The recurrent form is the reference."""

import numpy as np

from reference.bounds import EXP, FACTOR, TINY, U, gamma
from reference.laws.common import scales
from reference.laws.recurrent.gated_delta_net import LAWS
from reference.laws.recurrent.state import state_laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.recurrent import state
from reference.sizes import TOKENS

SIGNATURE = (
    "q: f32[tokens groups state], k: f32[tokens groups state], v: f32[tokens heads head_dim],"
    " g: f32[tokens heads], beta: f32[tokens heads], group_of: i32[heads],"
    " before: f32[slots heads state head_dim], sources: i32[tokens], targets: i32[tokens]"
    " -> out: f32[tokens heads head_dim], states: f32[slots heads state head_dim]"
)


def gated_delta_net(
    q: Array, k: Array, v: Array, g: Array, beta: Array, group_of: Array, before: Array,
    sources: Array, targets: Array,
) -> tuple[Array, Array]:  # fmt: skip
    """s = exp(g) s, then s = s + k beta (v - s^T k), and out = s^T q: the value stored under a key
    moves towards v by the fraction beta.

    q, k (of length 1 at most) [tokens, groups, state], v [tokens, heads, head_dim], g (at most 0),
    beta (0 to 1) [tokens, heads]; group_of [heads] is the group of q and k of each head; before
    [slots, heads, state, head_dim]; sources and targets are those of reference/recurrent/state.py.
    -> float64 [tokens, heads, head_dim], and `before` with the slots that were written.
    """
    q, k = (each[:, group_of].astype(np.float64) for each in (q, k))
    v, g, beta = (each.astype(np.float64) for each in (v, g, beta))
    out, states = np.zeros(v.shape), before.astype(np.float64)
    for s, t in state.runs(sources, targets, states):
        s *= np.exp(g[t])[:, None, None]
        delta = beta[t][:, None] * (v[t] - read(s, k[t]))
        s += k[t][:, :, None] * delta[:, None, :]
        out[t] = read(s, q[t])
    return out, states


def read(s: Array, key: Array) -> Array:
    """s^T key of each head: s [heads, state, head_dim], key [heads, state] -> [heads, head_dim]."""
    return np.asarray((key[:, :, None] * s).sum(axis=1))


def make(case: Case) -> Arguments:
    """Keys of length 1, or 0; a third of the gates are at an end of their range."""
    shape, rng = case.shape, case.rng()
    tokens, heads, groups = shape["tokens"], shape["heads"], shape["groups"]
    k = case.array(rng, tokens, groups, shape["state"]).astype(np.float64)
    length = np.sqrt((k * k).sum(axis=-1, keepdims=True))
    beta = rng.choice([0, 1, *rng.random(4)], (tokens, heads))
    return {
        "q": case.array(rng, tokens, groups, shape["state"]),
        "k": (k / np.where(length > 0, length, 1)).astype(np.float32),
        "v": case.array(rng, tokens, heads, shape["head_dim"]),
        "g": -np.abs(case.array(rng, tokens, heads)),
        "beta": beta.astype(np.float32),
        "group_of": rng.integers(groups, size=heads).astype(np.int32),
        "before": case.array(rng, shape["slots"], heads, shape["state"], shape["head_dim"]),
        **state.some_runs(case, rng),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Errors of a state's columns, in Euclidean norm, propagate from token to token.

    In exact arithmetic a token maps a column s to (I - beta k k^T) e^g s + beta v k. The matrix has
    a norm of at most c = max(1, |1 - beta |k|^2|), so an error of norm E becomes c e^g E; an
    elementwise bound could double with each token. Each step adds its own roundings, on a state
    with an error: the decayed state (exp's error and a product's); beta (v - s^T k), with the
    errors of a sum of `state` products and v, and two more roundings; and the sum of the state and
    k times that. An output sums `state` products. An element's error is at most its column's.
    """
    of = inputs["group_of"]
    q, k = (inputs[n][:, of].astype(np.float64) for n in "qk")
    v, g, beta = (inputs[n].astype(np.float64) for n in ("v", "g", "beta"))
    rows = k.shape[2]
    lengths = [np.sqrt((each * each).sum(axis=2))[:, :, None] for each in (q, k)]
    stretch = np.maximum(1, np.abs(1 - beta[:, :, None] * lengths[1] ** 2))
    out, states = np.zeros(v.shape), _pairs(inputs["before"])
    for (s, error), t in state.runs(inputs["sources"], inputs["targets"], states):
        decay, gate = np.exp(g[t])[:, None], beta[t][:, None]
        e, (of_q, of_k) = error[:, 0], (each[t] for each in lengths)
        held = _length(s) + e
        e = decay * e + (decay * ((1 + EXP) * (1 + U) - 1) + TINY) * held + rows * TINY
        s *= decay[:, :, None]
        summed = np.abs(v[t]) + read(np.abs(s), np.abs(k[t])) + of_k * e
        delta = gate * (v[t] - read(s, k[t]))
        off = gate * (gamma(rows + 3) * summed + (rows + 2) * TINY) + TINY
        moved = of_k * (np.abs(delta) + gate * of_k * e + off)
        e = stretch[t] * e + of_k * off + gamma(2) * (_length(s) + e + moved) + rows * TINY
        s += k[t][:, :, None] * delta[:, None, :]
        error[:] = e[:, None, :]
        products = read(np.abs(s), np.abs(q[t])) + of_q * e
        out[t] = of_q * e + gamma(rows) * products + rows * TINY
    return {"out": out, "states": states[:, 1]}


def _pairs(before: Array) -> Array:
    """States and their errors [slots, 2, heads, state, head_dim]."""
    exact = before.astype(np.float64)
    return np.stack([exact, np.zeros_like(exact)], axis=1)


def _length(s: Array) -> Array:
    """The norm of each column [heads, head_dim]."""
    return np.asarray(np.sqrt((s * s).sum(axis=1)))


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, heads, size = shape["tokens"], shape["heads"], shape["state"]
    inner = heads * shape["head_dim"]
    moved = 8 * tokens * (shape["groups"] * size + inner + heads) + 4 * heads
    return Cost(moved + state.traffic(shape, size * inner), 7 * tokens * size * inner)


def fit(shape: Shape, format: str | None) -> Shape:
    """At least one group, and at least two slots."""
    return {**state.fit(shape, format), "groups": max(1, shape["groups"])}


def complaint(inputs: Arguments) -> str:
    groups = inputs["q"].shape[1]
    return out_of_range("group_of", inputs["group_of"], groups) or state.complaint(inputs)


OP = Op(
    name="gated_delta_net",
    reference=gated_delta_net,
    signature=SIGNATURE,
    axes={
        "tokens": TOKENS,
        "groups": (1, 2, 3),
        "heads": (1, 2, 3, 4, 6, 8),
        "head_dim": (1, 2, 8, 15, 16, 17, 33, 64),
        "state": (1, 2, 3, 16, 17, 33),
        "slots": (2, 3, 5, 8, 17),
    },
    make=make,
    bound=bound,
    cost=cost,
    fit=fit,
    corners=(
        {"tokens": 0, "groups": 1, "heads": 2, "head_dim": 17, "state": 16, "slots": 3},
        {"tokens": 65, "groups": 2, "heads": 4, "head_dim": 33, "state": 16, "slots": 9},
        {"tokens": 513, "groups": 1, "heads": 1, "head_dim": 17, "state": 3, "slots": 3},
        {"tokens": 4, "groups": 1, "heads": 2, "head_dim": 147, "state": 17, "slots": 3},
        {"tokens": 3, "groups": 16, "heads": 32, "head_dim": 128, "state": 128, "slots": 2},
        {"tokens": 2, "groups": 16, "heads": 48, "head_dim": 128, "state": 128, "slots": 2},
    ),
    complaint=complaint,
    largest=FACTOR,
    varying=("tokens", "slots"),
    laws=(
        *state_laws(SIGNATURE, make),
        *LAWS,
        scales(make, ["v", "before"], [-1, 0, 2]),
    ),
)
