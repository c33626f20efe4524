"""Masks of active neurons on a GPU, and their compaction into a list of rows."""

from kernels.cuda.launch import Grid, Launch
from reference.neuron_masks import OPS
from reference.op import Shape

THREADS = 256
LISTING = 1024  # threads of the one block that lists rows


def elements(shape: Shape) -> Grid:
    """A thread for each element."""
    return Grid((-(-shape["tokens"] * shape["neurons"] // THREADS), 1, 1), THREADS)


def neurons(shape: Shape) -> Grid:
    """A thread for each neuron."""
    return Grid((-(-shape["neurons"] // THREADS), 1, 1), THREADS)


def one_block(shape: Shape) -> Grid:
    return Grid((1, 1, 1), LISTING)


GRIDS = {
    "threshold_mask": elements,
    "union_mask": neurons,
    "neuron_split": elements,
    "active_rows": one_block,
    "add_counts": neurons,
    "where_active": elements,
}
LAUNCHES = {op.name: Launch("neuron_masks.cu", op.name, op.signature, GRIDS[op.name]) for op in OPS}
