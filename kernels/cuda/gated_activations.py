"""Gated activations on a GPU."""

from kernels.cuda.launch import Launch, items
from reference.gated_activations import OPS

LAUNCHES = {
    op.name: Launch("gated_activations.cu", op.name, op.signature, items("tokens", "width", each=4))
    for op in OPS
}
