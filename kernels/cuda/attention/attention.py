"""attention on the GPU: flash attention in chunks of cells, as the CPU's (docs/decisions/008).

- With up to FEW tokens blocks of threads take the chunks of a tile of rows by turns, and a second
  launch merges what all of them gave.
- With more tokens a block goes through all chunks of a tile.

What is not of use for the number of tokens is launched with no block.
"""

from collections.abc import Callable

from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.launch import ConfiguredGrid, Grid, Launch
from kernels.knob import Knob
from reference.attention.attention import OP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Shape

PLAIN = Config((
    constant("THREADS", 128, "of a block"),
    constant("CHUNK", 128, "cells that are summed by themselves"),
    constant("FEW", 8, "tokens, up to which blocks share chunks (split-KV)"),
    constant("FEW_ROWS", 8, "of a small tile"),
    constant("MANY_ROWS", 32, "of a tile of many tokens"),
    constant("MANY_ROWS_OF_WIDE", 16, "the same for a head_dim above WIDE"),
    constant("WIDE", 128, "elements of head_dim"),
    constant("MANY_AT_ONCE", 2, "blocks of a multiprocessor, for many tokens"),
    constant("TENSOR_ROWS", 16, "of a warp on tensor cores"),
    constant("BUDGET", 34816, "bytes of staging: a chunk's keys in float16, of head_dim 128"),
))  # fmt: skip
IN_PIECES = Config((
    *PLAIN.constants,
    constant("RING", 3, "pieces in shared memory"),
    Knob("PIECE_CELLS", (32, 64), 64, "cells of one, at most"),
    Knob("PIECE_BYTES", (8704, 17408), 17408, "bytes of one, at most: 64 cells of 128 float16"),
    Knob("BLOCKS", (132, 264, 384, 528), 384, "that take chunks in turn: three a multiprocessor"),
    Knob("FEW_AT_ONCE", (2, 3, 4), 3, "blocks of a multiprocessor"),
))  # fmt: skip
TENSOR_FEW = Config((
    *PLAIN.constants,
    Knob("BLOCKS", (132, 256, 264, 396), 256, "blocks in all that take chunks in turn"),
    Knob("FEW_AT_ONCE", (1, 2, 3), 2, "blocks of a multiprocessor"),
))  # fmt: skip
CHUNK, FEW, THREADS, TENSOR_ROWS = (
    PLAIN[name] for name in ("CHUNK", "FEW", "THREADS", "TENSOR_ROWS")
)
WIDEST = 256  # head_dim
TENSOR_HEADS = (64, 128)  # head_dim
MULTIPROCESSORS = 132  # of an H200
ROW_WORDS = 9  # of shared memory besides a row's query and weights

Chunks = Callable[[Shape], int]

# The bytes of a cell's row are those of its heads.
PLAIN_SIGNATURE = OP.signature.replace("kv_heads*head_dim", "kv_heads head_dim")
# `scratch` is as large as `partials` says.
SIGNATURE = PLAIN_SIGNATURE.replace(" -> ", ", scratch: f32[tokens heads] -> ")
MERGE_SIGNATURE = (
    "spans: i32[tokens 3], sinks: f32[heads], scratch: f32[tokens heads head_dim capacity]"
    " -> out: f32[tokens heads head_dim]"
)


def whole_vectors(shape: Shape) -> bool:
    """What `generic` takes of float caches: a head_dim of whole 16 elements, up to the widest."""
    return shape["head_dim"] % 16 == 0 and shape["head_dim"] <= WIDEST


def whole_blocks(shape: Shape) -> bool:
    """And of quantised ones: no block holds elements of two heads."""
    return whole_vectors(shape) and shape["head_dim"] % 32 == 0


def for_tensor_cores(shape: Shape) -> bool:
    """What `tensor` takes."""
    return shape["head_dim"] in TENSOR_HEADS


