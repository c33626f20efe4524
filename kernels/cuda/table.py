"""Every CUDA kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cuda import embedding, rms_norm
from kernels.cuda import quantise_activations as rounding
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.launch import Launch

CUDA_KERNELS: tuple[CudaKernel, ...] = (
    *(CudaKernel("embedding", "generic", (x,), f) for f, x in embedding.LAUNCHES.items()),
    CudaKernel("rms_norm", "generic", (rms_norm.generic,)),
    CudaKernel("quantise_activations", "generic", (rounding.generic,)),
)


def quantise_activations() -> tuple[Launch, ...]:
    """What has to run before kernels on rounded activations."""
    return next(k.launches for k in CUDA_KERNELS if k.op == "quantise_activations")
