"""accept, recover, exclude and pick on a GPU: rows of float64, a block of threads for each."""

from kernels.cuda.launch import Launch, items, rows
from reference.verification import OPS

EACH_ROW = rows("nodes", 256)
GRIDS = {"accept": items("nodes"), "recover": EACH_ROW, "exclude": EACH_ROW, "pick": EACH_ROW}
LAUNCHES = {op.name: Launch("verification.cu", op.name, op.signature, GRIDS[op.name]) for op in OPS}
