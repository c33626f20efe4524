"""Ops on a cache's cells on a GPU: scores by keys, selection, and compaction; page extremes, their
scores and selection. All update in place."""

from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.launch import THREADS, WARP, Grid, Launch, across, rows
from kernels.shapes import in_place
from reference.cache.cell_scores import KEYS, POOLED
from reference.cache.keep_cells import MOVED, TOP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.cache.pages import CHOICE, EXTREMES, FORMATS_OF_PAGES, SCORES
from reference.op import Shape

PARTS, PAGES = 32, 32
OF_CELLS = Config((constant("PARTS", PARTS, "in which directions of keys are summed"),))
OF_PAGES = Config((constant("PAGES", PAGES, "scored by a block, one per warp at a time"),))


def by_head(signature: str) -> str:
    """With a head's elements among the sizes."""
    return signature.replace("head_dim*kv_heads", "kv_heads head_dim")


BY_KEYS = by_head(KEYS)
DIRECTIONS = f"scratch: f64[{PARTS} kv_heads head_dim]"
DIFFERENCES = (
    (f"{BY_KEYS.partition(' -> ')[0]} -> {DIRECTIONS}", "keydiff_parts"),
    (f"kv_heads: i64 -> {DIRECTIONS}", "keydiff_anchors"),
    (BY_KEYS.replace(" -> ", f", {DIRECTIONS} -> "), "keydiff"),
)


def warps(shape: Shape) -> Grid:
    """A warp for each cell of each head."""
    return Grid((-(-shape["held"] * WARP // THREADS), shape["kv_heads"], 1), THREADS)


def parts(shape: Shape) -> Grid:
    """A warp for each part of the cells of each head."""
    return Grid((PARTS if shape["held"] else 0, shape["kv_heads"], 1), WARP)


heads = rows("kv_heads", THREADS)


def directions(shape: Shape) -> int:
    """Floats of scratch."""
    return 2 * PARTS * shape["kv_heads"] * shape["head_dim"]


def pages(shape: Shape) -> Grid:
    """A block for each page of a sequence."""
    return Grid((shape["pages"], shape["sequences"], 1), THREADS)


def scores_of_pages(shape: Shape) -> Grid:
    """A block for some pages of a token's chooser, with positive and negative parts of its
    queries."""
    blocks = -(-shape["pages"] // PAGES), shape["choosers"], shape["tokens"]
    return Grid(blocks, THREADS, 8 * shape["head_dim"])


def choosers(shape: Shape) -> Grid:
    """A block for each chooser of a token."""
    return Grid((shape["tokens"] * shape["choosers"], 1, 1), THREADS)


POOL = Launch("pool_scores.cu", "pool_scores", POOLED, across("kv_heads", "held"))
KEEP_TOP = Launch("keep_top.cu", "keep_top", TOP, rows("kv_heads", 1024))
CHOOSE = Launch("choose_pages.cu", "choose_pages", in_place(CHOICE), choosers)
KNORM = {
    f: Launch("cell_scores.cu", "knorm", BY_KEYS, warps, f, config=OF_CELLS)
    for f in FORMATS_OF_CACHE
}
KEYDIFF = {
    f: tuple(
        Launch("cell_scores.cu", name, signature, grid, f, config=OF_CELLS)
        for (signature, name), grid in zip(DIFFERENCES, (parts, heads, warps), strict=True)
    )
    for f in FORMATS_OF_CACHE
}
KEEP = {
    f: Launch("kv_keep.cu", "kv_keep", by_head(in_place(MOVED)), heads, f) for f in FORMATS_OF_CACHE
}
EXTREMES_OF = {
    f: Launch("pages.cu", "page_extremes", by_head(in_place(EXTREMES)), pages, f, config=OF_PAGES)
    for f in FORMATS_OF_PAGES
}
SCORES_OF = {
    f: Launch("pages.cu", "page_scores", in_place(SCORES), scores_of_pages, f, config=OF_PAGES)
    for f in FORMATS_OF_PAGES
}
