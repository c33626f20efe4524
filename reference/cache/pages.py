"""Query-aware page selection (Tang et al., Quest, arXiv 2406.10774): pages' key extremes m and M,
their scores sum_i max(q_i m_i, q_i M_i), and the top pages that a token reads (policies.py).

Page p of a sequence is `page` cells of its list from entry p * page on, and whole if it lies before
the page of the token's own cell.
"""

from collections.abc import Iterator

import numpy as np

from reference.attention.attention import HELD, rows_of
from reference.bounds import TINY, gamma
from reference.formats import FORMATS
from reference.laws.cache.pages import CHOICE_LAWS, EXTREMES_LAWS, SCORES_LAWS
from reference.laws.common import alone
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

EXTREMES = (
    "k: format[capacity head_dim*kv_heads], lists: i32[sequences capacity],"
    " stale: i32[sequences 2], page: i64, before: format[sequences kv_heads pages 2 head_dim]"
    " -> out: format[sequences kv_heads pages 2 head_dim]"
)
SCORES = (
    "q: f32[tokens heads head_dim], extremes: format[sequences kv_heads pages 2 head_dim],"
    " spans: i32[tokens 3], page: i64, before: f32[tokens choosers pages]"
    " -> out: f32[tokens choosers pages]"
)
CHOICE = (
    "scores: f32[tokens choosers pages], lists: i32[sequences capacity], spans: i32[tokens 3],"
    " page: i64, chosen: i64, kv_heads: i64, before: i32[rows wide]"
    " -> out: i32[rows wide], chosen_spans: i32[tokens*choosers 3]"
)
FORMATS_OF_PAGES = ("F32", "F16")  # formats without blocks
LARGEST = 2.0**55  # sums of products of two over heads and channels stay below 2^127


def page_extremes(
    k: Array, lists: Array, stale: Array, page: int, before: Array, format: str
) -> Array:
    """out = before, but out[s, g, p] has the minimum and the maximum of head g's channels over the
    keys of page p of sequence s, for p in stale[s] = (first page, end); of equal ones the first.

    k uint8 [capacity, row_bytes], rows of kv_heads * head_dim elements in `format`; lists int32
    [sequences, capacity]; before [sequences, kv_heads, pages, 2, bytes of head_dim elements] ->
    uint8, like before.
    """
    out, layout = before.copy(), FORMATS[format]
    size = layout.block_bytes
    for s, (first, end) in enumerate(stale):
        for p in range(first, end):
            rows = k[lists[s, p * page : (p + 1) * page]]
            keys, elements = layout.dequantise(rows), rows.reshape(page, -1, size)
            for kind, slots in enumerate((keys.argmin(axis=0), keys.argmax(axis=0))):
                found = elements[slots, np.arange(keys.shape[1])]
                out[s, :, p, kind] = found.reshape(out.shape[1], -1)
    return out


def page_scores(
    q: Array, extremes: Array, spans: Array, page: int, before: Array, format: str
) -> Array:
    """out[t, c, p] = sum_i max(q_i m_i, q_i M_i) over the channels of the query heads that select
    together (chooser c), with the extremes m, M of page p of token t's sequence for their KV head:
    an upper bound of q . k for every key of the page. Only pages before the one in which t's span
    ends are scored; other entries keep `before`.

    q float32 [tokens, heads, head_dim]; extremes are those of page_extremes; spans int32 [tokens,
    3] are attention's and begin at a list's first cell; before float32 [tokens, choosers, pages]
    -> float64, like before.
    """
    out = before.astype(np.float64)
    for t, products, _ in _products(q, extremes, spans, page, before.shape[1], format):
        out[t, :, : products.shape[1]] = products
    return out


