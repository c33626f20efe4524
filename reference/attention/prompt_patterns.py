"""Sparse attention masks for prompts (MInference, Jiang et al., arXiv 2407.02490): two estimates of
each head's attention, its three patterns, and the op that writes the mask."""

import numpy as np

from reference.attention import attention
from reference.attention.attention import LARGEST, apply_softcap, dots, rows_of, weight_errors
from reference.attention.pattern_attention import (
    AXES,
    BLOCK,
    chunk_complaint,
    chunk_spans,
    fit,
    fit_rows,
    plain,
)
from reference.bounds import TINY, gamma
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.laws.attention.prompt_patterns import PATTERN_LAWS, SCORE_LAWS, SUM_LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape

A_SHAPE, VERTICAL_SLASH, BLOCK_SPARSE = 0, 1, 2
KINDS = (A_SHAPE, VERTICAL_SLASH, BLOCK_SPARSE)


def stripe_sums(
    q: Array, k: Array, lists: Array, spans: Array, scale: float, softcap: float, last: int,
    before: Array, format: str,
) -> Array:  # fmt: skip
    """Estimate vertical and slash lines: out[h, 0, j] is the sum of the attention weights that the
    `last` tokens give to entry j of their list; out[h, 1, d] the sum at distance d before their own
    cell. Without such tokens out is `before`, and entries beyond their cells are 0.

    q, k, lists, spans and weights are attention's -> float64 [heads, 2, capacity].
    """
    observers = np.flatnonzero(spans[:, 2])[-last:]
    if not len(observers):
        return before.astype(np.float64)
    out, keys = np.zeros(before.shape), rows_of(k, q.shape[2], format)
    for t in observers:
        sequence, _, end = spans[t]
        scores = apply_softcap(scale * dots(q[t], keys[lists[sequence, :end]]), softcap)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights = powers / powers.sum(axis=1, keepdims=True)
        out[:, 0, :end] += weights
        out[:, 1, :end] += weights[:, ::-1]
    return out


def block_scores(
    q: Array, k: Array, lists: Array, spans: Array, before: Array, format: str
) -> Array:
    """out[h, b % rows, j] = mean(q of block b) . mean(k of block j), j <= b; entries with j > b and
    rows of query blocks without a query here keep `before`.

    Blocks are BLOCK slots of the list, the last one partial -> float64 [heads, rows, parts].
    """
    out, keys = before.astype(np.float64), rows_of(k, q.shape[2], format)
    group = q.shape[1] // keys.shape[1]
    for b, end, tokens in _blocks(spans):
        cells = lists[spans[tokens[0], 0], :end]
        queries = q[tokens].mean(axis=0, dtype=np.float64)
        for j in range(b + 1):
            means = keys[cells[j * BLOCK : (j + 1) * BLOCK]].mean(axis=0, dtype=np.float64)
            out[:, b % out.shape[1], j] = (queries * np.repeat(means, group, axis=0)).sum(axis=1)
    return out


def a_shape(slots: Array, end: int, sinks: int, local: int) -> Array:
    """A-shape: bool [end], the first `sinks` cells and the last `local` of a block's first
    query."""
    cells = np.arange(end)
    return np.asarray((cells < sinks) | (cells > slots[0] - local))


def vertical_slash(slots: Array, end: int, columns: Array, diagonals: Array) -> Array:
    """Vertical-slash: bool [end], these columns, and the cells at these distances before a query of
    the block: the `top_scores` ones of the last queries."""
    seen = np.zeros(end, bool)
    seen[columns[columns < end]] = True
    for distance in diagonals:
        seen[max(0, slots[0] - distance) : max(0, slots[-1] + 1 - distance)] = True
    return seen


def block_sparse(end: int, scores: Array, blocks: int) -> Array:
    """Block-sparse: bool [end], the `blocks` best blocks up to the query block."""
    chosen = np.isin(np.arange(len(scores)), top_scores(scores, blocks, 0))
    return np.repeat(chosen, BLOCK)[:end]


def top_scores(scores: Array, count: int, first: int) -> Array:
    """bool: `count` entries, the `first` and the highest of the others; ties go to the earlier."""
    order = np.argsort(-scores[first:], kind="stable")[: max(0, count - first)] + first
    return np.append(np.arange(min(first, len(scores))), order)


