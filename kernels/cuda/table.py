"""Every CUDA kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cuda import attention, rms_norm
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.launch import Launch
from reference.kv_write import FORMATS_OF_CACHE

CUDA_KERNELS: tuple[CudaKernel, ...] = (
    CudaKernel("rms_norm", "generic", (rms_norm.generic,)),
    *(
        CudaKernel(
            "attention",
            "generic",
            attention.generic(f),
            f,
            takes=attention.TAKES[f],
            scratch=attention.partials,
        )
        for f in FORMATS_OF_CACHE
    ),
    *(CudaKernel("attention", "scalar", attention.scalar(f), f) for f in FORMATS_OF_CACHE),
)


def quantise_activations() -> tuple[Launch, ...]:
    """What has to run before kernels on rounded activations."""
    return next(k.launches for k in CUDA_KERNELS if k.op == "quantise_activations")
