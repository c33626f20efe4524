"""rotation, rope_norm and rope_neox on a GPU."""

from kernels.cuda.launch import Grid, Launch, across
from reference.op import Shape
from reference.rope import OPS

THREADS = 256
ROTATION, NORM, NEOX = (op.signature for op in OPS)


def halves_of_heads(shape: Shape) -> Grid:
    """A thread for each two elements of a token's heads."""
    halves = shape["heads"] * -(-shape["head_dim"] // 2)
    return Grid((shape["tokens"], -(-halves // THREADS), 1), THREADS)


rotation = Launch("rope.cu", "rotation", ROTATION, across("tokens", "pairs"))
rope_norm = Launch("rope.cu", "rope_norm", NORM, halves_of_heads)
rope_neox = Launch("rope.cu", "rope_neox", NEOX, halves_of_heads)