def prompt_pattern(
    kinds: Array, sizes: Array, sums: Array, scores: Array, spans: Array, first: int, recent: int,
    before: Array,
) -> Array:  # fmt: skip
    """The mask: out[h, b % rows, j] = 1 if head h's queries of block b see entry j of their list by
    pattern kinds[h], else 0; rows of blocks without a query here keep `before`.

    kinds int32 [heads]; sizes int32 [heads, 2], a pattern's parameters: sinks and local cells,
    columns and diagonals, or blocks and 0; sums float32 [heads, 2, capacity] and scores float32
    [heads, rows, parts] from `stripe_sums` and `block_scores`; spans of these queries -> uint8,
    like before.
    """
    out = before.copy()
    held = int(spans[:, 2].max(initial=0))
    stripes = [
        [top_scores(own[:held], most, least) for own, most, least in zip(*each, strict=True)]
        for each in zip(sums, sizes, np.tile([first, recent], (len(sums), 1)), strict=True)
    ]
    for b, end, _ in _blocks(spans):
        slots = np.arange(b * BLOCK, (b + 1) * BLOCK)
        for h, (kind, (one, other)) in enumerate(zip(kinds, sizes, strict=True)):
            if kind == A_SHAPE:
                seen = a_shape(slots, end, one, other)
            elif kind == VERTICAL_SLASH:
                seen = vertical_slash(slots, end, *stripes[h])
            else:
                seen = block_sparse(end, scores[h, b % out.shape[1], : b + 1], one)
            out[h, b % out.shape[1]] = 0
            out[h, b % out.shape[1], :end] = seen
    return out


def _blocks(spans: Array) -> list[tuple[int, int, Array]]:
    """For each block with a query here: its index, the number of cells up to its end, and its
    tokens."""
    own, held = (spans[:, 2] - 1) // BLOCK, int(spans[:, 2].max(initial=0))
    return [
        (int(b), min(held, int(b + 1) * BLOCK), np.flatnonzero(own == b))
        for b in np.unique(own[spans[:, 2] > 0])
    ]


def _keys(case: Case, most: int) -> tuple[Arguments, np.random.Generator]:
    """Queries and keys of a chunk with `most` cells; cells that no token sees hold NaN."""
    rng, shape = case.rng(), case.shape
    more = {**shape, "tokens": shape["tokens"] + 2, "windowed": 0, "alibi": 0}
    more.setdefault("softcapped", 0)
    given = attention.make(Case(more, case.values, case.seed, case.format, LARGEST))
    spans = chunk_spans(rng, shape, most)
    sequence, held = spans[0, 0] if len(spans) else 0, spans[:, 2].max(initial=0)
    given["k"][np.setdiff1d(np.arange(shape["capacity"]), given["lists"][sequence, :held])] = 0xFF
    names = ("k", "lists", "format")
    return {n: given[n] for n in names} | {
        "q": given["q"][2:],
        "spans": spans,
        **_scales(given),
    }, rng


def _scales(given: Arguments) -> Arguments:
    return {name: given[name] for name in ("scale", "softcap")}


def make_sums(case: Case) -> Arguments:
    given, rng = _keys(case, case.shape["capacity"])
    dims = case.shape["heads"], 2, case.shape["capacity"]
    last = (1, 64, 3, 200)[case.seed % 4]
    return given | {"last": last, "before": rng.standard_normal(dims, np.float32)}


def make_scores(case: Case) -> Arguments:
    given, rng = _keys(case, case.shape["parts"] * BLOCK)
    dims = case.shape["heads"], case.shape["rows"], case.shape["parts"]
    del given["scale"], given["softcap"]
    return given | {"before": rng.standard_normal(dims, np.float32)}


def make_pattern(case: Case) -> Arguments:
    """Every pattern; in some cases most scores are ties."""
    rng, shape = case.rng(), case.shape
    heads, rows, capacity = shape["heads"], shape["rows"], shape["capacity"]
    sums = np.abs(case.array(rng, heads, 2, capacity))
    scores = case.array(rng, heads, rows, shape["parts"])
    if case.seed % 2:
        sums = np.take(sums, rng.integers(0, capacity, capacity), axis=2)
        scores = np.take(scores, rng.integers(0, shape["parts"], shape["parts"]), axis=2)
    some = (1, 2, 5, 30, 100, 4000)
    few = rng.choice(some, 2) if case.seed % 3 else (0, 0)
    return {
        "kinds": ((np.arange(heads) + case.seed) % len(KINDS)).astype(np.int32),
        "sizes": rng.choice(some, (heads, 2)).astype(np.int32),
        "sums": sums,
        "scores": scores,
        "spans": chunk_spans(rng, {**shape, "sequences": 1}, shape["parts"] * BLOCK),
        "first": int(few[0]),
        "recent": int(few[1]),
        "before": rng.integers(0, 2, (heads, rows, capacity), np.uint8),
    }


