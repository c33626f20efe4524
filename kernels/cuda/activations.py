"""silu, gelu, gelu_erf, relu and squared_relu on a GPU."""

from kernels.cuda.launch import Launch, items
from reference.activations import OPS

LAUNCHES = {
    op.name: Launch("activations.cu", op.name, op.signature, items("tokens", "width", each=4))
    for op in OPS
}
