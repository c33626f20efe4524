"""Attention weights received by cells, out = before + sum_t softmax(scale * q_t k^T): the scores of
H2O (arXiv 2306.14048) and SnapKV (arXiv 2404.14469)."""

import numpy as np

from reference.attention import attention
from reference.attention.attention import LARGEST, apply_softcap, dots, rows_of, weight_errors
from reference.bounds import TINY, gamma
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.laws.attention.attention_received import LAWS
from reference.laws.common import in_turns
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range


def attention_received(
    q: Array, k: Array, lists: Array, spans: Array, scale: float, softcap: float, before: Array,
    format: str,
) -> Array:  # fmt: skip
    """out[s, g, j] = before[s, g, j] + the sum of the attention weights of cell lists[s, j] over
    the tokens of sequence s and the query heads that read KV head g.

    Weights are attention's, softmax(scale * q k^T) over the cells that a token sees, with its
    softcap; q, k, lists and spans are documented there. before float32 [sequences, kv_heads,
    capacity] -> float64, like before. The spans of one sequence's tokens begin at the same cell.
    """
    out, keys = before.astype(np.float64), rows_of(k, q.shape[2], format)
    for t, (sequence, begin, end) in enumerate(spans):
        cells = lists[sequence, begin:end]
        if len(cells):
            scores = apply_softcap(scale * dots(q[t], keys[cells]), softcap)
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = powers / powers.sum(axis=1, keepdims=True)
            groups = weights.reshape(before.shape[1], -1, len(cells))
            out[sequence, :, begin:end] += groups.sum(axis=1)
    return out


def make(case: Case) -> Arguments:
    """attention's case, with weights that cells received earlier; in some cases spans begin later
    in their lists, as in a block that keeps fewer cells."""
    rng, shape = case.rng(), case.shape
    given = attention.make(
        Case({**shape, "windowed": 0, "alibi": 0}, case.values, case.seed, case.format, LARGEST)
    )
    names = ("q", "k", "lists", "spans", "scale", "softcap", "format")
    dims = shape["sequences"], shape["kv_heads"], shape["capacity"]
    before = np.abs(rng.standard_normal(dims, np.float32)) * (rng.random(dims) < 0.5)
    if case.seed % 2:
        for sequence in range(shape["sequences"]):
            own = given["spans"][:, 0] == sequence
            most = given["spans"][own, 2].min(initial=shape["capacity"])
            given["spans"][own, 1] = rng.integers(0, most + 1)
    return {name: given[name] for name in names} | {"before": before.astype(np.float32)}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A weight has attention's error; weights are added one after the other, in any order."""
    q, off = inputs["q"], np.zeros_like(expected["out"])
    keys = rows_of(inputs["k"], q.shape[2], inputs["format"])
    none = np.full(q.shape[1], -np.inf)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        cells = inputs["lists"][sequence, begin:end]
        if not len(cells):
            continue
        no_bias = np.zeros((q.shape[1], len(cells)))
        weights, growth = weight_errors(
            q[t], keys[cells], no_bias, none, inputs["scale"], inputs["softcap"],
            gamma(q.shape[2] + 2),
        )  # fmt: skip
        lost = (weights * growth)[:, :-1] + TINY
        off[sequence, :, begin:end] += lost.reshape(off.shape[1], -1, len(cells)).sum(axis=1)
    terms = len(q) * q.shape[1] // off.shape[1]
    return {"out": off + gamma(terms) * (expected["out"] + off) + terms * TINY}


def complaint(inputs: Arguments) -> str:
    heads, kv_heads = inputs["q"].shape[1], inputs["before"].shape[1]
    if not kv_heads or heads % kv_heads:
        return f"{heads} heads are not a multiple of {kv_heads} kv_heads"
    sequences, capacity = inputs["lists"].shape
    sequence, begin, end = inputs["spans"].T
    for s in np.unique(sequence):
        begins = np.unique(begin[(sequence == s) & (end > begin)])
        if len(begins) > 1:
            return f"tokens of sequence {s} begin at cells {begins[0]} and {begins[1]} of its list"
    return (
        out_of_range("lists", inputs["lists"], capacity)
        or out_of_range("spans[:, 0]", sequence, sequences)
        or out_of_range("spans[:, 1]", begin, capacity + 1)
        or out_of_range("spans[:, 2]", end, capacity + 1)
    )


def cost(shape: Shape, format: str | None) -> Cost:
    """Half of attention's arithmetic and cache traffic; `before` is read, `out` written."""
    whole = attention.cost(shape, format)
    return Cost(whole.bytes / 2 + 8 * shape["kv_heads"] * shape["capacity"], whole.operations / 2)


SIGNATURE = (
    "q: f32[tokens heads head_dim], k: format[capacity head_dim*kv_heads],"
    " lists: i32[sequences capacity], spans: i32[tokens 3], scale: f64, softcap: f64,"
    " before: f32[sequences kv_heads capacity] -> out: f32[sequences kv_heads capacity]"
)


def _plain(**sizes: int) -> Shape:
    return {"sequences": 1, "softcapped": 0, **sizes}


OP = Op(
    name="attention_received",
    reference=attention_received,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 8, 9),
        "heads": (1, 2, 3, 4, 6, 8, 9),
        "kv_heads": (1, 2, 3, 4, 5, 8, 9),
        "head_dim": (2, 6, 16, 32, 48, 64, 80, 96, 128, 256),
        "capacity": (1, 2, 15, 16, 17, 33, 65, 129, 130, 257, 290),
        "sequences": (1, 2, 3, 5, 8),
        "softcapped": (1, 0),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=attention.fit,
    corners=(
        # attention's chunks and tiles; groups of more heads than a tile; a prompt's end
        _plain(tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=600),
        _plain(tokens=10, heads=4, kv_heads=1, head_dim=64, capacity=500, sequences=2),
        _plain(tokens=5, heads=33, kv_heads=1, head_dim=64, capacity=290, softcapped=1),
        _plain(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16),
        _plain(tokens=513, heads=1, kv_heads=1, head_dim=64, capacity=270),
        _plain(tokens=33, heads=32, kv_heads=4, head_dim=64, capacity=70),
        _plain(tokens=3, heads=32, kv_heads=32, head_dim=128, capacity=17),
        _plain(tokens=3, heads=4, kv_heads=2, head_dim=80, capacity=65),
        _plain(tokens=5, heads=9, kv_heads=1, head_dim=576, capacity=270),
        _plain(tokens=3, heads=2, kv_heads=1, head_dim=64, capacity=4100),
        _plain(tokens=2, heads=1, kv_heads=1, head_dim=64, capacity=65600),
    ),
    complaint=complaint,
    largest=LARGEST,
    varying=("tokens", "capacity", "sequences"),
    laws=(in_turns(SIGNATURE, make), *LAWS),
)
