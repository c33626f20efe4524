"""Scaled dot-product attention over a KV cache (Vaswani et al., arXiv 1706.03762).

Grouped queries (Ainslie et al., arXiv 2305.13245): query head h reads KV head h * kv_heads / heads.
Which cells a token sees is data: the cache lists each sequence's cells in order of position, and a
token sees a range of one list. So causality, sliding windows, shared prefixes and trees are one
mechanism, and where a cell lies never changes a result.
"""

import math

import numpy as np

from reference.bounds import EXP, TINY, U, gamma
from reference.formats import FORMATS
from reference.kv_write import FORMATS_OF_CACHE
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

LARGEST_SCORE = 60.0  # of sum |q||k|; of the scores themselves some 20
MERGED = 64  # cells: a kernel may add partial results of so many, or of more


def attention(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, scale: float, softcap: float, format: str,
) -> Array:  # fmt: skip
    """out = softmax(scale * q k^T + bias) v, each token over its own cells.

    q [tokens, heads, head_dim]; k, v uint8 [capacity, row_bytes], rows of kv_heads * head_dim
    elements in `format`. lists int32 [sequences, capacity]: cells by position; spans int32
    [tokens, 3]: token t sees lists[s, begin:end] for (s, begin, end) = spans[t] (none gives 0).
    positions int32 [tokens] and cell_positions int32 [capacity] with slopes [heads] make ALiBi's
    bias, -slope * distance (Press et al., arXiv 2108.12409). softcap c > 0 turns a score s into
    c * tanh(s / c) before the bias (Gemma 2, arXiv 2408.00118).
    -> float64 [tokens, heads, head_dim].
    """
    keys, values = _rows(k, q.shape[2], format), _rows(v, q.shape[2], format)
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(spans):
        cells = lists[sequence, begin:end]
        if len(cells):
            scores, _ = _scores(q[t], keys[cells], scale, softcap)
            scores += -slopes[:, None] * (positions[t] - cell_positions[cells])
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = powers / powers.sum(axis=1, keepdims=True)
            out[t] = np.einsum("hc,chd->hd", weights, _by_head(values[cells], q.shape[1]))
    return out


def _rows(cache: Array, head_dim: int, format: str) -> Array:
    """uint8 [capacity, row_bytes] -> float64 [capacity, kv_heads, head_dim]."""
    rows = FORMATS[format].dequantise(cache).astype(np.float64)
    return rows.reshape(len(rows), -1, head_dim)