def bound_sums(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A weight has attention's error; weights are added one after the other."""
    q, off = inputs["q"], np.zeros_like(expected["out"])
    keys = rows_of(inputs["k"], q.shape[2], inputs["format"])
    observers = np.flatnonzero(inputs["spans"][:, 2])[-inputs["last"] :]
    for t in observers:
        sequence, _, end = inputs["spans"][t]
        weights, growth = weight_errors(
            q[t], keys[inputs["lists"][sequence, :end]], np.zeros((q.shape[1], end)),
            np.full(q.shape[1], -np.inf), inputs["scale"], inputs["softcap"],
            gamma(q.shape[2] + 2),
        )  # fmt: skip
        lost = (weights * growth)[:, :-1] + TINY
        off[:, 0, :end] += lost
        off[:, 1, :end] += lost[:, ::-1]
    if len(observers):
        off += gamma(len(observers)) * (np.abs(expected["out"]) + off) + len(observers) * TINY
    return {"out": off}


def bound_scores(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Means of at most BLOCK numbers, with one sum and one quotient each, then head_dim products;
    means, products and sums below the normal range may be flushed."""
    q = np.abs(inputs["q"])
    keys = np.abs(rows_of(inputs["k"], q.shape[2], inputs["format"]))
    off, group, head_dim = np.zeros_like(expected["out"]), q.shape[1] // keys.shape[1], q.shape[2]
    for b, end, tokens in _blocks(inputs["spans"]):
        cells = inputs["lists"][inputs["spans"][tokens[0], 0], :end]
        queries = q[tokens].mean(axis=0, dtype=np.float64)
        for j in range(b + 1):
            own = keys[cells[j * BLOCK : (j + 1) * BLOCK]].mean(axis=0, dtype=np.float64)
            means = np.repeat(own, group, axis=0)
            most = gamma(2 * (BLOCK + 2) + head_dim) * (queries * means).sum(axis=1)
            lost = BLOCK * TINY * (queries.sum(axis=1) + means.sum(axis=1) + 2 * head_dim)
            off[:, b % off.shape[1], j] = most + lost
    return {"out": off}


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the mask holds 0 and 1."""
    return {"out": np.zeros(expected["out"].shape)}


def unfit_keys(inputs: Arguments) -> str:
    if inputs.get("last", 1) < 1:
        return f"last is {inputs['last']}: want at least one token"
    parts = inputs["before"].shape[2] * BLOCK if "last" not in inputs else np.inf
    cells = min(inputs["lists"].shape[1], parts)
    return chunk_complaint(inputs, int(cells)) or attention.complaint(inputs)


def unfit_pattern(inputs: Arguments) -> str:
    if np.setdiff1d(inputs["kinds"], KINDS).size:
        return f"kinds holds {np.setdiff1d(inputs['kinds'], KINDS)[0]}: want 0, 1 or 2"
    _, rows, capacity = inputs["before"].shape
    own = (inputs["spans"][:, 2] - 1) // BLOCK
    blocks = np.unique(own[inputs["spans"][:, 2] > 0])
    if len(np.unique(blocks % rows)) < len(blocks):
        return f"{len(blocks)} blocks of queries share {rows} rows"
    for name in ("sizes", "first", "recent"):
        if np.min(inputs[name], initial=0) < 0:
            return f"{name} holds {np.min(inputs[name])}: want 0 or more"
    cells = min(capacity, inputs["scores"].shape[2] * BLOCK)
    lists = np.zeros((int(inputs["spans"][:, 0].max(initial=0)) + 1, capacity), np.int32)
    return chunk_complaint({"spans": inputs["spans"], "lists": lists}, cells)


def cost_sums(shape: Shape, format: str | None) -> Cost:
    """Half of attention's arithmetic for the observing tokens, twice: for the normaliser and for
    the weights."""
    whole = attention.cost({**shape, "tokens": min(shape["tokens"], 64)}, format)
    return Cost(whole.bytes / 2 + 8 * shape["heads"] * shape["capacity"], whole.operations)


def cost_scores(shape: Shape, format: str | None) -> Cost:
    """Queries and keys are read; each query block's mean meets the mean of each key block."""
    cells = min(shape["capacity"], shape["parts"] * BLOCK)
    whole = attention.cost({**shape, "capacity": cells}, format)
    blocks = -(-shape["tokens"] // BLOCK) * shape["parts"] * shape["heads"]
    added = cells * shape["kv_heads"] * shape["head_dim"]
    return Cost(whole.bytes / 2 + 4 * blocks, added + 2 * blocks * shape["head_dim"])


def cost_pattern(shape: Shape, format: str | None) -> Cost:
    """Reads sums and scores, in about thirty passes to select the best; writes the mask."""
    blocks = -(-shape["tokens"] // BLOCK)
    seen = shape["heads"] * blocks * shape["capacity"]
    read = shape["heads"] * (2 * shape["capacity"] + blocks * shape["parts"])
    return Cost(seen + 4 * read, seen + 32 * read)


def fit_scores(shape: Shape, format: str | None) -> Shape:
    return {**fit(shape, format), "parts": max(1, shape["parts"])}


def fit_pattern(shape: Shape, format: str | None) -> Shape:
    return fit_rows({**shape, **{a: max(1, shape[a]) for a in ("parts", "capacity", "heads")}})


SUMS = (
    "q: f32[tokens heads head_dim], k: format[capacity kv_heads*head_dim],"
    " lists: i32[sequences capacity], spans: i32[tokens 3], scale: f64, softcap: f64, last: i64,"
    " before: f32[heads 2 capacity] -> out: f32[heads 2 capacity]"
)
SCORES = (
    "q: f32[tokens heads head_dim], k: format[capacity kv_heads*head_dim],"
    " lists: i32[sequences capacity], spans: i32[tokens 3], before: f32[heads rows parts]"
    " -> out: f32[heads rows parts]"
)
PATTERN = (
    "kinds: i32[heads], sizes: i32[heads 2], sums: f32[heads 2 capacity],"
    " scores: f32[heads rows parts], spans: i32[tokens 3], first: i64, recent: i64,"
    " before: u8[heads rows capacity] -> out: u8[heads rows capacity]"
)
PARTS = {"parts": (1, 2, 3, 5)}
OF_SUMS = {axis: sizes for axis, sizes in AXES.items() if axis != "rows"}
OF_SCORES = {axis: sizes for axis, sizes in AXES.items() if axis != "softcapped"} | PARTS
OF_PATTERN = {axis: AXES[axis] for axis in ("tokens", "heads", "capacity", "rows")} | PARTS


def _scored(**sizes: int) -> Shape:
    return {a: s for a, s in plain(**{"parts": 20, **sizes}).items() if a in OF_SCORES}


def _summed(**sizes: int) -> Shape:
    return {axis: size for axis, size in plain(**sizes).items() if axis in OF_SUMS}


OPS = (
    Op(
        name="stripe_sums",
        reference=stripe_sums,
        signature=SUMS,
        axes=OF_SUMS,
        make=make_sums,
        bound=bound_sums,
        cost=cost_sums,
        formats=FORMATS_OF_CACHE,
        fit=lambda shape, format: {
            a: s for a, s in fit({**shape, "rows": 9}, format).items() if a in OF_SUMS
        },
        corners=(
            # more tokens than the observation window, chunks, a long context, and heads of a model
            _summed(tokens=140, heads=2, kv_heads=1, head_dim=64, capacity=600),
            _summed(tokens=70, heads=32, kv_heads=4, head_dim=64, capacity=90),
            _summed(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16),
            _summed(tokens=513, heads=1, kv_heads=1, head_dim=32, capacity=520),
            _summed(tokens=3, heads=1, kv_heads=1, head_dim=64, capacity=65600),
        ),
        complaint=unfit_keys,
        largest=LARGEST,
        varying=("tokens", "capacity", "sequences"),
        laws=SUM_LAWS,
    ),
    Op(
        name="block_scores",
        reference=block_scores,
        signature=SCORES,
        axes=OF_SCORES,
        make=make_scores,
        bound=bound_scores,
        cost=cost_scores,
        formats=FORMATS_OF_CACHE,
        fit=fit_scores,
        corners=(
            _scored(tokens=140, heads=2, kv_heads=1, head_dim=64, capacity=600, rows=4),
            _scored(tokens=70, heads=32, kv_heads=4, head_dim=64, capacity=90, rows=3),
            _scored(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16),
            _scored(tokens=513, heads=1, kv_heads=1, head_dim=32, capacity=600, rows=10),
            _scored(tokens=3, heads=1, kv_heads=1, head_dim=64, capacity=65600, parts=1025),
        ),
        complaint=unfit_keys,
        largest=LARGEST,
        varying=("tokens", "capacity", "sequences", "parts", "rows"),
        laws=SCORE_LAWS,
    ),
    Op(
        name="prompt_pattern",
        reference=prompt_pattern,
        signature=PATTERN,
        axes=OF_PATTERN,
        make=make_pattern,
        bound=exact,
        cost=cost_pattern,
        fit=fit_pattern,
        corners=(
            {"tokens": 140, "heads": 6, "capacity": 600, "rows": 4, "parts": 10},
            {"tokens": 0, "heads": 2, "capacity": 16, "rows": 1, "parts": 1},
            {"tokens": 70, "heads": 71, "capacity": 130, "rows": 3, "parts": 3},
            {"tokens": 513, "heads": 3, "capacity": 5000, "rows": 10, "parts": 79},
            {"tokens": 3, "heads": 3, "capacity": 65600, "rows": 2, "parts": 1025},
        ),
        complaint=unfit_pattern,
        varying=("tokens", "capacity", "parts", "rows"),
        laws=PATTERN_LAWS,
    ),
)
