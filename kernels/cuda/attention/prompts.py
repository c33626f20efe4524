"""Sparse attention for prompts on a GPU: estimates of heads' attention, their patterns, and
attention to the selected cells."""

from collections.abc import Callable

from kernels.cuda.attention.attention import THREADS, shared
from kernels.cuda.attention.attention_received import ROWS, SCRATCH, STRIPES, WEIGHTS, staged, tiles
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.shapes import in_place
from reference.attention.pattern_attention import OP
from reference.attention.prompt_patterns import SCORES, SUMS
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Shape


def plain(signature: str) -> str:
    """In place, with a head's elements among the sizes."""
    return in_place(signature).replace("kv_heads*head_dim", "kv_heads head_dim")


def seen(format: str) -> Callable[[Shape], Grid]:
    """A block for some tokens of a head; the last tokens come first."""

    def grid(shape: Shape) -> Grid:
        memory = shared(shape, format, ROWS, staged(format))
        return Grid((-(-shape["tokens"] // ROWS), shape["heads"], 1), THREADS, memory)

    return grid


def stripes(format: str) -> Callable[[Shape], Grid]:
    """A block for some cells of a head, and one for as many distances."""

    def grid(shape: Shape) -> Grid:
        memory = shared(shape, format, ROWS, staged(format))
        return Grid((-(-shape["capacity"] // STRIPES), shape["heads"], 2), THREADS, memory)

    return grid


def of_stripes(name: str, signature: str, grid: Callable[[Shape], Grid], format: str) -> Launch:
    return Launch("stripe_sums.cu", name, signature, grid, format, config=WEIGHTS)


def parts(shape: Shape) -> Grid:
    """A block for each part of the keys of a KV head."""
    return Grid((shape["parts"], shape["kv_heads"], 1), THREADS)


def means(shape: Shape) -> int:
    """Floats of scratch."""
    return shape["kv_heads"] * shape["parts"] * shape["head_dim"]


def queries(shape: Shape) -> Grid:
    """A block for each head and possible first token of a block of queries."""
    return Grid((shape["tokens"], shape["heads"], 1), THREADS, 4 * shape["head_dim"])


def best(shape: Shape) -> Grid:
    """A block for each head's columns, and one for its diagonals."""
    return Grid((shape["heads"], 2, 1), 1024)


def patterns(shape: Shape) -> Grid:
    return Grid((shape["tokens"], shape["heads"], 1), 256)


def chosen(shape: Shape) -> int:
    """Words of scratch."""
    return 2 * shape["heads"] * (shape["capacity"] + 1)


ATTENTION = {
    f: Launch("pattern_attention.cu", OP.name, plain(OP.signature), seen(f), f, config=WEIGHTS)
    for f in FORMATS_OF_CACHE
}
OF_SUMS, SUM = plain(SUMS).split(" -> ")
STRIPE_SUMS = {
    f: (
        of_stripes("stripe_totals", f"{OF_SUMS} -> {SCRATCH}", tiles(f), f),
        of_stripes("stripe_sums", f"{OF_SUMS}, {SCRATCH} -> {SUM}", stripes(f), f),
    )
    for f in FORMATS_OF_CACHE
}
MEANS = "scratch: f32[kv_heads parts head_dim]"
OF_KEYS = (
    "k: format[capacity kv_heads head_dim], lists: i32[sequences capacity], spans: i32[tokens 3]"
    f" -> {MEANS}"
)
SCORE = SCORES.partition(" -> ")[2]
OF_QUERIES = f"q: f32[tokens heads head_dim], spans: i32[tokens 3], {MEANS} -> {SCORE}"
BLOCK_SCORES = {
    f: (
        Launch("block_scores.cu", "means_of_keys", OF_KEYS, parts, f),
        Launch("block_scores.cu", "block_scores", OF_QUERIES, queries, f),
    )
    for f in FORMATS_OF_CACHE
}
OF_HEADS = "kinds: i32[heads], sizes: i32[heads 2]"
BEST = (
    f"{OF_HEADS}, sums: f32[heads 2 capacity], spans: i32[tokens 3], first: i64, recent: i64"
    " -> scratch: i32[heads 2 capacity]"
)
SEEN = (
    f"{OF_HEADS}, scores: f32[heads rows parts], spans: i32[tokens 3],"
    " scratch: i32[heads 2 capacity] -> out: u8[heads rows capacity]"
)
PROMPT_PATTERN = (
    Launch("prompt_pattern.cu", "best_stripes", BEST, best),
    Launch("prompt_pattern.cu", "prompt_pattern", SEEN, patterns),
)
