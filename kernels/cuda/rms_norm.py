"""RMS normalisation: a block of threads for each token, a thread for each four elements at most."""

from kernels.cuda.launch import Grid, Launch
from reference.op import Shape
from reference.rms_norm import OP

MOST_THREADS, WARP = 1024, 32


def tokens(shape: Shape) -> Grid:
    """As many threads as there are fours, in whole warps."""
    fours = -(-shape["hidden"] // 4)
    threads = min(MOST_THREADS, max(1, -(-fours // WARP)) * WARP)
    return Grid((shape["tokens"], 1, 1), threads)


generic = Launch("rms_norm.cu", "rms_norm", OP.signature, tokens)
