"""Pack keys and values into two-bit pages of 32 tokens (Liu et al., KIVI, arXiv 2402.02750):
q = round((x - z) / s), by channel for keys and by token for values (formats/kivi.py).

Tokens are written to a float16 cache first. Groups of 32 that are older than the latest tokens are
packed once, by their slots in the sequence.
"""

from collections.abc import Callable

import numpy as np

from reference.formats import FORMATS
from reference.formats.kivi import GROUP, PAGE_BYTES, page_of_keys, page_of_values
from reference.laws.cache.kivi import LAWS_OF
from reference.laws.common import in_turns
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range

LARGEST_HALF = 65504.0
SIGNATURE = (
    "x: format[capacity head_dim*kv_heads], lists: i32[sequences capacity], spans: i32[tokens 3],"
    f" into: i32[tokens], before: u8[pages kv_heads head_dim {PAGE_BYTES}]"
    f" -> out: u8[pages kv_heads head_dim {PAGE_BYTES}]"
)


def kivi_keys(
    x: Array, lists: Array, spans: Array, into: Array, before: Array, format: str
) -> Array:
    """out = before, but page into[t] gets the keys of the 32 cells before those that token t sees:
    lists[s, begin - 32 : begin] for (s, begin, _) = spans[t]; into[t] = -1 writes no page.

    x uint8 [capacity, row_bytes], rows of kv_heads * head_dim elements in `format`; lists and spans
    are attention's; into int32 [tokens], pages distinct; before uint8 [pages, kv_heads, head_dim,
    11] -> uint8, like before.
    """
    return _written(page_of_keys, x, lists, spans, into, before, format)


def kivi_values(
    x: Array, lists: Array, spans: Array, into: Array, before: Array, format: str
) -> Array:
    """kivi_keys for values, into value pages: shapes as for kivi_keys."""
    return _written(page_of_values, x, lists, spans, into, before, format)


def _written(
    page_of: Callable[[Array], Array], x: Array, lists: Array, spans: Array, into: Array,
    before: Array, format: str,
) -> Array:  # fmt: skip
    out = before.copy()
    for (sequence, begin, _), page in zip(spans, into, strict=True):
        if page >= 0:
            rows = FORMATS[format].dequantise(x[lists[sequence, begin - GROUP : begin]])
            out[page] = page_of(rows.reshape(GROUP, *before.shape[1:3]))
    return out


def make(case: Case) -> Arguments:
    """Groups of sequences that share one cache; some tokens have none. Cells of no group hold NaN,
    and pages hold random bytes."""
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    tokens, capacity, pages = shape["tokens"], shape["capacity"], shape["pages"]
    sequences, dims = shape["sequences"], (shape["kv_heads"], shape["head_dim"])
    lists = np.stack([rng.permutation(capacity) for _ in range(sequences)]).astype(np.int32)
    begin = rng.integers(GROUP, capacity + 1, tokens)
    spans = np.stack([rng.integers(0, sequences, tokens), begin, begin], axis=1).astype(np.int32)
    into = np.full(tokens, -1, np.int32)
    having = rng.permutation(tokens)[: min(pages, max(1, tokens - tokens // 3))]
    into[having] = rng.permutation(pages)[: len(having)]
    rows = case.finite(rng, capacity, dims[0] * dims[1]).clip(-LARGEST_HALF, LARGEST_HALF)
    x, grouped = FORMATS[case.format].quantise(rows.astype(np.float32)), np.zeros(capacity, bool)
    for sequence, end, _ in spans[into >= 0]:
        grouped[lists[sequence, end - GROUP : end]] = True
    x[~grouped] = 0xFF
    before = rng.integers(0, 256, (pages, *dims, PAGE_BYTES), np.uint8)
    return {
        "x": x, "lists": lists, "spans": spans, "into": into, "before": before,
        "format": case.format,
    }  # fmt: skip


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: each rounding is defined exactly."""
    return {"out": np.zeros(expected["out"].shape)}


def complaint(inputs: Arguments) -> str:
    into, lists = inputs["into"], inputs["lists"]
    pages, _, head_dim, _ = inputs["before"].shape
    sequence, begin, _ = inputs["spans"].T
    written = into[into >= 0]
    if head_dim % GROUP:
        return f"head_dim is {head_dim}, not a multiple of {GROUP} channels"
    if len(np.unique(written)) < len(written):
        return "into has a page twice"
    if (begin[into >= 0] < GROUP).any():
        return f"a page has fewer than {GROUP} cells before the span"
    return (
        out_of_range("into", written, pages)
        or out_of_range("into", into + 1, pages + 1)
        or out_of_range("lists", lists, lists.shape[1])
        or out_of_range("spans[:, 0]", sequence, len(lists))
        or out_of_range("spans[:, 1]", begin, lists.shape[1] + 1)
    )


def fit(shape: Shape, format: str | None) -> Shape:
    """There is a group of cells, a sequence, a page and a head; head_dim is whole groups."""
    least = {"capacity": GROUP, "sequences": 1, "pages": 1, "kv_heads": 1}
    head_dim = -(-max(1, shape["head_dim"]) // GROUP) * GROUP
    return {**shape, **{a: max(n, shape[a]) for a, n in least.items()}, "head_dim": head_dim}


def cost(shape: Shape, format: str | None) -> Cost:
    """One group for each token."""
    elements = shape["tokens"] * GROUP * shape["kv_heads"] * shape["head_dim"]
    bits = FORMATS[format or "F32"].bits + 8 * PAGE_BYTES / GROUP
    return Cost(elements * bits / 8, 5 * elements)


def _sizes(**sizes: int) -> Shape:
    return {"sequences": 1, **sizes}


def _op(reference: Callable[..., Array]) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=SIGNATURE,
        axes={
            "tokens": (1, 2, 3, 5, 9),
            "sequences": (1, 2, 3, 8),
            "capacity": (32, 33, 65, 129, 257),
            "pages": (1, 2, 5, 9),
            "kv_heads": (1, 2, 3, 4, 5, 8),
            "head_dim": (32, 64, 96, 128, 256),
        },
        make=make,
        bound=bound,
        cost=cost,
        formats=("F16",),
        fit=fit,
        corners=(
            _sizes(tokens=0, capacity=40, pages=2, kv_heads=2, head_dim=32),
            _sizes(tokens=20, capacity=700, pages=17, kv_heads=4, head_dim=64),
            _sizes(tokens=513, capacity=90, pages=17, kv_heads=1, head_dim=32, sequences=9),
            _sizes(tokens=1, capacity=33, pages=2, kv_heads=32, head_dim=128),
            _sizes(tokens=2, capacity=4100, pages=2100, kv_heads=1, head_dim=32),
        ),
        complaint=complaint,
        varying=("tokens", "sequences", "capacity", "pages"),
        laws=(in_turns(SIGNATURE, make), *LAWS_OF[reference.__name__]),
    )


OPS = (_op(kivi_keys), _op(kivi_values))
