"""The scans of state space models on a GPU, states updated where they are."""

from kernels.cuda.launch import Launch, items
from reference.op import Shape

SCAN = (
    "x: f32[tokens inner], dt: f32[tokens inner], a: f32[state inner], b: f32[tokens state],"
    " c: f32[tokens state], d: f32[inner], sources: i32[tokens], targets: i32[tokens],"
    " scratch: f32[state inner] -> out: f32[tokens inner], states: f32[slots state inner]"
)
HEADS = (
    "x: f32[tokens heads head_dim], dt: f32[tokens heads], a: f32[heads],"
    " b: f32[tokens groups state], c: f32[tokens groups state], d: f32[heads],"
    " sources: i32[tokens], targets: i32[tokens], scratch: f32[heads state head_dim]"
    " -> out: f32[tokens heads head_dim], states: f32[slots heads state head_dim]"
)


def of_channels(shape: Shape) -> int:
    """A state for each channel."""
    return shape["state"] * shape["inner"]


def of_heads(shape: Shape) -> int:
    """A state for each channel of a head."""
    return shape["heads"] * shape["state"] * shape["head_dim"]


channels = Launch("ssm_scan.cu", "ssm_scan", SCAN, items("inner", threads=64))
heads = Launch("ssm_scan.cu", "ssm_scan_heads", HEADS, items("heads", "head_dim", threads=64))