def _by_head(rows: Array, heads: int) -> Array:
    return np.repeat(rows, heads // rows.shape[1], axis=1)


def _scores(q: Array, keys: Array, scale: float, softcap: float) -> tuple[Array, Array]:
    """Scores [heads, cells] before the bias, and sum |q||k| of each."""
    keys = _by_head(keys, q.shape[0])
    scores = scale * np.einsum("hd,chd->hc", q.astype(np.float64), keys)
    magnitude = abs(scale) * np.einsum("hd,chd->hc", np.abs(q).astype(np.float64), np.abs(keys))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    return scores, magnitude


def make(case: Case) -> Arguments:
    """Tokens at the end of sequences that share one cache, their cells scattered over it."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    cache_format = FORMATS[case.format]
    tokens, capacity, sequences = shape["tokens"], shape["capacity"], shape["sequences"]
    heads, kv_heads, head_dim = shape["heads"], shape["kv_heads"], shape["head_dim"]

    def cache() -> Array:
        return cache_format.quantise(case.array(rng, capacity, kv_heads * head_dim))

    end = rng.integers(0, capacity + 1, tokens)
    window = rng.integers(1, capacity + 1) if shape["windowed"] else capacity
    spans = np.stack([rng.integers(0, sequences, tokens), np.maximum(0, end - window), end], axis=1)
    lists = np.stack([rng.permutation(capacity) for _ in range(sequences)])
    slopes = 2.0 ** -rng.integers(1, 9, heads) if shape["alibi"] else np.zeros(heads)
    q, k = case.array(rng, tokens, heads, head_dim), cache()
    scores = np.einsum(
        "thd,chd->thc",
        np.abs(q),
        np.repeat(np.abs(_rows(k, head_dim, case.format)), heads // kv_heads, axis=1),
    )
    steepest = head_dim**-0.5 * scores.max(initial=0)
    return {
        # scores stay within softmax's reach, or the largest takes all and nothing else is tried
        "q": (q * min(1, LARGEST_SCORE / max(steepest, TINY))).astype(np.float32),
        "k": k,
        "v": cache(),
        "lists": lists.astype(np.int32),
        "spans": spans.astype(np.int32),
        "positions": end.astype(np.int32),
        "cell_positions": np.arange(capacity, dtype=np.int32),
        "slopes": slopes.astype(np.float32),
        "scale": head_dim**-0.5,
        "softcap": 30.0 if shape["softcapped"] else 0.0,
        "format": case.format,
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The rounding of scores, through softmax, into the weighted sum of values.

    A score of head_dim products is off by gamma(head_dim + 2) * scale * sum |q||k|, its bias by
    three roundings, a cap by tanh's own error times the cap (its slope is at most 1), and the
    argument of exp by U * depth, depth being how far the score lies below the largest. So a weight
    is off by a factor of e^own and, through the sum that divides it, by the mean of the others'.
    Sums over cells add gamma(2 * cells + 8), and a weight too small for float32 may become zero.
    A kernel may take MERGED cells or more at a time, below a maximum of their own, and then merge
    what they give: the steps from maximum to maximum add up to the depth, but each is one more exp
    in `own` and two more roundings in either sum. A quantised cache is exact: it is what it holds.
    """
    q, weight_format = inputs["q"], inputs["format"]
    keys = _rows(inputs["k"], q.shape[2], weight_format)
    values = np.abs(_rows(inputs["v"], q.shape[2], weight_format))
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        cells = inputs["lists"][sequence, begin:end]
        if not len(cells):
            continue
        scores, magnitude = _scores(q[t], keys[cells], inputs["scale"], inputs["softcap"])
        distance = inputs["positions"][t] - inputs["cell_positions"][cells]
        bias = inputs["slopes"][:, None] * distance
        error = gamma(q.shape[2] + 2) * magnitude + 8 * U * inputs["softcap"]
        error += 3 * U * (np.abs(scores) + np.abs(bias))
        scores -= bias
        depth = scores.max(axis=1, keepdims=True) - scores
        merges = (len(cells) - 1) // MERGED
        own = error + U * np.minimum(depth, 104) + EXP * (1 + merges)
        # the largest weights that these errors allow
        low = np.exp(-(depth + own)).sum(axis=1, keepdims=True)
        weights = np.minimum(1, np.exp(-np.maximum(depth - own, 0)) / np.maximum(low, TINY))
        factor = np.expm1(np.minimum(own, 80))
        growth = factor + (weights * factor).sum(axis=1, keepdims=True)
        growth = np.minimum(growth, 2 / np.maximum(weights, TINY))
        growth += gamma(2 * len(cells) + 4 * merges + 8)
        seen = _by_head(values[cells], q.shape[1])
        out[t] = np.einsum("hc,chd->hd", weights * growth + TINY, seen)
    return {"out": out + TINY * (1 + np.abs(expected["out"]))}


def complaint(inputs: Arguments) -> str:
    heads, head_dim = inputs["q"].shape[1:]
    layout = FORMATS[inputs["format"]]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    if not kv_heads or heads % kv_heads:
        return f"{heads} heads are no multiple of {kv_heads} kv_heads"
    sequences, capacity = inputs["lists"].shape
    sequence, begin, end = inputs["spans"].T
    return (
        out_of_range("lists", inputs["lists"], capacity)
        or out_of_range("spans[:, 0]", sequence, sequences)
        or out_of_range("spans[:, 1]", begin, capacity + 1)
        or out_of_range("spans[:, 2]", end, capacity + 1)
    )


def cost(shape: Shape, format: str | None) -> Cost:
    """Every cell read once; each token meets every cell."""
    width = shape["kv_heads"] * shape["head_dim"]
    cache = 2 * shape["capacity"] * FORMATS[format or "F32"].row_bytes(width)
    q = shape["tokens"] * shape["heads"] * shape["head_dim"]
    return Cost(cache + 8 * q, 4 * q * shape["capacity"])


def fit(shape: Shape, format: str | None) -> Shape:
    """heads is a multiple of kv_heads, rows are whole blocks; there is a cell and a sequence."""
    kv_heads = max(1, shape["kv_heads"])
    whole = FORMATS[format or "F32"].block // math.gcd(FORMATS[format or "F32"].block, kv_heads)
    return {
        **shape,
        "kv_heads": kv_heads,
        "heads": -(-max(1, shape["heads"]) // kv_heads) * kv_heads,
        "capacity": max(1, shape["capacity"]),
        "sequences": max(1, shape["sequences"]),
        "head_dim": -(-max(1, shape["head_dim"]) // whole) * whole,
    }


def _plain(**sizes: int) -> Shape:
    return {"sequences": 1, "windowed": 0, "alibi": 0, "softcapped": 0, **sizes}


OP = Op(
    name="attention",
    reference=attention,
    signature=(
        "q: f32[tokens heads head_dim], k: format[capacity kv_heads*head_dim],"
        " v: format[capacity kv_heads*head_dim], lists: i32[sequences capacity],"
        " spans: i32[tokens 3], positions: i32[tokens], cell_positions: i32[capacity],"
        " slopes: f32[heads], scale: f64, softcap: f64 -> out: f32[tokens heads head_dim]"
    ),
    axes={
        "tokens": (0, 1, 2, 5),
        "heads": (1, 4, 6),
        "kv_heads": (1, 2, 3),
        "head_dim": (2, 6, 16, 32, 64, 128),
        "capacity": (1, 2, 15, 16, 17, 33, 130, 290),
        "sequences": (1, 3),
        "windowed": (1, 0),
        "alibi": (1, 0),
        "softcapped": (1, 0),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=fit,
    # more tokens than have their chunks dealt out, and over three of them, also of two sequences
    # and where the nearest cells do not count for most; groups beyond a tile
    corners=(
        _plain(tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=600, alibi=1),
        _plain(tokens=11, heads=33, kv_heads=1, head_dim=256, capacity=290, softcapped=1),
        _plain(tokens=2, heads=33, kv_heads=1, head_dim=256, capacity=600),
        _plain(tokens=10, heads=4, kv_heads=1, head_dim=64, capacity=500, sequences=2),
        _plain(tokens=9, heads=2, kv_heads=1, head_dim=128, capacity=500),
    ),
    complaint=complaint,
    nan="token",
)
