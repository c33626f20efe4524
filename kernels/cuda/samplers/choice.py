"""argmax on a GPU: parts of the vocabulary, then the best of their results."""

from kernels.cuda.runtime.launch import THREADS, WARP, Grid, Launch, rows
from reference.op import Shape

PARTS = WARP  # a lane for each
FOUND = f"scratch: u64[rows*{2 * PARTS}]"


def parts(shape: Shape) -> Grid:
    return Grid((PARTS, shape["rows"], 1), THREADS)


def scratch(shape: Shape) -> int:
    """The result of each part of each row."""
    return 4 * PARTS * shape["rows"]


ARGMAX = (
    Launch("choice.cu", "argmax_parts", f"logits: f32[rows vocab] -> {FOUND}", parts),
    Launch(
        "choice.cu",
        "argmax",
        f"{FOUND} -> token: i32[rows], logprob: f64[rows]",
        rows("rows", WARP),
    ),
)
