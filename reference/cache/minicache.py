"""Merge keys or values of two adjacent blocks (Liu et al., MiniCache, arXiv 2405.14366).

For each token and head the two blocks' vectors keep their magnitudes and share the direction e =
slerp(x / |x|, y / |y|, t). Tokens with the largest angle between both are retained: both vectors
are stored unchanged (formats/minicache.py has the layout).
"""

from typing import Any

import numpy as np

from reference.bounds import TINY, U64, U, gamma
from reference.formats import FORMATS
from reference.formats.minicache import (
    COSINE,
    GROUP,
    LENGTH_X,
    OF_X,
    page_bytes,
    page_of,
    page_size,
    retained_in,
)
from reference.laws.cache.minicache import MERGING_LAWS, WEIGHTS_LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

LARGEST_HALF = 65504.0
LEAST_COSINE = 2.0**-20 - 1  # cosines are clipped here, since sin W vanishes at -1
WEIGHTS = (
    "x: format[capacity head_dim*kv_heads], y: format[capacity head_dim*kv_heads],"
    " lists: i32[sequences capacity], due: i32[sequences 2], towards: f64,"
    " before: f32[sequences kv_heads 5 places] -> out: f32[sequences kv_heads 5 places]"
)
MERGING = (
    "x: format[capacity head_dim*kv_heads], y: format[capacity head_dim*kv_heads],"
    " weights: f32[sequences kv_heads 5 places], lists: i32[sequences capacity],"
    " due: i32[sequences 2], page_lists: i32[sequences slots],"
    " before: u8[pages kv_heads page] -> out: u8[pages kv_heads page]"
)


def slerp(u: Array, v: Array, t: float) -> Array:
    """e = [sin((1 - t) W) u + sin(t W) v] / sin W, with the angle W between unit vectors u and v
    [..., head_dim]: the paper's equation of the merged state."""
    of_u, of_v = slerp_factors((u * v).sum(axis=-1), t)
    return np.asarray(of_u[..., None] * u + of_v[..., None] * v)


def slerp_factors(cosine: Array, t: float) -> tuple[Array, Array]:
    """The factors sin((1 - t) W) / sin W and sin(t W) / sin W for cos W; 1 - t and t where W is 0.
    Cosines are at least LEAST_COSINE, since opposite directions have no unique midpoint."""
    angle = np.arccos(np.clip(cosine, LEAST_COSINE, 1))
    sine = np.where(angle > 0, np.sin(angle), 1)
    both = ((part, np.sin(part * angle) / sine) for part in (1 - t, t))
    of_u, of_v = (np.where(angle > 0, found, part) for part, found in both)
    return of_u, of_v


def restore_vectors(e: Array, lengths: Array) -> Array:
    """A block's approximate vectors: shared directions [..., head_dim] times the block's magnitudes
    [...], rounded once to float32."""
    return np.asarray(lengths[..., None].astype(np.float64) * e, np.float32)


def slerp_weights(
    x: Array, y: Array, lists: Array, due: Array, towards: float, before: Array, format: str
) -> Array:
    """out = before, but for (first, end) of due[s] and each place in 256 first to 256 end of
    sequence s, out[s, g, :, place] has five values for head g's vectors x (lower block) and y
    (upper block) of cell lists[s, place]: the cosine of their angle, the factors of x and y whose
    sum is slerp's direction at t = `towards`, and their magnitudes. If one vector is zero, the
    other's direction is used.

    x, y uint8 [capacity, row_bytes], rows of kv_heads * head_dim elements in `format`
    -> float64, like before.
    """
    out = before.astype(np.float64)
    for s, g, places in _due(before, due):
        u, v = (_head(rows[lists[s, places]], g, before, format) for rows in (x, y))
        lengths = np.sqrt((u * u).sum(axis=1)), np.sqrt((v * v).sum(axis=1))
        product = lengths[0] * lengths[1]
        cosine = np.where(product > 0, (u * v).sum(axis=1) / np.where(product > 0, product, 1), 1)
        both = slerp_factors(cosine, towards)
        for i, length in enumerate(lengths):
            alone = np.where(lengths[1 - i] > 0, both[i], 1)
            out[s, g, OF_X + i, places] = np.where(
                length > 0, alone / np.where(length > 0, length, 1), 0
            )
            out[s, g, LENGTH_X + i, places] = length
        out[s, g, COSINE, places] = cosine
    return out


