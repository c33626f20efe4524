"""embedding on a GPU."""

from kernels.cuda.launch import Launch, across
from reference.embedding import OP
from reference.formats import FORMATS

LAUNCHES = {
    name: Launch("embedding.cu", "embedding", OP.signature, across("tokens", "hidden"), name)
    for name in FORMATS
}
