"""Block-sparse attention for prompts (MInference, Jiang et al., arXiv 2407.02490): out =
softmax(scale * q k^T - c (1 - M)) v, c = infinity; M [heads, query blocks, cells] is the mask."""

import numpy as np

from reference.attention import attention
from reference.attention.attention import LARGEST, apply_softcap, dots, rows_of, weight_errors
from reference.bounds import TINY, gamma
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.laws.attention.pattern_attention import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

BLOCK = 64  # consecutive queries that share a row of the mask
LARGEST_MAP = 2**22  # bytes of a case's mask: many cells leave room for fewer rows


def pattern_attention(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, sees: Array, scale: float,
    softcap: float, before: Array, format: str,
) -> Array:  # fmt: skip
    """out[t, h] = softmax(scale * q k^T) v over those of a token's cells that the mask allows for
    its block of queries; a token without cells keeps its row of `before`.

    Other arguments are attention's. sees uint8 [heads, rows, capacity] is the mask: the token whose
    own cell is entry j of its list belongs to query block j // 64, which has row j // 64 % rows,
    where nonzero entries are seen. Spans begin at 0. -> float64 [tokens, heads, head_dim].
    """
    keys, values = rows_of(k, q.shape[2], format), rows_of(v, q.shape[2], format)
    out, group = before.astype(np.float64), q.shape[1] // keys.shape[1]
    for t, h, cells in _seen(spans, lists, sees):
        own = slice(h // group, h // group + 1)
        scores = apply_softcap(scale * dots(q[t, h : h + 1], keys[cells, own]), softcap)
        powers = np.exp(scores - scores.max(initial=-np.inf))
        weights = powers / powers.sum() if len(cells) else powers
        out[t, h] = (weights @ values[cells, h // group])[0]
    return out


def row_of(slot: Array, rows: int) -> Array:
    """The row of the mask for queries at these list slots."""
    return slot // BLOCK % rows


def _seen(spans: Array, lists: Array, sees: Array) -> list[tuple[int, int, Array]]:
    """For each token that has cells and each head, the cells that it sees."""
    rows = row_of(spans[:, 2] - 1, sees.shape[1])
    return [
        (t, h, lists[sequence, np.flatnonzero(sees[h, rows[t], :end])])
        for t, (sequence, _, end) in enumerate(spans)
        if end
        for h in range(sees.shape[0])
    ]


def chunk_spans(rng: np.random.Generator, shape: Shape, most: int) -> Array:
    """int32 [tokens, 3]: spans of consecutive tokens of one sequence, so that each row of the mask
    belongs to one query block and no span exceeds `most` cells; tokens without cells come first."""
    tokens, capacity = shape["tokens"], min(most, shape["capacity"])
    count = min(tokens - int(rng.integers(0, min(2, tokens) + 1)), capacity)
    count = max(0, min(count, BLOCK * (shape.get("rows", tokens) - 1) + 1))
    end = int(rng.integers(count, capacity + 1))
    spans = np.zeros((tokens, 3), np.int32)
    spans[:, 0] = rng.integers(shape["sequences"])
    spans[tokens - count :, 2] = np.arange(end - count, end) + 1
    return spans


def make(case: Case) -> Arguments:
    """A chunk of a prompt; cells that no head sees hold NaN. Some heads see all cells, some few."""
    rng, shape = case.rng(), case.shape
    more = {**shape, "tokens": shape["tokens"] + 2, "windowed": 0, "alibi": 0}
    given = attention.make(Case(more, case.values, case.seed, case.format, LARGEST))
    names = ("k", "v", "lists", "scale", "softcap", "format")
    spans = chunk_spans(rng, shape, shape["capacity"])
    dims = shape["heads"], shape["rows"], shape["capacity"]
    share = rng.choice([0.02, 0.3, 0.9, 1.0], (shape["heads"], shape["rows"], 1))
    sees = (rng.random(dims) < share) * rng.integers(1, 256, dims)
    seen = np.zeros(shape["capacity"], bool)
    for _, _, cells in _seen(spans, given["lists"], sees):
        seen[cells] = True
    for name in ("k", "v"):
        given[name][~seen] = 0xFF
    q = given["q"][2:]
    before = rng.standard_normal(q.shape, np.float32)
    return {name: given[name] for name in names} | {
        "q": q, "spans": spans, "sees": sees.astype(np.uint8), "before": before,
    }  # fmt: skip


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """attention's bound, each head over the cells that it sees; zero for rows that are kept."""
    q, scale, cap = inputs["q"], inputs["scale"], inputs["softcap"]
    keys = rows_of(inputs["k"], q.shape[2], inputs["format"])
    values = np.abs(rows_of(inputs["v"], q.shape[2], inputs["format"]))
    off, group = np.zeros(q.shape), q.shape[1] // keys.shape[1]
    for t, h, cells in _seen(inputs["spans"], inputs["lists"], inputs["sees"]):
        if len(cells):
            own = slice(h // group, h // group + 1)
            weights, growth = weight_errors(
                q[t, h : h + 1], keys[cells, own], np.zeros((1, len(cells))),
                np.full(1, -np.inf), scale, cap, gamma(q.shape[2] + 2),
            )  # fmt: skip
            lost = (weights * growth)[0, :-1] + TINY
            off[t, h] = lost @ values[cells, h // group] + 3 * len(cells) * TINY
            off[t, h] += TINY * (1 + np.abs(expected["out"][t, h]))
    return {"out": off}


def chunk_complaint(inputs: Arguments, cells: int) -> str:
    """An error in the spans of a prompt's chunk over at most `cells` cells; "" if there is none."""
    sequence, begin, end = inputs["spans"].T
    if begin.any():
        return f"spans[:, 1] holds {begin[begin != 0][0]}: spans begin at 0"
    if len(several := np.unique(sequence[end > 0])) > 1:
        return f"tokens belong to sequences {several[0]} and {several[1]}: want one"
    return (
        out_of_range("lists", inputs["lists"], inputs["lists"].shape[1])
        or out_of_range("spans[:, 0]", sequence, len(inputs["lists"]))
        or out_of_range("spans[:, 2]", end, cells + 1)
    )


def complaint(inputs: Arguments) -> str:
    return chunk_complaint(inputs, inputs["lists"].shape[1]) or attention.complaint(inputs)


def cost(shape: Shape, format: str | None) -> Cost:
    """attention's, and the mask of each query block."""
    whole = attention.cost(shape, format)
    seen = shape["heads"] * shape["capacity"] * -(-shape["tokens"] // BLOCK)
    return Cost(whole.bytes + seen, whole.operations)


def fit(shape: Shape, format: str | None) -> Shape:
    """attention's; head_dim is whole vectors, and whole blocks in every format."""
    head_dim = min(256, -(-max(1, shape["head_dim"]) // 32) * 32)
    return fit_rows(attention.fit({**shape, "head_dim": head_dim}, format))


def fit_rows(shape: Shape) -> Shape:
    """The shape with as many rows as LARGEST_MAP has room for."""
    most = LARGEST_MAP // (shape["heads"] * shape["capacity"])
    return {**shape, "rows": max(1, min(shape["rows"], most))}


def plain(**sizes: int) -> Shape:
    return {"sequences": 1, "softcapped": 0, "rows": 2, **sizes}


AXES = {
    "tokens": (1, 2, 3, 8, 9, 70),
    "heads": (1, 2, 3, 4, 6, 8, 9),
    "kv_heads": (1, 2, 3, 4, 5, 8, 9),
    "head_dim": (32, 64, 96, 128, 256),
    "capacity": (1, 2, 15, 17, 65, 129, 130, 257, 290),
    "sequences": (1, 2, 3, 8),
    "rows": (1, 2, 3, 5),
    "softcapped": (1, 0),
}
OP = Op(
    name="pattern_attention",
    reference=pattern_attention,
    signature=(
        "q: f32[tokens heads head_dim], k: format[capacity kv_heads*head_dim],"
        " v: format[capacity kv_heads*head_dim], lists: i32[sequences capacity],"
        " spans: i32[tokens 3], sees: u8[heads rows capacity], scale: f64, softcap: f64,"
        " before: f32[tokens heads head_dim] -> out: f32[tokens heads head_dim]"
    ),
    axes=AXES,
    make=make,
    bound=bound,
    cost=cost,
    formats=FORMATS_OF_CACHE,
    fit=fit,
    corners=(
        # chunks of the mask, and tiles of a query block; more heads than a group; a prompt's end
        plain(tokens=140, heads=2, kv_heads=1, head_dim=64, capacity=1200, rows=4),
        plain(tokens=40, heads=32, kv_heads=4, head_dim=64, capacity=70),
        plain(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16),
        plain(tokens=513, heads=1, kv_heads=1, head_dim=32, capacity=600, rows=10),
        plain(tokens=3, heads=2, kv_heads=1, head_dim=64, capacity=4100),
        plain(tokens=2, heads=1, kv_heads=1, head_dim=64, capacity=65600),
    ),
    complaint=complaint,
    largest=LARGEST,
    varying=("tokens", "capacity", "sequences", "rows"),
    laws=LAWS,
)
