"""Masks of active neurons on a GPU, and their compaction into a list of rows."""

from kernels.cuda.launch import Grid, Launch, items
from reference.neuron_masks import OPS
from reference.op import Shape


def one_block(shape: Shape) -> Grid:
    """Of as many threads as there can be: 16 neurons for each are all of most models'."""
    return Grid((1, 1, 1), 1024)


ELEMENTS, NEURONS = items("tokens", "neurons"), items("neurons")
GRIDS = {
    "threshold_mask": ELEMENTS,
    "union_mask": NEURONS,
    "neuron_split": ELEMENTS,
    "active_rows": one_block,
    "add_counts": NEURONS,
    "where_active": ELEMENTS,
}
LAUNCHES = {op.name: Launch("neuron_masks.cu", op.name, op.signature, GRIDS[op.name]) for op in OPS}
