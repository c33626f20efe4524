"""Verify drafted tokens so that the output keeps the target's distribution: speculative sampling
(Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318; trees: Miao et al., 2305.09781).

A draft model proposes tokens x drawn from q; the target has p at that position. `accept` takes x
with probability min(1, p(x) / q(x)); after a rejection `recover` gives the residual distribution
norm(max(0, p - q)), from which `pick` draws. Several candidates for one position are tried in turn,
each against the residual after those before; `exclude` updates q when they are drawn without
replacement. Each row is one such position, a node of the draft tree.

p and q are probabilities, whose rows sum to one but for rounding; u is uniform in [0, 1).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.bounds import U64, gamma
from reference.laws import verification as laws
from reference.laws.common import alone
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range
from reference.samplers.distribution import LARGEST, LEAST, NEARLY_ONE
from reference.softmax import softmax


def at_tokens(rows: Array, tokens: Array) -> Array:
    """Gather each row's element at its token. [nodes vocab], [nodes] -> [nodes]."""
    return np.asarray(rows[np.arange(len(tokens)), tokens])


def accept(p: Array, q: Array, tokens: Array, u: Array) -> Array:
    """1 where u q(x) < p(x) and q(x) > 0: with probability min(1, p(x) / q(x)).

    So a token with p(x) = 0 is never accepted, for any u, and one with p(x) = q(x) always is. A
    token with q(x) = 0 cannot have been drawn from q: it is no proposal, see `recover`.
    p, q float64 [nodes vocab], tokens int32 [nodes], u float64 [nodes] -> uint8 [nodes].
    """
    drafted = at_tokens(q, tokens)
    return np.asarray((drafted > 0) & (u * drafted < at_tokens(p, tokens)), np.uint8)


def recover(p: Array, q: Array, tokens: Array) -> Array:
    """max(0, p - q) / sum max(0, p - q): the residual distribution after x from q is rejected.

    p itself where q(x) = 0, since a token that cannot be proposed changes nothing; and where the
    residual is 0, since p and q are then equal but for rounding, the only reason for a rejection.
    p, q float64 [nodes vocab], tokens int32 [nodes] -> float64 [nodes vocab].
    """
    left = np.maximum(0.0, p - q)
    return np.where(_unchanged(q, tokens, left), p, normalised(left))


def _unchanged(q: Array, tokens: Array, left: Array) -> Array:
    """Where a rejection does not change p. [nodes vocab], [nodes], [nodes vocab] -> [nodes 1]."""
    return np.asarray((at_tokens(q, tokens) == 0) | ~left.any(axis=-1))[:, None]


def exclude(p: Array, tokens: Array) -> Array:
    """p without each row's token, normalised; zeros if no other token is possible.

    Equal to recover(p, q, x) for a deterministic draft, whose q is 1 at x.
    p float64 [nodes vocab], tokens int32 [nodes] -> float64 [nodes vocab].
    """
    left = p.copy()
    left[np.arange(len(tokens)), tokens] = 0
    return normalised(left)


def normalised(left: Array) -> Array:
    """Each row divided by its sum; rows of zeros are unchanged. [nodes vocab] -> [nodes vocab]."""
    mass = left.sum(axis=-1, keepdims=True)
    return np.asarray(left / np.where(mass > 0, mass, 1))


def pick(p: Array, u: Array) -> Array:
    """The first token, by id, at which the cumulative sum of p exceeds u times the whole sum.

    It has p > 0, and rows need not sum to one. p float64 [nodes vocab], u float64 [nodes]
    -> tokens int32 [nodes].
    """
    running = np.cumsum(p, axis=-1)
    found = (running > (u * running[:, -1])[:, None]) & (p > 0)
    last = p.shape[1] - 1 - np.argmax(p[:, ::-1] > 0, axis=-1)
    return np.asarray(np.where(found.any(axis=-1), np.argmax(found, axis=-1), last), np.int32)


def some_rows(case: Case, rng: np.random.Generator) -> Array:
    """Distributions of the case's kind, with a quarter of the tokens removed. [nodes vocab]"""
    logits = case.array(rng, case.shape["nodes"], case.shape["vocab"]).astype(np.float64)
    removed = np.asarray(rng.random(logits.shape) < 0.25)
    removed[np.arange(len(logits)), rng.integers(logits.shape[1], size=len(logits))] = False
    return softmax(np.where(removed, -np.inf, logits))


