"""sparse_linear on a GPU: the rows of active neurons in the file's layout, `stride` bytes apart,
each read once for up to eight tokens. A token's result does not depend on the others."""

from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.launch import WARP, Grid, Launch
from reference.op import Shape

REST = (
    " weight: u8[held stride], mask: u8[tokens neurons], rows: i32[neurons], count: i32[1],"
    " slots: i32[neurons] -> out: f32[tokens neurons]"
)
FLOAT = "x: f32[tokens hidden]," + REST
INT8 = "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32]," + REST
CONFIG = Config((
    constant("WARPS", 8, "of a block"),
    constant("ROWS", 2, "of a warp: one load of x serves both"),
))  # fmt: skip


def one(shape: Shape) -> Grid:
    """For a single token."""
    return _grid(shape, 1 if shape["tokens"] == 1 else 0)


def eight(shape: Shape) -> Grid:
    """For eight at a time, if there are several."""
    return _grid(shape, -(-shape["tokens"] // 8) if shape["tokens"] > 1 else 0)


def _grid(shape: Shape, times: int) -> Grid:
    """Only the GPU knows how many neurons are active: blocks for all."""
    warps, rows = CONFIG["WARPS"], CONFIG["ROWS"]
    return Grid((-(-shape["neurons"] // (warps * rows)), times, 1), WARP * warps)


def _launches(source: str, signature: str, format: str) -> tuple[Launch, ...]:
    return tuple(
        Launch(source, f"sparse_linear_{tokens}", signature, grid, format, config=CONFIG)
        for tokens, grid in ((1, one), (8, eight))
    )


FLOATS = {f: _launches("sparse_linear_float.cu", FLOAT, f) for f in ("F32", "F16", "BF16")}
BLOCKS = {f: _launches("sparse_linear_blocks.cu", INT8, f) for f in ("Q8_0", "Q4_0", "Q4_K")}
