"""gated_delta_net on a GPU, states updated where they are."""

from kernels.cuda.launch import Launch, items
from reference.op import Shape

SIGNATURE = (
    "q: f32[tokens groups state], k: f32[tokens groups state], v: f32[tokens heads head_dim],"
    " g: f32[tokens heads], beta: f32[tokens heads], group_of: i32[heads], sources: i32[tokens],"
    " targets: i32[tokens], scratch: f32[heads state head_dim]"
    " -> out: f32[tokens heads head_dim], states: f32[slots heads state head_dim]"
)


def scratch(shape: Shape) -> int:
    """A state of each head."""
    return shape["heads"] * shape["state"] * shape["head_dim"]


generic = Launch(
    "gated_delta_net.cu", "gated_delta_net", SIGNATURE, items("heads", "head_dim", threads=64)
)