def some_tokens(case: Case, rng: np.random.Generator) -> Array:
    return rng.integers(case.shape["vocab"], size=case.shape["nodes"], dtype=np.int32)


def one_hot(tokens: Array, vocab: int) -> Array:
    """One-hot distributions of these tokens. [nodes] -> [nodes vocab]"""
    rows = np.zeros((len(tokens), vocab))
    rows[np.arange(len(tokens)), tokens] = 1
    return rows


def rotated(case: Case, *options: Any) -> Array:
    """Each row takes the options in rotation, with the first by the case's seed. [nodes]"""
    rows = case.seed % len(options) + np.arange(case.shape["nodes"])
    return np.asarray(np.choose(rows % len(options), options))


def _make_rejected(case: Case) -> Arguments:
    """By row, q is an independent distribution, one-hot, p, p except for its least token, or nearly
    p; some tokens are drawn from q."""
    rng, vocab = case.rng(), case.shape["vocab"]
    p, q, tokens = some_rows(case, rng), some_rows(case, rng), some_tokens(case, rng)
    other, certain, equal, hair, almost = range(5)
    kind = rotated(case, other, certain, certain, other, equal, hair, almost)
    q[kind == certain] = one_hot(tokens[kind == certain], vocab)
    q[kind == equal] = p[kind == equal]
    rows = np.flatnonzero(kind == hair)
    least, q[rows] = p[rows].argmin(axis=-1), p[rows]
    p[rows, least], q[rows, least] = np.maximum(p[rows, least], 2.0**-1060), 0
    steps = rng.integers(-4, 5, (np.sum(kind == almost), vocab))
    q[kind == almost] = np.minimum(p[kind == almost] * (1 + 2.0**-50 * steps), 1)
    drawn = rotated(case, False, True, False)
    tokens[drawn] = pick(q[drawn], rng.random(np.sum(drawn)))
    return {"p": p, "q": q, "tokens": tokens}


def _make_accept(case: Case) -> Arguments:
    """Some u are p(x) / q(x) itself, where the product's rounding decides, or so near to it that
    float32 would decide differently."""
    inputs, rng = _make_rejected(case), case.rng()
    p, q = (at_tokens(inputs[name], inputs["tokens"]) for name in "pq")
    u = rng.random(len(p))
    ratio = np.where(p < q, p / np.where(p < q, q, 1), u)
    above = np.minimum(ratio * (1 + 2.0**-40), NEARLY_ONE)
    u = rotated(case, u, ratio * (1 - 2.0**-40), 0.0, ratio, NEARLY_ONE, above)
    return {**inputs, "u": u}


def _make_exclude(case: Case) -> Arguments:
    """A fifth of the rows are one-hot at the excluded token."""
    rng = case.rng()
    p, tokens = some_rows(case, rng), some_tokens(case, rng)
    certain = rotated(case, False, False, False, False, True)
    p[certain] = one_hot(tokens[certain], case.shape["vocab"])
    return {"p": p, "tokens": tokens}


def _make_pick(case: Case) -> Arguments:
    rng = case.rng()
    p, u = some_rows(case, rng), rng.random(case.shape["nodes"])
    p *= rotated(case, 1.0, 0.5, 1.0, 2.0**-40)[:, None]  # rows need not sum to one
    return {"p": p, "u": rotated(case, u, u, 0.0, u, NEARLY_ONE)}


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: a decision; the one product in `accept` is rounded identically everywhere."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def bound_of_quotients(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Sums of as many terms of the same sign, here and in the kernel, and the two quotients. Zeros
    are exact."""
    out = expected["out"]
    return {"out": np.where(out > 0, out * gamma(2 * out.shape[1] + 2, U64) + LEAST, 0)}


def bound_of_recovered(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Differences are rounded once, identically everywhere; rows that are p itself are exact."""
    whole = _unchanged(inputs["q"], inputs["tokens"], np.maximum(0.0, inputs["p"] - inputs["q"]))
    return {"out": np.where(whole, 0, bound_of_quotients(inputs, expected)["out"])}