def _products(
    q: Array, extremes: Array, spans: Array, page: int, choosers: int, format: str
) -> Iterator[tuple[int, Array, Array]]:
    """For each token with whole pages: its index, their scores [choosers, pages], and the sums of
    their terms' magnitudes."""
    heads, head_dim = q.shape[1:]
    for t, (sequence, _, end) in enumerate(spans):
        if (last := max(0, end - 1) // page) == 0:
            continue
        rows = extremes[sequence, :, :last].reshape(-1, extremes.shape[-1])
        found = rows_of(rows, head_dim, format).reshape(-1, last, 2, head_dim)
        found = np.repeat(found, heads // len(found), axis=0)
        both = q[t].astype(np.float64)[:, None, None] * found
        largest, sizes = both.max(axis=2).sum(axis=2), np.abs(both).sum(axis=(2, 3))
        of_choosers = choosers, heads // choosers, last
        yield (
            t,
            largest.reshape(of_choosers).sum(axis=1),
            sizes.reshape(of_choosers).sum(axis=1),
        )


def choose_pages(
    scores: Array, lists: Array, spans: Array, page: int, chosen: int, kv_heads: int, before: Array
) -> tuple[Array, Array]:
    """Build block tables of (cell, head) rows: chosen_spans[t * choosers + c] is the part of `out`
    that lists cell * kv_heads + g for each cell of the pages that chooser c of token t reads, with
    g its KV head.

    A token reads the page in which its span ends, up to its end, and the `chosen` - 1 earlier pages
    of the highest scores, of equal ones the earlier; ascending. A token without cells has none.
    Each list has room for R = min(chosen * page, wide) entries; a row of `out` has as many lists as
    fit.

    scores float32 [tokens, choosers, pages], lists int32 [sequences, capacity], spans int32
    [tokens, 3] from a list's first cell on, before int32 [rows, wide]
    -> int32 like before, and int32 [tokens * choosers, 3].
    """
    out, (tokens, choosers, _) = before.copy(), scores.shape
    chosen_spans = np.zeros((tokens * choosers, 3), np.int32)
    room = min(chosen * page, out.shape[1])
    for t, (sequence, _, end) in enumerate(spans):
        for c in range(choosers if end else 0):
            last = (end - 1) // page
            best = np.argsort(-scores[t, c, :last], kind="stable")[: chosen - 1]
            starts = np.append(np.sort(best), last) * page
            slots = np.concatenate([np.arange(at, min(at + page, end)) for at in starts])
            row, place = divmod(t * choosers + c, out.shape[1] // room)
            begin = place * room
            cells = lists[sequence, slots] * kv_heads + c * kv_heads // choosers
            out[row, begin : begin + len(cells)] = cells
            chosen_spans[t * choosers + c] = row, begin, begin + len(cells)
    return out, chosen_spans


def make_extremes(case: Case) -> Arguments:
    """Some sequences have stale pages, from the first or a later one; cells of no stale page hold
    NaN."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    capacity, page, sequences = shape["capacity"], shape["page"], shape["sequences"]
    width, held = shape["kv_heads"] * shape["head_dim"], HELD[case.format]
    rows = case.finite(rng, capacity, width).clip(-held, held)
    if case.seed % 2:  # zeros of both signs, which are equal
        rows = rows * (rng.random(rows.shape) < 0.3).astype(np.float32)
    k = FORMATS[case.format].quantise(rows)
    lists = np.array([rng.permutation(capacity) for _ in range(sequences)], np.int32)
    most = min(shape["pages"], capacity // page)
    end = rng.integers(0, most + 1, sequences)
    end[-1] = most
    stale = np.stack([rng.integers(0, end + 1), end], axis=1)
    stale[-1, 0] *= case.seed % 2
    named = [own[first * page : end * page] for own, (first, end) in zip(lists, stale, strict=True)]
    k[np.setdiff1d(np.arange(capacity), np.concatenate(named))] = 0xFF
    row_bytes = FORMATS[case.format].row_bytes(shape["head_dim"])
    dims = sequences, shape["kv_heads"], shape["pages"], 2, row_bytes
    return {
        "k": k,
        "lists": lists,
        "stale": stale.astype(np.int32),
        "page": page,
        "before": rng.integers(0, 256, dims, np.uint8),
        "format": case.format,
    }


def make_scored(case: Case) -> Arguments:
    """Tokens see any number of cells, the last token all; pages that no token scores hold NaN."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    layout, page, pages = FORMATS[case.format], shape["page"], shape["pages"]
    dims = shape["sequences"], shape["kv_heads"], pages, 1, shape["head_dim"]
    most = min(LARGEST, HELD[case.format])
    drawn = [case.finite(rng, *dims).clip(-most, most) for _ in range(2)]
    both = np.sort(np.concatenate(drawn, axis=3), axis=3).astype(np.float32)
    extremes = layout.quantise(both.reshape(-1, shape["head_dim"])).reshape(
        *both.shape[:4], layout.row_bytes(shape["head_dim"])
    )
    spans = _spans(rng, shape, (pages + 1) * page)
    seen = np.zeros(shape["sequences"], np.int64)
    for sequence, _, end in spans:
        seen[sequence] = max(seen[sequence], (end - 1) // page)
    for sequence, count in enumerate(seen):
        extremes[sequence, :, count:] = 0xFF
    return {
        "q": case.array(rng, shape["tokens"], shape["heads"], shape["head_dim"]),
        "extremes": extremes,
        "spans": spans,
        "page": page,
        "before": rng.standard_normal((shape["tokens"], shape["choosers"], pages), np.float32),
        "format": case.format,
    }


def _spans(rng: np.random.Generator, shape: Shape, most: int) -> Array:
    spans = np.zeros((shape["tokens"], 3), np.int32)
    spans[:, 0] = rng.integers(0, shape["sequences"], len(spans))
    spans[:, 2] = rng.integers(0, most + 1, len(spans)) * (rng.random(len(spans)) < 0.8)
    spans[-1:, 2] = most
    return spans


def make_choice(case: Case) -> Arguments:
    """In some cases most scores are ties."""
    rng, shape = case.rng(), case.shape
    pages, capacity, page = shape["pages"], shape["capacity"], shape["page"]
    scores = case.array(rng, shape["tokens"], shape["choosers"], pages)
    if case.seed % 2 and pages:
        scores = np.take(scores, rng.integers(0, pages, pages), axis=2)
    lists = [rng.permutation(capacity) for _ in range(shape["sequences"])]
    dims = shape["rows"], shape["wide"]
    return {
        "scores": scores,
        "lists": np.array(lists, np.int32),
        "spans": _spans(rng, shape, min((pages + 1) * page, capacity)),
        "page": page,
        "chosen": shape["chosen"],
        "kv_heads": shape["kv_heads"],
        "before": rng.integers(0, 2**31, dims, np.int32),
    }


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: elements are copied, and cells are integers."""
    return {name: np.zeros(array.shape) for name, array in expected.items()}


def bound_scores(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A kernel may add up a chooser's positive and its negative queries first, since they multiply
    the same extremes: sums over a group's heads, then two products for each channel."""
    q, before = inputs["q"], inputs["before"]
    off = np.zeros(before.shape)
    group, head_dim, own = q.shape[1] // before.shape[1], q.shape[2], inputs["format"]
    given = q, inputs["extremes"], inputs["spans"], inputs["page"], before.shape[1], own
    for t, _, sizes in _products(*given):
        tiny = TINY * (1 + 2 * group * head_dim)
        off[t, :, : sizes.shape[1]] = gamma(2 * head_dim + group + 2) * sizes + tiny
    return {"out": off}


def unfit_extremes(inputs: Arguments) -> str:
    page, (first, end) = inputs["page"], inputs["stale"].T
    if page < 1:
        return f"page is {page}: want at least one cell"
    most = min(inputs["before"].shape[2], len(inputs["k"]) // page)
    return (
        out_of_range("lists", inputs["lists"], len(inputs["k"]))
        or out_of_range("stale[:, 0]", first, most + 1)
        or out_of_range("stale[:, 1]", end, most + 1)
    )


def _unfit_spans(inputs: Arguments, sequences: int, most: int) -> str:
    if inputs["page"] < 1:
        return f"page is {inputs['page']}: want at least one cell"
    sequence, begin, end = inputs["spans"].T
    if begin.any():
        return "spans must begin at a list's first cell, so that pages are whole"
    return out_of_range("spans[:, 0]", sequence, sequences) or out_of_range(
        "spans[:, 2]", end, most + 1
    )


def unfit_scores(inputs: Arguments) -> str:
    sequences, kv_heads, pages = inputs["extremes"].shape[:3]
    heads, choosers = inputs["q"].shape[1], inputs["before"].shape[1]
    if choosers % kv_heads or heads % choosers:
        return f"{heads} heads, {choosers} choosers and {kv_heads} kv_heads: want multiples"
    return _unfit_spans(inputs, sequences, (pages + 1) * inputs["page"])


def unfit_choice(inputs: Arguments) -> str:
    (tokens, choosers, pages), page = inputs["scores"].shape, inputs["page"]
    (sequences, capacity), (rows, wide) = inputs["lists"].shape, inputs["before"].shape
    chosen, kv_heads = inputs["chosen"], inputs["kv_heads"]
    if chosen < 1 or kv_heads < 1 or choosers % kv_heads:
        return f"chosen is {chosen}, of {choosers} choosers for {kv_heads} kv_heads"
    most = min((pages + 1) * page, capacity)
    if found := _unfit_spans(inputs, sequences, most):
        return found
    room = min(chosen * page, wide)
    if wide < min(chosen * page, most) or rows * (wide // max(1, room)) < tokens * choosers:
        return f"before has {rows} rows of {wide}, too few for {tokens * choosers} lists of {room}"
    return out_of_range("lists", inputs["lists"], capacity)


def fit_extremes(shape: Shape, format: str | None) -> Shape:
    least = ("capacity", "kv_heads", "head_dim", "sequences", "page")
    return {**shape, **{axis: max(1, shape[axis]) for axis in least}}


def _choosers(shape: Shape) -> dict[str, int]:
    """Sizes with choosers rounded to a multiple of kv_heads."""
    kv_heads = max(1, shape["kv_heads"])
    return {"kv_heads": kv_heads, "choosers": -(-max(1, shape["choosers"]) // kv_heads) * kv_heads}


def fit_scores(shape: Shape, format: str | None) -> Shape:
    """Those, with heads a multiple of choosers."""
    own = _choosers(shape)
    heads = -(-max(1, shape["heads"]) // own["choosers"]) * own["choosers"]
    least = {axis: max(1, shape[axis]) for axis in ("head_dim", "sequences", "page")}
    return {**shape, **own, "heads": heads, **least}


def fit_choice(shape: Shape, format: str | None) -> Shape:
    """There is room for each list."""
    least = {a: max(1, shape[a]) for a in ("sequences", "capacity", "page", "chosen")}
    own = {**shape, **_choosers(shape), **least}
    whole = own["chosen"] * own["page"]
    wide = max(own["wide"], min(whole, own["capacity"]))
    each = wide // min(whole, wide)
    rows = max(own["rows"], -(-own["tokens"] * own["choosers"] // each), 1)
    return {**own, "wide": wide, "rows": rows}


def cost_extremes(shape: Shape, format: str | None) -> Cost:
    elements = shape["sequences"] * shape["pages"] * shape["kv_heads"] * shape["head_dim"]
    bytes_each = FORMATS[format or "F32"].bits / 8
    return Cost((shape["page"] + 2) * elements * bytes_each, 2 * shape["page"] * elements)


def cost_scores(shape: Shape, format: str | None) -> Cost:
    """The extremes of one sequence are read once; each token's choosers multiply all of them."""
    pages, head_dim, tokens = shape["pages"], shape["head_dim"], shape["tokens"]
    extremes = 2 * pages * shape["kv_heads"] * head_dim * FORMATS[format or "F32"].bits / 8
    scores = tokens * shape["choosers"] * pages
    return Cost(extremes + 4 * (scores + tokens * shape["heads"] * head_dim), 4 * scores * head_dim)


def cost_choice(shape: Shape, format: str | None) -> Cost:
    lists = shape["tokens"] * shape["choosers"]
    return Cost(4 * lists * (shape["pages"] + 2 * shape["chosen"] * shape["page"]), lists)


OPS = (
    Op(
        name="page_extremes",
        reference=page_extremes,
        signature=EXTREMES,
        axes={
            "capacity": (1, 2, 16, 17, 65, 129),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "head_dim": (1, 2, 6, 16, 31, 33, 64, 96, 128, 256),
            "sequences": (1, 2, 3, 5),
            "pages": (1, 2, 4, 9, 16),
            "page": (1, 2, 3, 8, 16, 32),
        },
        make=make_extremes,
        bound=exact,
        cost=cost_extremes,
        formats=FORMATS_OF_PAGES,
        fit=fit_extremes,
        corners=(
            {"pages": 0, "capacity": 40, "page": 16},
            {"capacity": 330, "pages": 20, "page": 16, "kv_heads": 4, "head_dim": 128},
            {
                "capacity": 65600,
                "pages": 4100,
                "page": 16,
                "kv_heads": 1,
                "head_dim": 1,
                "sequences": 1,
            },
        ),
        complaint=unfit_extremes,
        varying=("capacity", "sequences", "pages"),
        laws=EXTREMES_LAWS,
    ),
    Op(
        name="page_scores",
        reference=page_scores,
        signature=SCORES,
        axes={
            "tokens": (1, 2, 3, 5, 9),
            "heads": (1, 2, 4, 6, 8, 9),
            "head_dim": (1, 2, 6, 16, 31, 33, 64, 80, 96, 128, 256),
            "sequences": (1, 2, 3),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "pages": (1, 2, 9, 31, 65),
            "choosers": (1, 2, 4, 6, 8),
            "page": (1, 2, 3, 8, 16, 32),
        },
        make=make_scored,
        bound=bound_scores,
        cost=cost_scores,
        formats=FORMATS_OF_PAGES,
        fit=fit_scores,
        corners=(
            {"tokens": 0, "pages": 4},
            {"tokens": 2, "pages": 0, "page": 16},
            {"tokens": 1, "heads": 32, "kv_heads": 4, "choosers": 4, "head_dim": 64, "pages": 300},
            {"tokens": 1, "heads": 32, "kv_heads": 4, "choosers": 32, "head_dim": 64, "pages": 33},
            {"tokens": 513, "heads": 1, "kv_heads": 1, "choosers": 1, "head_dim": 16, "pages": 5},
            {"tokens": 2, "heads": 1, "kv_heads": 1, "choosers": 1, "head_dim": 1, "pages": 4100},
        ),
        complaint=unfit_scores,
        largest=LARGEST,
        varying=("tokens", "sequences", "pages"),
        laws=(alone(SCORES, make_scored), *SCORES_LAWS),
    ),
    Op(
        name="choose_pages",
        reference=choose_pages,
        signature=CHOICE,
        axes={
            "tokens": (1, 2, 3, 5, 9),
            "choosers": (1, 2, 4, 6, 8),
            "pages": (1, 2, 9, 31, 65),
            "sequences": (1, 2, 3),
            "capacity": (1, 2, 16, 65, 300, 1100),
            "page": (1, 2, 3, 8, 16, 32),
            "chosen": (1, 2, 3, 5, 8, 64),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "rows": (1, 2),
            "wide": (1, 100, 999, 4000),
        },
        make=make_choice,
        bound=exact,
        cost=cost_choice,
        fit=fit_choice,
        corners=(
            {"tokens": 0, "pages": 4},
            {"tokens": 2, "pages": 0, "page": 16, "capacity": 16},
            {
                "tokens": 1,
                "choosers": 4,
                "kv_heads": 4,
                "pages": 300,
                "page": 16,
                "capacity": 4801,
                "chosen": 64,
                "wide": 19204,
            },
            {
                "tokens": 1,
                "choosers": 1,
                "kv_heads": 1,
                "pages": 4100,
                "page": 16,
                "capacity": 65600,
                "chosen": 3,
                "wide": 65600,
            },
            {
                "tokens": 513,
                "choosers": 1,
                "kv_heads": 1,
                "pages": 5,
                "page": 2,
                "capacity": 12,
                "chosen": 3,
                "wide": 12,
            },
        ),
        complaint=unfit_choice,
        varying=("tokens", "pages", "sequences", "capacity", "rows", "wide"),
        laws=CHOICE_LAWS,
    ),
)
