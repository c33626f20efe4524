"""Softmax: a block of threads for each token."""

from kernels.cuda.launch import Launch, rows
from reference.softmax import OP

generic = Launch("softmax.cu", "softmax", OP.signature, rows("tokens", 256))