def merge_blocks(
    x: Array, y: Array, weights: Array, lists: Array, due: Array, page_lists: Array, before: Array,
    format: str,
) -> Array:  # fmt: skip
    """out = before, but page page_lists[s, p] gets the tokens 256 p to 256 (p + 1) of sequence s,
    for p from due[s, 0] to due[s, 1]: merged, except for the tokens retained for each head, as many
    as fit into a page, of the lowest cosines, the earlier of equal ones.

    x, y, lists, due are those of slerp_weights, `weights` its output; page_lists int32 [sequences,
    slots]; before uint8 [pages, kv_heads, page] -> uint8, like before. Values are rounded to
    float32, and a shared direction then to float16, so that every kernel writes the same bytes.
    """
    out = before.copy()
    for s, g, places in _due(before, due):
        own = weights[s, g][:, places].astype(np.float32)
        u, v = (_head(part[lists[s, places]], g, before, format) for part in (x, y))
        out[page_lists[s, places[0] // GROUP], g] = page_of(u, v, own, before.shape[2])
    return out


def _due(before: Array, due: Array) -> Any:
    """For each head of each page that is due: its sequence, its head, and the places of its
    tokens."""
    for s, (first, end) in enumerate(due):
        for p in range(first, end):
            for g in range(before.shape[1]):
                yield s, g, np.arange(p * GROUP, (p + 1) * GROUP)


def _head(rows: Array, g: int, before: Array, format: str) -> Array:
    """One head's vectors, float64 [256, head_dim]."""
    x = FORMATS[format].dequantise(rows)
    return x.reshape(len(x), before.shape[1], -1)[:, g].astype(np.float64)


def make_weights(case: Case) -> Arguments:
    """Some sequences have pages due, from the first or a later one; cells not listed there hold
    NaN. Some tokens' vectors are parallel, nearly parallel, opposite, or zero in one of the
    blocks."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    capacity, kv_heads, head_dim = (shape[name] for name in ("capacity", "kv_heads", "head_dim"))
    sequences = shape["sequences"]
    lists = np.array([rng.permutation(capacity) for _ in range(sequences)], np.int32)
    most = shape["places"] // GROUP
    end = rng.integers(0, most + 1, sequences)
    end[-1] = most
    due = np.stack([rng.integers(0, end + 1), end], axis=1).astype(np.int32)
    due[-1, 0] *= case.seed % 2
    dims = capacity, kv_heads, head_dim
    x, y = (case.finite(rng, *dims).clip(-LARGEST_HALF, LARGEST_HALF) for _ in "xy")
    kind = rng.integers(0, 8, (capacity, kv_heads, 1))
    some = np.select([kind == 0, kind == 1, kind == 2], [x / 2, x + y / 1024, -x], y)
    y = np.where(kind == 3, 0, some).clip(-LARGEST_HALF, LARGEST_HALF).astype(np.float32)
    x = np.where((kind == 4) & (rng.random(kind.shape) < 0.5), 0, x).astype(np.float32)
    x, y = (FORMATS[case.format].quantise(rows.reshape(capacity, -1)) for rows in (x, y))
    named = [own[f * GROUP : e * GROUP] for own, (f, e) in zip(lists, due, strict=True)]
    x[unnamed := np.setdiff1d(np.arange(capacity), np.concatenate(named))] = 0xFF
    y[unnamed] = 0xFF
    drawn = rng.standard_normal((sequences, kv_heads, 5, shape["places"]), np.float32)
    return {
        "x": x, "y": y, "lists": lists, "due": due, "towards": (0.6, 0.5, 0.25, 1.0)[case.seed % 4],
        "before": drawn, "format": case.format,
    }  # fmt: skip


def make_merging(case: Case) -> Arguments:
    """The same, with the rounded output of slerp_weights; in some cases many angles are equal.
    Pages are at random places and hold random bytes before."""
    given, rng, shape = make_weights(case), case.rng(), case.shape
    weights = slerp_weights(**given)
    if case.seed % 2:
        weights[:, :, COSINE] = np.round(weights[:, :, COSINE] * 4) / 4
    own = {name: given[name] for name in ("x", "y", "lists", "due", "format")}
    pages, slots, sequences = shape["pages"], shape["slots"], shape["sequences"]
    due, page_lists = given["due"], np.zeros((sequences, slots), np.int32)
    free = rng.permutation(pages)
    for s, (first, end) in enumerate(due):  # written pages belong to one sequence
        end = min(end, first + len(free))
        due[s] = first, end
        page_lists[s, first:end], free = free[: end - first], free[end - first :]
    dims = pages, shape["kv_heads"], shape["page"]
    return {
        **own, "weights": weights.astype(np.float32), "page_lists": page_lists,
        "before": rng.integers(0, 256, dims, np.uint8),
    }  # fmt: skip


def bound_weights(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """For a kernel that accumulates products of float16, exact, in float64, and rounds once.

    A magnitude has its sum's gamma; the cosine three such sums, whose terms add up to at most 1.
    The logarithm of sin(p W) / sin W has the derivative |p cot(p W) - cot W| / sin W by the cosine,
    (1 - p p) / 3 near W = 0; to this add the roundings of the functions, and near pi that of arccos
    times the cotangents, which LEAST_COSINE keeps below 2^10.
    """
    given, kv_heads = expected["out"], expected["out"].shape[1]
    out: Array = np.zeros_like(given)
    head_dim = inputs["x"].shape[1] // 2 // kv_heads
    sums, towards = gamma(head_dim + 4, U64), inputs["towards"]
    for s, g, places in _due(out, inputs["due"]):
        own = given[s, g][:, places]
        angle = np.arccos(np.clip(own[COSINE], LEAST_COSINE, 1))
        wide = angle > 1e-3
        angle = np.where(wide, angle, 1)
        out[s, g, COSINE, places] = 3 * sums + U * np.abs(own[COSINE])
        for i, p in enumerate((1 - towards, towards)):
            part = np.maximum(p * angle, 1e-30)
            slope = np.abs(p / np.tan(part) - 1 / np.tan(angle)) / np.sin(angle)
            slope = np.where(wide, slope, (1 - p * p) / 3 + 1e-3)
            off = 2 * (slope * (3 * sums + 2.0**-48) + sums + 32 * U64) + U
            out[s, g, OF_X + i, places] = off * np.abs(own[OF_X + i]) + TINY
            out[s, g, LENGTH_X + i, places] = (sums + 2 * U64 + U) * own[LENGTH_X + i] + TINY
    return {"out": out}


def bound_merging(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: each rounding is defined exactly."""
    return {"out": np.zeros(expected["out"].shape)}


def unfit_weights(inputs: Arguments) -> str:
    most = min(inputs["before"].shape[3], len(inputs["x"])) // GROUP
    return _unfit(inputs, most)


def _unfit(inputs: Arguments, most: int) -> str:
    first, end = inputs["due"].T
    return (
        out_of_range("lists", inputs["lists"], len(inputs["x"]))
        or out_of_range("due[:, 0]", first, most + 1)
        or out_of_range("due[:, 1]", end, most + 1)
    )


def unfit_merging(inputs: Arguments) -> str:
    pages, kv_heads, size = inputs["before"].shape
    head_dim, lists = inputs["x"].shape[1] // 2 // kv_heads, inputs["page_lists"]
    retained = retained_in(size, head_dim)
    if not 0 <= retained <= GROUP or size != page_bytes(head_dim, retained):
        return f"a page of {size} bytes is not of {GROUP} tokens, heads of {head_dim}"
    most = min(inputs["weights"].shape[3], len(inputs["x"])) // GROUP
    written = [own[f:e] for own, (f, e) in zip(lists, inputs["due"], strict=True)]
    if len(np.unique(all_of := np.concatenate(written))) < len(all_of):
        return "page_lists has a page twice"
    return _unfit(inputs, min(most, lists.shape[1])) or out_of_range("page_lists", lists, pages)


def fit_weights(shape: Shape, format: str | None) -> Shape:
    """There is a cell for each place, and a head of whole vectors."""
    places = max(1, shape["places"])
    least = {"sequences": 1, "kv_heads": 1, "head_dim": 1, "capacity": places}
    return {**shape, "places": places, **{name: max(n, shape[name]) for name, n in least.items()}}


def fit_merging(shape: Shape, format: str | None) -> Shape:
    """The same, with a page and a list entry for each group of places; `page` is rounded to the
    bytes of a page that retains a whole number of tokens: `page` tokens, if it is at most 256."""
    own = dict(fit_weights({**shape, "places": max(GROUP, shape["places"])}, format))
    groups = own["places"] // GROUP
    own["slots"], own["pages"] = max(groups, own["slots"]), max(1, own["pages"])
    own["page"] = page_size(own["page"], own["head_dim"])
    return own


def cost_weights(shape: Shape, format: str | None) -> Cost:
    """All places of each sequence."""
    elements = shape["sequences"] * shape["places"] * shape["kv_heads"] * shape["head_dim"]
    return Cost(4 * elements + 20 * elements / shape["head_dim"], 6 * elements)


def cost_merging(shape: Shape, format: str | None) -> Cost:
    tokens = shape["sequences"] * shape["places"] * shape["kv_heads"]
    return Cost(tokens * (4 * shape["head_dim"] + 20 + shape["page"] / GROUP),
                3 * tokens * shape["head_dim"])  # fmt: skip


AXES = {
    "capacity": (1, 256, 257, 600, 1100),
    "sequences": (1, 2, 3, 5),
    "kv_heads": (1, 2, 3, 4, 5, 8),
    "head_dim": (16, 32, 48, 64, 80, 96, 128, 256),
}
FEW = {"sequences": 1, "kv_heads": 1, "head_dim": 16}
OPS = (
    Op(
        name="slerp_weights",
        reference=slerp_weights,
        signature=WEIGHTS,
        axes={**AXES, "places": (1, 256, 512, 700)},
        make=make_weights,
        bound=bound_weights,
        cost=cost_weights,
        formats=("F16",),
        fit=fit_weights,
        corners=(
            {"capacity": 600, "places": 512, "sequences": 1, "kv_heads": 4, "head_dim": 128},
            {**FEW, "capacity": 256, "places": 256},
            {**FEW, "capacity": 16640, "places": 16640},
        ),
        complaint=unfit_weights,
        varying=("capacity", "sequences", "places"),
        laws=WEIGHTS_LAWS,
    ),
    Op(
        name="merge_blocks",
        reference=merge_blocks,
        signature=MERGING,
        axes={
            **AXES,
            "places": (256, 512, 700),
            "slots": (1, 2, 3),
            "pages": (1, 2, 5),
            "page": (13, 0, 1, 100, 256),
        },
        make=make_merging,
        bound=bound_merging,
        cost=cost_merging,
        formats=("F16",),
        fit=fit_merging,
        corners=(
            {**FEW, "capacity": 256, "places": 256, "slots": 1, "pages": 1, "page": 2},
            {"places": 512, "sequences": 1, "kv_heads": 4, "head_dim": 128, "page": 13, "pages": 3},
            {"places": 512, "sequences": 1, "kv_heads": 4, "head_dim": 64, "page": 256},
            {**FEW, "capacity": 16640, "places": 16640, "slots": 65, "pages": 70, "page": 13},
        ),
        complaint=unfit_merging,
        varying=("capacity", "sequences", "places", "slots", "pages"),
        laws=MERGING_LAWS,
    ),
)
