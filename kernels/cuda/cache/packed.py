"""Packing groups of a text's tokens into pages on a GPU: two bits (KIVI), and two blocks' cells
into one (MiniCache). Pages are updated in place."""

from kernels.cuda.cache.cells import by_head
from kernels.cuda.runtime.launch import THREADS, Grid, Launch
from kernels.kernel import any_shape
from kernels.shapes import in_place
from reference.cache.kivi import SIGNATURE
from reference.cache.minicache import MERGING, WEIGHTS
from reference.formats.minicache import GROUP
from reference.op import Shape

MOST = 16  # blocks of a sequence's head, whose pages are seldom due


def of_groups(shape: Shape) -> Grid:
    """A block for each head of each potential group of a token."""
    return Grid((shape["tokens"], shape["kv_heads"], 1), THREADS)


def of_tokens(shape: Shape) -> Grid:
    """Blocks for each head of a sequence, which share the due groups."""
    return Grid((MOST, shape["kv_heads"], shape["sequences"]), THREADS)


def of_pages(shape: Shape) -> Grid:
    """The same, with a thread for each token of a page."""
    return Grid((min(MOST, shape["slots"]), shape["kv_heads"], shape["sequences"]), GROUP)


def whole_pairs(shape: Shape) -> bool:
    """Rows that are words."""
    return shape["head_dim"] % 2 == 0


SOURCES = {
    "kivi_keys": ("kivi.cu", SIGNATURE, of_groups, any_shape),
    "kivi_values": ("kivi.cu", SIGNATURE, of_groups, any_shape),
    "slerp_weights": ("minicache.cu", WEIGHTS, of_tokens, any_shape),
    "merge_blocks": ("minicache.cu", MERGING, of_pages, whole_pairs),
}
LAUNCHES = {  # and what each takes
    op: (Launch(source, op, by_head(in_place(signature)), grid, "F16"), takes)
    for op, (source, signature, grid, takes) in SOURCES.items()
}
