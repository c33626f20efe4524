"""Every CUDA kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cuda import linear, rms_norm
from kernels.cuda import quantise_activations as rounding
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.launch import Launch

CUDA_KERNELS: tuple[CudaKernel, ...] = (
    CudaKernel("rms_norm", "generic", (rms_norm.generic,)),
    CudaKernel("quantise_activations", "generic", (rounding.generic,)),
    *(CudaKernel("linear", "generic", launches, f) for f, launches in linear.floats.items()),
    *(
        CudaKernel("linear", "generic", launches, f, pack=linear.PACKS[f], activations="int8")
        for f, launches in linear.blocks.items()
    ),
)


def quantise_activations() -> tuple[Launch, ...]:
    """What has to run before kernels on rounded activations."""
    return next(k.launches for k in CUDA_KERNELS if k.op == "quantise_activations")
