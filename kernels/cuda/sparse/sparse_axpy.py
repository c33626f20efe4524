"""sparse_axpy on a GPU: rows of active neurons in the file's layout, `stride` bytes apart, summed
in an order that neither other neurons nor other tokens change.

Neurons are split among blocks, whose sums a second launch merges. For many tokens, which are blocks
enough, each block does all splits by itself, in the same order.
"""

from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.launch import Grid, Launch, items
from reference.formats import FORMATS
from reference.op import Shape

SIGNATURE = (
    "a: f32[tokens neurons], weight: u8[held stride], rows: i32[neurons], count: i32[1],"
    " slots: i32[neurons], scratch: f32[tokens hidden] -> out: f32[tokens hidden]"
)
MERGE = "scratch: f32[tokens hidden], rows: i32[neurons] -> out: f32[tokens hidden]"
CONFIG = Config((
    constant("WIDTH", 256, "columns of a block, and its threads"),
    constant("MOST_SPLITS", 32, "of the neurons"),
    constant("LEAST_NEURONS", 512, "of a split"),
))  # fmt: skip
WIDTH = CONFIG["WIDTH"]
MANY = 64  # tokens beyond which there are blocks enough
OWN = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K")  # formats with pieces of their own


def splits(shape: Shape) -> int:
    return max(1, min(CONFIG["MOST_SPLITS"], shape["neurons"] // CONFIG["LEAST_NEURONS"]))


def merged(shape: Shape) -> int:
    """Splits whose sums are merged; 0 if blocks do all of them."""
    found = splits(shape)
    return found if found > 1 and shape["tokens"] <= MANY else 0


def partials(shape: Shape) -> int:
    """Floats of scratch: a sum for each split."""
    return merged(shape) * shape["tokens"] * shape["hidden"]


def _grid(shape: Shape, chunks: int) -> Grid:
    return Grid((-(-shape["hidden"] // WIDTH), merged(shape) or 1, chunks), WIDTH)


def one(shape: Shape) -> Grid:
    """For a single token."""
    return _grid(shape, 1 if shape["tokens"] == 1 else 0)


def four(shape: Shape) -> Grid:
    """For four at a time, if there are several."""
    return _grid(shape, -(-shape["tokens"] // 4) if shape["tokens"] > 1 else 0)


def any_four(shape: Shape) -> Grid:
    """For four at a time, or a single one."""
    return _grid(shape, -(-shape["tokens"] // 4))


def each_output(shape: Shape) -> Grid:
    """A thread for each output, if there are sums to merge."""
    return items("tokens", "hidden")(shape) if merged(shape) else Grid((0, 1, 1), WIDTH)


def _launches(format: str) -> tuple[Launch, ...]:
    wanted = ((1, one), (4, four)) if format in OWN else ((4, any_four),)
    return (
        *(
            Launch("sparse_axpy.cu", f"sparse_axpy_{n}", SIGNATURE, grid, format, config=CONFIG)
            for n, grid in wanted
        ),
        Launch("sparse_axpy_merge.cu", "sparse_axpy_merge", MERGE, each_output, config=CONFIG),
    )


LAUNCHES = {name: _launches(name) for name in FORMATS}
