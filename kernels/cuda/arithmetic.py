"""add, add_bias, mul, mul_columns, scale and softcap on a GPU."""

from kernels.cuda.launch import Launch, across, items
from reference.arithmetic import OPS

ADD, ADD_BIAS, MUL, MUL_COLUMNS, SCALE, SOFTCAP = (op.signature for op in OPS)
FLAT = items("tokens", "width", each=4)

add = Launch("arithmetic.cu", "add", ADD, FLAT)
add_bias = Launch("arithmetic.cu", "add_bias", ADD_BIAS, across("tokens", "width"))
mul = Launch("arithmetic.cu", "mul", MUL, FLAT)
mul_columns = Launch("arithmetic.cu", "mul_columns", MUL_COLUMNS, across("tokens", "width"))
scale = Launch("arithmetic.cu", "scale", SCALE, FLAT)
softcap = Launch("arithmetic.cu", "softcap", SOFTCAP, FLAT)