def chunks(shape: Shape) -> int:
    return -(-shape["capacity"] // CHUNK)


def partials(shape: Shape, chunks: Chunks = chunks) -> int:
    """Floats of scratch: for each chunk the sums, the highest score and the sum of weights."""
    return min(shape["tokens"], FEW) * shape["heads"] * chunks(shape) * (shape["head_dim"] + 2)


def tiling(shape: Shape, rows: int) -> tuple[int, int, int]:
    """(heads and tokens of a tile of so many rows, slices of a group)."""
    group = shape["heads"] // shape["kv_heads"]
    slices = -(-group // rows)
    width = -(-group // slices)
    return width, rows // width, slices


def stride(shape: Shape, format: str) -> int:
    """Bytes from cell to cell in shared memory."""
    size = FORMATS[format].row_bytes(shape["head_dim"])
    return size + 16 if FORMATS[format].block == 1 else (-(-size // 4) | 1) * 4


def shared(shape: Shape, format: str, rows: int, staged: int, lists: int = 1) -> int:
    """Bytes of shared memory for so many rows, staged cells and chunks' lists of cells."""
    words = (lists + 1) * CHUNK + rows * (shape["head_dim"] + CHUNK + ROW_WORDS)
    return staged * stride(shape, format) + 4 * words


def few_tiles(shape: Shape, most: int = PLAIN["FEW_ROWS"]) -> tuple[int, int, int]:
    """For few tokens: rows of a block, of at most so many, tiles by heads, and tiles by tokens."""
    width, height, slices = tiling(shape, most)
    tiles = -(-shape["tokens"] // height) if shape["tokens"] <= FEW else 0
    rows = 1
    while rows < min(height, shape["tokens"]) * width:
        rows *= 2
    return rows, shape["kv_heads"] * slices, tiles


def small_tiles(shape: Shape) -> tuple[int, int, int]:
    """The same; for one token of as few rows as give every multiprocessor a block, if chunks are
    few."""
    most, found = PLAIN["FEW_ROWS"] if shape["tokens"] == 1 else 1, few_tiles(shape)
    while most > 1 and chunks(shape) * found[1] * found[2] < MULTIPROCESSORS:
        most //= 2
        found = few_tiles(shape, most)
    return found


def of_few(format: str, chunks: Chunks) -> Callable[[Shape], Grid]:
    """A block for each chunk that a tile's tokens may have."""

    def grid(shape: Shape) -> Grid:
        (rows, of_heads, of_tokens), staged = few_tiles(shape), CHUNK
        while staged * stride(shape, format) > PLAIN["BUDGET"]:
            staged //= 2
        memory = shared(shape, format, rows, staged)
        return Grid((chunks(shape), of_heads, of_tokens), THREADS, memory)

    return grid


def by_turns(shape: Shape, tiles: int, blocks: int) -> int:
    """The number of blocks, of so many in all, that take a tile's chunks in turn."""
    return min(chunks(shape), max(1, blocks // max(tiles, 1)))


def cells_of_piece(shape: Shape, format: str, config: Config) -> int:
    cells = config["PIECE_CELLS"]
    while cells * stride(shape, format) > config["PIECE_BYTES"]:
        cells //= 2
    return cells


def of_pieces(format: str) -> ConfiguredGrid:
    """Blocks that take chunks in turn, piece by piece."""

    def grid(shape: Shape, config: Config) -> Grid:
        rows, of_heads, of_tokens = small_tiles(shape)
        staged = config["RING"] * cells_of_piece(shape, format, config)
        memory = shared(shape, format, rows, staged, lists=2)
        blocks = by_turns(shape, of_heads * of_tokens, config["BLOCKS"])
        return Grid((blocks, of_heads, of_tokens), THREADS, memory)

    return grid


def of_many(format: str) -> Callable[[Shape], Grid]:
    """A block for each tile."""

    def grid(shape: Shape) -> Grid:
        wide = shape["head_dim"] > PLAIN["WIDE"]
        rows = PLAIN["MANY_ROWS_OF_WIDE" if wide else "MANY_ROWS"]
        _, height, slices = tiling(shape, rows)
        tiles = -(-shape["tokens"] // height) if shape["tokens"] > FEW else 0
        memory = shared(shape, format, rows, 32 if format == "F32" else 64)
        return Grid((tiles, shape["kv_heads"] * slices, 1), THREADS, memory)

    return grid


def launch(
    name: str, grid: Callable[..., Grid], config: Config, format: str = "", ending: str = ""
) -> Launch:
    return Launch(f"{name}.cu", f"{name}{ending}", SIGNATURE, grid, format, config=config)


def tensor_few(head_dim: int) -> Launch:
    def grid(shape: Shape, config: Config) -> Grid:
        _, height, slices = tiling(shape, TENSOR_ROWS)
        fits = shape["tokens"] <= FEW and shape["head_dim"] == head_dim
        tiles = -(-shape["tokens"] // height) if fits else 0
        memory = 2 * (CHUNK + TENSOR_ROWS) * stride(shape, "F16")
        of_heads = shape["kv_heads"] * slices
        blocks = by_turns(shape, of_heads * tiles, config["BLOCKS"])
        return Grid((blocks, of_heads, tiles), THREADS, memory)

    return launch("attention_tensor_few", grid, TENSOR_FEW, ending=f"_{head_dim}")


def tensor_many(head_dim: int) -> Launch:
    def grid(shape: Shape) -> Grid:
        rows = THREADS // 32 * TENSOR_ROWS
        _, height, slices = tiling(shape, rows)
        fits = shape["tokens"] > FEW and shape["head_dim"] == head_dim
        tiles = -(-shape["tokens"] // height) if fits else 0
        pieces = 2 * CHUNK * (head_dim + 16)
        memory = pieces + 2 * rows * stride(shape, "F16")
        return Grid((tiles, shape["kv_heads"] * slices, 1), THREADS, memory)

    return launch("attention_tensor_many", grid, PLAIN, ending=f"_{head_dim}")


def items(shape: Shape) -> Grid:
    return Grid((shape["tokens"] * shape["heads"], 1, 1), THREADS)


def merging(shape: Shape) -> Grid:
    return items(shape) if shape["tokens"] <= FEW else Grid((0, 1, 1), THREADS)


def generic(format: str) -> tuple[Launch, ...]:
    return (
        launch("attention_few", of_pieces(format), IN_PIECES, format),
        MERGE,
        launch("attention_many", of_many(format), PLAIN, format),
    )


def scalar(format: str) -> tuple[Launch, ...]:
    """For any head_dim."""
    source = "attention_scalar.cu", "attention_scalar"
    return (Launch(*source, PLAIN_SIGNATURE, items, format, config=PLAIN),)


def merge(name: str) -> Launch:
    return Launch("attention_merge.cu", name, MERGE_SIGNATURE, merging, config=PLAIN)


MERGE, MERGE_LARGE = merge("attention_merge"), merge("attention_merge_large")

tensor = (
    *(tensor_few(head_dim) for head_dim in TENSOR_HEADS),
    MERGE_LARGE,
    *(tensor_many(head_dim) for head_dim in TENSOR_HEADS),
)

TAKES = {n: whole_vectors if FORMATS[n].block == 1 else whole_blocks for n in FORMATS_OF_CACHE}
