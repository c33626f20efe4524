"""dequantise on a GPU."""

from kernels.cuda.launch import Launch, across
from reference.formats import FORMATS
from reference.table import OPS

DEQUANTISE = {
    name: Launch(
        "weight_formats.cu",
        "dequantise",
        OPS["dequantise"].signature,
        across("rows", "hidden"),
        name,
    )
    for name in FORMATS
}
