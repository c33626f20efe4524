"""Scaled dot-product attention over a KV cache (Vaswani et al., arXiv 1706.03762).

out = softmax(scale * q k^T + bias) v. With grouped queries (GQA, Ainslie et al., arXiv 2305.13245)
query head h reads KV head h * kv_heads / heads. The cells that a token sees are data: the cache
lists each sequence's cells by position, and a token sees a range of one list. Causality, sliding
windows, shared prefixes and trees are all expressed by these lists, and where a cell is stored
never changes a result.
"""

import math

import numpy as np

from reference.bounds import ALIGNED, EXP, TINY, U, gamma, gamma_truncated
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.laws.attention.attention import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

LARGEST_SCORE = 60.0  # roughly, of scale * sum |q||k|; the scores themselves reach about 20
FAIR_SCORE = 8.0  # replaces a largest score below 1
FEWEST = 4  # products that tensor cores of any GPU add at once, at least
MERGED = 64  # cells: the smallest chunk whose partial results a kernel may merge
LARGEST = 2.0**58  # of q, k and v: a sum of 1024 products in float32 stays below 2^127
LARGEST_HALF = 65504.0
HELD = {"F32": LARGEST, "F16": LARGEST_HALF, "Q8_0": 127 * LARGEST_HALF, "Q4_0": 8 * LARGEST_HALF}
# Gemma 2 divides by the root of 256 or 144 for any head_dim; others by 8, head_dim, or nothing.
SCALES = (256**-0.5, 144**-0.5, 1 / 8, 1 / 128, 1.0)
SOFTCAPS = (50.0, 30.0, 1.0, 117.3)
BF16 = 2.0**-8  # unit roundoff of bfloat16
REACHES = (1, 2**16, 2**18, 2**20)  # ranges of positions, if larger than the number of cells
POOL = 512  # distinct rows of a cache


def attention(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, sinks: Array, scale: float, softcap: float, format: str,
) -> Array:  # fmt: skip
    """out = softmax(scale * q k^T + bias) v, each token over the cells that it sees.

    q [tokens, heads, head_dim]; k, v uint8 [capacity, row_bytes], rows of kv_heads * head_dim
    elements in `format`. lists int32 [sequences, capacity]: cells by position; spans int32 [tokens,
    3]: token t sees lists[s, begin:end] for (s, begin, end) = spans[t]; an empty span gives 0.
    positions int32 [tokens], cell_positions int32 [capacity] and slopes [heads] give ALiBi's bias,
    -slope * distance (Press et al., arXiv 2108.12409). softcap c > 0 replaces a score s by c *
    tanh(s / c) before the bias (Gemma 2, arXiv 2408.00118). sinks [heads] are the scores of one
    more cell, whose value is 0 (gpt-oss, arXiv 2508.10925); minus infinity means no sink.
    -> float64 [tokens, heads, head_dim].
    """
    keys, values = rows_of(k, q.shape[2], format), rows_of(v, q.shape[2], format)
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(spans):
        cells = lists[sequence, begin:end]
        if len(cells):
            scores = apply_softcap(scale * dots(q[t], keys[cells]), softcap)
            scores -= slopes[:, None] * (positions[t] - cell_positions[cells])
            scores = np.column_stack([scores, sinks])
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights = powers / powers.sum(axis=1, keepdims=True)
            out[t] = _sums(weights[:, :-1], values[cells])
    return out