def also(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The adjacent tokens, if u times the sum is nearer to their boundary than the errors of both
    sums in float64, here and in the kernel."""
    p, tokens = inputs["p"], expected["tokens"]
    running = np.cumsum(p, axis=-1)
    whole = running[:, -1:]
    target, error = inputs["u"][:, None] * whole, whole * gamma(4 * p.shape[1] + 4, U64)
    near = (running - p - error <= target) & (target < running + error) & (p > 0)
    most = int(near.sum(axis=-1).max(initial=0))
    ranked = np.argsort(~near, axis=-1, kind="stable")[:, :most]  # those near come first
    others = np.where(np.take_along_axis(near, ranked, axis=-1), ranked, tokens[:, None])
    return {"tokens": others.T}


def complaint(inputs: Arguments) -> str:
    for name in "pq":
        if name in inputs and not ((inputs[name] >= 0) & (inputs[name] <= 1)).all():
            return f"{name} holds numbers that are not probabilities"
    if "tokens" in inputs:
        return out_of_range("tokens", inputs["tokens"], inputs["p"].shape[1])
    return ""


def nothing_to_pick(inputs: Arguments) -> str:
    """The complaint of `pick`: at least one token must be possible in each row."""
    empty = np.flatnonzero(~(inputs["p"] > 0).any(axis=-1))
    return complaint(inputs) or (f"row {empty[0]} of p is all zeros" if empty.size else "")


def _cost(bytes_each: float, operations: float) -> Callable[[Shape, str | None], Cost]:
    def cost(shape: Shape, format: str | None) -> Cost:
        elements = shape["nodes"] * shape["vocab"]
        return Cost(bytes_each * elements, operations * elements)

    return cost


def cost_of_accept(shape: Shape, format: str | None) -> Cost:
    """Two probabilities, a token, u and a decision."""
    return Cost(29 * shape["nodes"], 3 * shape["nodes"])


_ON_ROWS: dict[str, Any] = {
    "axes": {
        "nodes": (0, 1, 2, 3, 7, 8, 9, 16, 17, 33, 65),
        "vocab": (1, 2, 3, 16, 31, 33, 63, 64, 65, 127, 129, 1000),
    },
    "corners": (
        {"nodes": 5, "vocab": 32000},
        {"nodes": 3, "vocab": 128256},
        {"nodes": 2, "vocab": 256000},
        {"nodes": 513, "vocab": 33},
    ),
    "largest": LARGEST,
    "varying": ("nodes",),
}
ACCEPT = (
    "p: f64[nodes vocab], q: f64[nodes vocab], tokens: i32[nodes], u: f64[nodes]"
    " -> accepted: u8[nodes]"
)
RECOVER = "p: f64[nodes vocab], q: f64[nodes vocab], tokens: i32[nodes] -> out: f64[nodes vocab]"
EXCLUDE = "p: f64[nodes vocab], tokens: i32[nodes] -> out: f64[nodes vocab]"
PICK = "p: f64[nodes vocab], u: f64[nodes] -> tokens: i32[nodes]"
OPS = (
    Op(
        name="accept",
        reference=accept,
        signature=ACCEPT,
        make=_make_accept,
        bound=exact,
        cost=cost_of_accept,
        complaint=complaint,
        laws=(alone(ACCEPT, _make_accept, "nodes"), *laws.ACCEPT),
        **_ON_ROWS,
    ),
    Op(
        name="recover",
        reference=recover,
        signature=RECOVER,
        make=_make_rejected,
        bound=bound_of_recovered,
        cost=_cost(24, 3),
        complaint=complaint,
        laws=(
            alone(RECOVER, _make_rejected, "nodes"),
            *laws.recover_laws(_make_rejected),
            *laws.RECOVER,
        ),
        **_ON_ROWS,
    ),
    Op(
        name="exclude",
        reference=exclude,
        signature=EXCLUDE,
        make=_make_exclude,
        bound=bound_of_quotients,
        cost=_cost(16, 2),
        complaint=complaint,
        laws=(alone(EXCLUDE, _make_exclude, "nodes"), *laws.exclude_laws(_make_exclude)),
        **_ON_ROWS,
    ),
    Op(
        name="pick",
        reference=pick,
        signature=PICK,
        make=_make_pick,
        bound=exact,
        also=also,
        cost=_cost(8, 1),
        complaint=nothing_to_pick,
        laws=(alone(PICK, _make_pick, "nodes"), *laws.pick_laws(_make_pick), *laws.PICK),
        **_ON_ROWS,
    ),
)
