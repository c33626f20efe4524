"""attention_received on a GPU: first each token's totals over all cells, then a block for each
chunk of cells and KV head. Scores are computed twice, and none is stored."""

from collections.abc import Callable

from kernels.cuda.attention.attention import CHUNK, PLAIN, THREADS, chunks, shared, tiling
from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.shapes import in_place
from reference.attention.attention_received import OP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Shape

ROWS = 16
STRIPES = CHUNK - ROWS
WEIGHTS = Config((
    *PLAIN.constants,
    constant("ROWS", ROWS, "of a tile"),
    constant("STRIPES", STRIPES, "cells of a block: ROWS tokens in a row span at most CHUNK"),
))  # fmt: skip
SIGNATURE = in_place(OP.signature).replace("head_dim*kv_heads", "kv_heads head_dim")
GIVEN, RESULT = SIGNATURE.split(" -> ")
SOURCE, SCRATCH = "attention_received.cu", "scratch: f32[tokens heads 2]"


def staged(format: str) -> int:
    """Cells whose keys a block holds at a time."""
    return 32 if format == "F32" else 64


def totals(shape: Shape) -> int:
    """Floats of scratch: for each token and head the highest score and the sum of weights."""
    return 2 * shape["tokens"] * shape["heads"]


def tiles(format: str) -> Callable[[Shape], Grid]:
    """A block for each tile of rows."""

    def grid(shape: Shape) -> Grid:
        _, height, slices = tiling(shape, ROWS)
        blocks = -(-shape["tokens"] // height), shape["kv_heads"] * slices, 1
        return Grid(blocks, THREADS, shared(shape, format, ROWS, staged(format)))

    return grid


def cells(format: str) -> Callable[[Shape], Grid]:
    """A block for each chunk of a KV head's cells."""

    def grid(shape: Shape) -> Grid:
        blocks = chunks(shape) if shape["tokens"] else 0, shape["kv_heads"], 1
        return Grid(blocks, THREADS, shared(shape, format, ROWS, staged(format)))

    return grid


LAUNCHES = {
    f: (
        Launch(SOURCE, "received_totals", f"{GIVEN} -> {SCRATCH}", tiles(f), f, config=WEIGHTS),
        Launch(SOURCE, OP.name, f"{GIVEN}, {SCRATCH} -> {RESULT}", cells(f), f, config=WEIGHTS),
    )
    for f in FORMATS_OF_CACHE
}
