"""Kernels of one launch each: the functions of a source, and their grids."""

from collections.abc import Callable, Iterable, Mapping

from kernels.cuda.runtime.launch import (
    THREADS,
    Grid,
    Launch,
    across,
    fours,
    halves_of_heads,
    items,
    one_block,
    rows,
)
from kernels.shapes import in_place
from reference import activations, gated_activations
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Op, Shape
from reference.table import OPS

FLAT, COLUMNS = items("tokens", "width", each=4), across("tokens", "width")
ELEMENTS, NEURONS = items("tokens", "neurons"), items("neurons")
NODES = rows("nodes", 256)


def alike(ops: Iterable[Op], grid: Callable[[Shape], Grid]) -> dict[str, Callable[[Shape], Grid]]:
    return dict.fromkeys((op.name for op in ops), grid)


def ranked(shape: Shape) -> Grid:
    """A block for each token, with two numbers of every expert in shared memory; of one expert a
    vector load still reads 16 bytes."""
    return Grid((shape["tokens"], 1, 1), THREADS, max(16, 8 * shape["experts"]))


def of_heads(width: str) -> Callable[[Shape], Grid]:
    """A thread for each element of an array [tokens, heads, width]."""

    def grid(shape: Shape) -> Grid:
        rows = shape["tokens"] * shape["heads"]
        return Grid((rows, -(-shape[width] // THREADS), 1), THREADS)

    return grid


GRIDS: Mapping[str, Mapping[str, Callable[[Shape], Grid]]] = {
    "rms_norm.cu": {"rms_norm": fours},
    "layer_norm.cu": {"layer_norm": rows("tokens", 256)},
    "softmax.cu": {"softmax": rows("tokens", 256)},
    "quantise_activations.cu": {
        "quantise_activations": items("tokens", "hidden", each=4),
        "quantise_activations_256": items("tokens", "hidden", each=8),
    },
    "rope.cu": {
        "rotation": across("tokens", "pairs"),
        "rope_norm": halves_of_heads,
        "rope_neox": halves_of_heads,
    },
    "activations.cu": alike(activations.OPS, FLAT),
    "gated_activations.cu": alike(gated_activations.OPS, FLAT),
    "arithmetic.cu": {
        "add": FLAT,
        "add_bias": COLUMNS,
        "mul": FLAT,
        "mul_columns": COLUMNS,
        "scale": FLAT,
        "softcap": FLAT,
    },
    "experts.cu": {
        "choose_experts": ranked,
        "gather_scores": across("tokens", "used"),
        "normalise_weights": items("tokens"),
        "sum_experts": across("tokens", "hidden"),
        "sigmoid_gate": COLUMNS,
    },
    "heads.cu": {"merge_heads": of_heads("whole")},
    "neuron_masks.cu": {
        "threshold_mask": ELEMENTS,
        "union_mask": NEURONS,
        "neuron_split": ELEMENTS,
        "active_rows": one_block,  # of 16 neurons for each thread: enough for most models
        "add_counts": NEURONS,
        "where_active": ELEMENTS,
    },
    "add_squares.cu": {"add_squares": items("hidden")},
    "top_k.cu": {"top_k": one_block},
    "verification.cu": {
        "accept": items("nodes"),
        "recover": NODES,
        "exclude": NODES,
        "pick": NODES,
    },
}
LAUNCHES = {
    op: Launch(source, op, OPS[op].signature, grid)
    for source, grids in GRIDS.items()
    for op, grid in grids.items()
}


SORT = (
    Launch(
        "experts.cu",
        "sort_pairs",
        "chosen: i32[tokens used] -> rows: i32[tokens*used], expert: i32[tokens*used],"
        " places: i32[tokens used], ends: i32[experts]",
        rows("experts", THREADS),
    ),
    Launch(
        "experts.cu",
        "needed_experts",
        "ends: i32[experts] -> needed: i32[experts], count: i32[1]",
        one_block,
    ),
)
APART = (
    Launch(
        "heads.cu",
        "split_heads",
        "x: f32[tokens heads width], size: i64 -> out: f32[tokens*heads size]",
        of_heads("size"),
    ),
    Launch(
        "heads.cu",
        "ends_of_heads",
        "x: f32[tokens heads width] -> ends: i32[heads]",
        items("heads"),
    ),
)


def of_formats(
    op: str, source: str, grid: Callable[[Shape], Grid], formats: Iterable[str] = FORMATS
) -> dict[str, Launch]:
    """A launch for each format; the op updates its input in place."""
    signature = in_place(OPS[op].signature)
    return {name: Launch(source, op, signature, grid, name) for name in formats}


EMBEDDING = of_formats("embedding", "embedding.cu", across("tokens", "hidden"))
DEQUANTISE = of_formats("dequantise", "weight_formats.cu", across("rows", "hidden"))
KV_WRITE = of_formats("kv_write", "kv_write.cu", COLUMNS, FORMATS_OF_CACHE)
