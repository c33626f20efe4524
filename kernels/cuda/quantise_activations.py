"""quantise_activations on a GPU: a thread for each four activations."""

from kernels.cuda.launch import Launch, items
from reference.quantise_activations import OP

generic = Launch(
    "quantise_activations.cu",
    "quantise_activations",
    OP.signature,
    items("tokens", "hidden", each=4),
)
