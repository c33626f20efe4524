"""greedy and log_sum_exp on a GPU: parts of the vocabulary, then what is found in them."""

from kernels.cuda.runtime.launch import Grid, Launch
from reference.op import Shape

PARTS = 32  # a warp's lanes
GREEDY_SCRATCH = f"scratch: u64[{PARTS}]"
SUM_SCRATCH = f"scratch: f64[{2 * PARTS}]"


def parts(shape: Shape) -> Grid:
    return Grid((PARTS, 1, 1), 256)


def warp(shape: Shape) -> Grid:
    return Grid((1, 1, 1), PARTS)


def greedy_scratch(shape: Shape) -> int:
    return 2 * PARTS


def sum_scratch(shape: Shape) -> int:
    return 4 * PARTS


greedy = (
    Launch("choice.cu", "greedy_parts", f"logits: f32[vocab] -> {GREEDY_SCRATCH}", parts),
    Launch("choice.cu", "greedy", f"{GREEDY_SCRATCH} -> token: i32[1]", warp),
)
log_sum_exp = (
    Launch("choice.cu", "log_sum_exp_parts", f"logits: f32[vocab] -> {SUM_SCRATCH}", parts),
    Launch("choice.cu", "log_sum_exp", f"{SUM_SCRATCH} -> out: f64[1]", warp),
)