def rows_of(cache: Array, head_dim: int, format: str) -> Array:
    """uint8 [capacity, row_bytes] -> float32 [capacity, kv_heads, head_dim]."""
    rows = FORMATS[format].dequantise(cache)
    return rows.reshape(len(rows), rows.shape[1] // head_dim, head_dim)


def dots(q: Array, keys: Array) -> Array:
    """q k^T: [heads, head_dim], [cells, kv_heads, head_dim] -> float64 [heads, cells]."""
    groups = q.reshape(keys.shape[1], -1, q.shape[1]).astype(np.float64)
    return (groups @ keys.transpose(1, 2, 0)).reshape(len(q), -1)


def _sums(weights: Array, values: Array) -> Array:
    """[heads, cells], [cells, kv_heads, head_dim] -> float64 [heads, head_dim]."""
    groups = weights.reshape(values.shape[1], -1, weights.shape[1])
    return (groups @ values.transpose(1, 0, 2)).reshape(len(weights), -1)


def apply_softcap(scores: Array, softcap: float) -> Array:
    return softcap * np.tanh(scores / softcap) if softcap else scores


def make(case: Case) -> Arguments:
    """Tokens of sequences that share one cache, with cells scattered over it and the last cell of
    each at the end of memory; cells that no token sees hold NaN. With more than two tokens, the
    query of the last one matches the last cell that it sees."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    capacity, heads, head_dim = shape["capacity"], shape["heads"], shape["head_dim"]
    lists = np.stack([rng.permutation(capacity) for _ in range(shape["sequences"])])
    for s, cells in enumerate(lists):
        last = capacity - 1 - s % capacity
        cells[cells == last], cells[-1] = cells[-1], last
    spans = _spans(rng, case)
    seen = np.zeros(capacity, bool)
    for sequence, begin, end in spans:
        seen[lists[sequence, begin:end]] = True
    k, v = _cache(rng, case, seen), _cache(rng, case, seen)
    reach = max(capacity, int(rng.choice(REACHES)))
    places = rng.integers(REACHES[-1]) + np.arange(capacity + 1) * reach // capacity
    cell_positions = np.empty(capacity, np.int64)
    cell_positions[lists[0]] = places[:-1]
    slopes = 2.0 ** -rng.uniform(1, 8, heads) * min(1, 2 * POOL / reach) * shape["alibi"]
    slopes[1::4] = 0
    sinks = rng.normal(0, LARGEST_SCORE / 8, heads)
    sinks[:: 1 if case.seed % 2 else 3] = -np.inf
    scales = (head_dim**-0.5, *SCALES)
    scale = scales[case.seed % len(scales)]
    # infinite queries give finite outputs only if scores are capped
    soft = shape["softcapped"] or (case.values == "infinite" and case.seed % 2)
    q = case.array(rng, shape["tokens"], heads, head_dim)
    if len(q) > 2:
        sequence, _, end = spans[-1]
        sought = rows_of(k[lists[sequence, end - 1 : end]], head_dim, case.format)[0]
        q[-1] += np.repeat(sought, heads // len(sought), axis=0)
    return {
        "q": limit_scores(q, scale, rows_of(k[seen][:MERGED], head_dim, case.format), case),
        "k": k,
        "v": v,
        "lists": lists.astype(np.int32),
        "spans": spans.astype(np.int32),
        "positions": places[spans[:, 2]].astype(np.int32),
        "cell_positions": cell_positions.astype(np.int32),
        "slopes": slopes.astype(np.float32),
        "sinks": sinks.astype(np.float32),
        "scale": scale,
        "softcap": SOFTCAPS[case.seed % len(SOFTCAPS)] if soft else 0.0,
        "format": case.format,
    }


def _spans(rng: np.random.Generator, case: Case) -> Array:
    """Half of the tokens are consecutive tokens of a prompt. Of the others the last sees every
    cell; those before it one, a number around whole chunks, a random number, and none."""
    tokens, capacity, sequences = (case.shape[a] for a in ("tokens", "capacity", "sequences"))
    t, prompt = np.arange(tokens), tokens // 2
    chunk = 2 ** rng.integers(4, 11, tokens)
    whole = rng.integers(1, capacity // chunk + 2) * chunk + rng.integers(-1, 2, tokens)
    any_number = rng.integers(0, capacity + 1, tokens)
    turn = tokens - 1 - t if tokens > 1 else np.array([case.seed])
    count = np.choose(turn % 5, [capacity, 1, whole, any_number, 0]).clip(0, capacity)
    begin = np.where(count == 1, capacity - 1, rng.integers(0, capacity - count + 1))
    begin *= case.shape["windowed"]
    end, sequence = begin + count, (rng.integers(sequences) + t) % sequences
    window = rng.integers(1, capacity + 1) if case.shape["windowed"] else capacity
    end[:prompt] = np.minimum(rng.integers(0, capacity + 1) + t[:prompt], capacity)
    begin[:prompt] = np.maximum(0, end[:prompt] - window)
    sequence[:prompt] = rng.integers(sequences)
    return np.stack([sequence, begin, end], axis=1)


def _cache(rng: np.random.Generator, case: Case, seen: Array) -> Array:
    """uint8 [capacity, row_bytes]: finite in its format where seen; rows repeat in large caches."""
    assert case.format is not None
    capacity, held = len(seen), HELD[case.format]
    width = case.shape["kv_heads"] * case.shape["head_dim"]
    some = case.finite(rng, min(capacity, POOL), width).clip(-held, held)
    rows = FORMATS[case.format].quantise(some)
    again = rng.integers(0, len(rows), capacity - len(rows))
    cache = rows[np.append(np.arange(len(rows)), again)]
    cache[~seen] = 0xFF
    return cache


def limit_scores(q: Array, scale: float, keys: Array, case: Case) -> Array:
    """Queries scaled so that softmax neither saturates, where one cell would hide all others, nor
    ignores the keys; of "huge" values every other head keeps scores up to the end of the domain."""
    sizes = np.abs(np.where(np.isfinite(q), q, 0))
    scores = [dots(token, np.abs(keys)).max(axis=1, initial=TINY / scale) for token in sizes]
    steepest = scale * np.reshape(scores, (*q.shape[:2], 1))
    wanted = np.where(steepest < 1, FAIR_SCORE, np.minimum(steepest, LARGEST_SCORE))
    factor = np.minimum(wanted / steepest, LARGEST / sizes.max(axis=2, initial=1, keepdims=True))
    if case.values == "huge":
        factor[:, 1::2] = 1
    return np.asarray(q * factor, np.float32)


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """`errors` of a float32 kernel."""
    return {"out": errors(inputs, expected["out"], gamma(inputs["q"].shape[2] + 2), 0.0)}


def bound_f16x2(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The bound on tensor cores that take elements of queries and weights as sums of two float16.

    Each float32 product becomes two, added by instructions of 16 that may truncate, and that a GPU
    carries out so many addends at a time as it pleases: 4 on Volta and Turing, 8 on Ampere (Fasi et
    al., PeerJ CS 7:e330); later ones publish nothing. Each such sum has the sum so far as one more
    addend and is truncated by itself, so that most is lost where fewest are added at once:
    `gamma_truncated` of FEWEST holds for 4, 8, 16 and all between and beyond.

    A pair holds 22 bits of its number, unless its lower part is subnormal: a query's largest
    element lies between 2^14 and 2^15, and none loses more than 2^-25, 2^-39 of the largest; the
    largest weight of a chunk is 2^15, so a weight loses at most 2^-40 of that. Parts that are
    aligned as ALIGNED let their neighbours lose less than as much again.
    """
    q, cells = inputs["q"], inputs["lists"].shape[1]
    of_scores = gamma_truncated(2 * q.shape[2], FEWEST) + 2.0**-22 + 2 * U
    of_weights = gamma_truncated(2 * cells, FEWEST) + 2.0**-22
    return {"out": errors(inputs, expected["out"], of_scores, of_weights, 2.0**-38, least=ALIGNED)}


def as_bf16(inputs: Arguments) -> tuple[Arguments, Array, Array]:
    """Op.rounded for queries, keys, values and weights in bfloat16, whose unit roundoff is BF16.

    Products are exact, and added by instructions that may truncate and flush subnormal numbers
    (linear.bf16_bound). Rounding the inputs changes each product of a score by less than 2.01 BF16.
    """
    bf16 = FORMATS["BF16"]
    rounded = {name: bf16.dequantise(bf16.quantise(inputs["q"])) for name in ("q",)}
    for name in ("k", "v"):
        values = FORMATS[inputs["format"]].dequantise(inputs[name])
        rounded[name] = bf16.dequantise(bf16.quantise(values)).view(np.uint8)
    exact = {**inputs, **rounded, "format": "F32"}
    out, head_dim = attention(**exact), inputs["q"].shape[2]
    cells = inputs["lists"].shape[1]
    own = errors(exact, out, gamma_truncated(head_dim) + U, BF16 + gamma_truncated(cells))
    moved = errors(inputs, attention(**inputs), 2.01 * BF16, 1.01 * BF16)
    return exact, own, moved


def errors(
    inputs: Arguments, expected: Array, of_scores: float, of_weights: float, lost: float = 0.0,
    parts: int = 1, least: float = 0.0,
) -> Array:  # fmt: skip
    """The error of scores, propagated through softmax to the weighted sum of values -> [tokens,
    heads, head_dim].

    A score of head_dim products has the error `of_scores` * scale * sum |q||k|, its bias three
    roundings, a cap tanh's own error times the cap (its slope is at most 1), and the argument of
    exp U * depth, where depth is the score's distance below the largest. So a weight changes by a
    factor of e^own and, through the normalising sum, by the mean error of all weights. Sums over
    cells add gamma(2 * cells + 8), and a weight below float32's range may become zero. A kernel may
    process chunks of MERGED cells or more with a maximum of their own and merge the partial
    results: the differences of the maxima add up to the depth, but each merge is one more exp in
    `own` and two more roundings in either sum. A cell's contribution to a sum may be flushed to
    zero, and so may the sum. A sink is exact and merged last. A quantised cache is exact: its
    decoded values are the inputs. `of_weights` is any further relative error of a weight or its
    value. Elements of a query may lose `lost` of its largest, and weights half as much of theirs,
    where both are finite. Cells in several `parts` are processed part by part. An element of a
    key or a value counts as `least` at least.
    """
    q, slopes, scale = (inputs[name] for name in ("q", "slopes", "scale"))
    keys = rows_of(inputs["k"], q.shape[2], inputs["format"])
    values = rows_of(inputs["v"], q.shape[2], inputs["format"])
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        cells = inputs["lists"][sequence, begin:end]
        if not len(cells):
            continue
        distance = inputs["positions"][t] - inputs["cell_positions"][cells]
        bias, cap = slopes[:, None] * distance, inputs["softcap"]
        weights, growth = weight_errors(
            q[t], keys[cells], bias, inputs["sinks"], scale, cap, of_scores, lost, parts, least
        )
        growth += of_weights
        heights = np.maximum(np.abs(values[cells]), least)
        out[t] = _sums((weights * growth)[:, :-1] + TINY + lost / 2, heights)
        out[t] += 3 * len(cells) * TINY
    return np.asarray(out + TINY * (1 + np.abs(expected)))


def weight_errors(
    q: Array, keys: Array, bias: Array, sinks: Array, scale: float, softcap: float,
    of_scores: float, lost: float = 0.0, parts: int = 1, least: float = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """For one token, q [heads head_dim], over its cells, keys [cells kv_heads head_dim]: the
    largest weights that `errors` allows, and their relative errors, sums over all cells included:
    [heads, cells + 1] with the sink."""
    scores = apply_softcap(scale * dots(q, keys), softcap)
    sizes, heights = np.abs(q), np.maximum(np.abs(keys), least)
    magnitude = scale * dots(sizes, heights)
    # infinite queries give exact, infinite scores
    magnitude[np.isinf(magnitude)] = 0
    error = of_scores * magnitude + 8 * U * softcap
    error += 3 * U * (np.abs(scores) + np.abs(bias))
    if lost:
        largest = np.where(np.isinf(sizes), 0, sizes).max(axis=1, keepdims=True)
        error += lost * scale * dots(np.broadcast_to(largest, sizes.shape), heights)
    error[np.isinf(scores)] = 0
    scores = np.column_stack([scores - bias, sinks])
    error = np.column_stack([error, np.zeros(len(sinks))])
    depth = scores.max(axis=1, keepdims=True) - scores
    merges = (len(keys) - 1) // MERGED + parts - 1 + (sinks[:, None] != -np.inf)
    own = error + U * np.minimum(depth, 104) + EXP * (1 + merges)
    # the largest weights that these errors allow
    low = np.exp(-(depth + own)).sum(axis=1, keepdims=True)
    weights = np.minimum(1, np.exp(-np.maximum(depth - own, 0)) / np.maximum(low, TINY))
    factor = np.expm1(np.minimum(own, 80))
    growth = factor + (weights * factor).sum(axis=1, keepdims=True)
    growth = np.minimum(growth, 2 / np.maximum(weights, TINY))
    return weights, growth + gamma(2 * len(keys) + 4 * merges + 8)


def complaint(inputs: Arguments) -> str:
    heads, head_dim = inputs["q"].shape[1:]
    layout = FORMATS[inputs["format"]]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    if not kv_heads or heads % kv_heads:
        return f"{heads} heads are not a multiple of {kv_heads} kv_heads"
    sequences, capacity = inputs["lists"].shape
    sequence, begin, end = inputs["spans"].T
    return (
        out_of_range("lists", inputs["lists"], capacity)
        or out_of_range("spans[:, 0]", sequence, sequences)
        or out_of_range("spans[:, 1]", begin, capacity + 1)
        or out_of_range("spans[:, 2]", end, capacity + 1)
    )


def cost(shape: Shape, format: str | None) -> Cost:
    """Every cell is read once; each token's query is multiplied by each cell's key."""
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
        " slopes: f32[heads], sinks: f32[heads], scale: f64, softcap: f64"
        " -> out: f32[tokens heads head_dim]"
    ),
    axes={
        "tokens": (1, 2, 3, 5, 8, 9),
        "heads": (1, 2, 3, 4, 6, 8, 9),
        "kv_heads": (1, 2, 3, 4, 5, 8, 9),
        "head_dim": (2, 6, 16, 32, 48, 64, 80, 96, 128, 256),
        "capacity": (1, 2, 15, 16, 17, 33, 65, 129, 130, 257, 290),
        "sequences": (1, 2, 3, 5, 8),
        "windowed": (1, 0),
        "alibi": (1, 0),
        "softcapped": (1, 0),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=fit,
    corners=(
        # chunks and tiles: more tokens than split-KV kernels divide, over three chunks,
        # also of two sequences; a last chunk of one cell; groups of more heads than a tile
        _plain(tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=600, alibi=1),
        _plain(tokens=9, heads=2, kv_heads=1, head_dim=128, capacity=500),
        _plain(tokens=10, heads=4, kv_heads=1, head_dim=64, capacity=500, sequences=2),
        _plain(tokens=2, heads=4, kv_heads=2, head_dim=64, capacity=257),
        _plain(tokens=11, heads=33, kv_heads=1, head_dim=64, capacity=290, softcapped=1),
        _plain(tokens=2, heads=33, kv_heads=1, head_dim=256, capacity=290),
        # prompts, batches of sequences, and the heads of models
        _plain(tokens=65, heads=4, kv_heads=2, head_dim=128, capacity=130, windowed=1),
        _plain(tokens=40, heads=1, kv_heads=1, head_dim=256, capacity=300),
        _plain(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16),
        _plain(tokens=513, heads=1, kv_heads=1, head_dim=64, capacity=270),
        _plain(tokens=40, heads=2, kv_heads=1, head_dim=64, capacity=33, sequences=7),
        _plain(tokens=3, heads=64, kv_heads=8, head_dim=64, capacity=33, alibi=1),
        _plain(tokens=3, heads=71, kv_heads=1, head_dim=64, capacity=65, alibi=1),
        _plain(tokens=1, heads=32, kv_heads=32, head_dim=128, capacity=17),
        _plain(tokens=3, heads=4, kv_heads=2, head_dim=80, capacity=65),
        _plain(tokens=3, heads=16, kv_heads=8, head_dim=256, capacity=33, windowed=1, softcapped=1),
        # Gemma 4's global heads, and latent heads (MLA), many of which share a key
        _plain(tokens=3, heads=6, kv_heads=2, head_dim=512, capacity=290),
        _plain(tokens=11, heads=33, kv_heads=1, head_dim=576, capacity=270),
        # long contexts, for few tokens and for more
        _plain(tokens=3, heads=2, kv_heads=1, head_dim=64, capacity=4100, alibi=1),
        _plain(tokens=9, heads=1, kv_heads=1, head_dim=64, capacity=4100),
        _plain(tokens=3, heads=1, kv_heads=1, head_dim=64, capacity=65600, alibi=1, windowed=1),
    ),
    complaint=complaint,
    rounded={"bf16": as_bf16},
    bounds={"f16x2": bound_f16x2},
    nan="token",
    largest=LARGEST,
    varying=("tokens", "capacity", "sequences"),
    laws=LAWS,
)
