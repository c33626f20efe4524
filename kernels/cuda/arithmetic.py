"""add, add_bias and scale on a GPU."""

from kernels.cuda.launch import Launch, across, items
from reference.arithmetic import OPS

ADD, ADD_BIAS, SCALE = (op.signature for op in OPS)
FLAT = items("tokens", "width", each=4)

add = Launch("arithmetic.cu", "add", ADD, FLAT)
add_bias = Launch("arithmetic.cu", "add_bias", ADD_BIAS, across("tokens", "width"))
scale = Launch("arithmetic.cu", "scale", SCALE, FLAT)
