"""silu, gelu, gelu_erf, relu, squared_relu, softplus and sigmoid on a GPU."""

from kernels.cuda.launch import Launch, items
from reference.activations import OPS

LAUNCHES = {
    op.name: Launch("activations.cu", op.name, op.signature, items("tokens", "width", each=4))
    for op in OPS
}
