"""Every CUDA kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cuda import neuron_masks, rms_norm, sparse_linear
from kernels.cuda import quantise_activations as rounding
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.launch import Launch

CUDA_KERNELS: tuple[CudaKernel, ...] = (
    CudaKernel("rms_norm", "generic", (rms_norm.generic,)),
    CudaKernel("quantise_activations", "generic", (rounding.generic,)),
    *(CudaKernel(op, "generic", (launch,)) for op, launch in neuron_masks.LAUNCHES.items()),
    *(CudaKernel("sparse_linear", "generic", x, f) for f, x in sparse_linear.FLOATS.items()),
    *(
        CudaKernel("sparse_linear", "generic", x, f, activations="int8")
        for f, x in sparse_linear.BLOCKS.items()
    ),
)


def quantise_activations() -> tuple[Launch, ...]:
    """What has to run before kernels on rounded activations."""
    return next(k.launches for k in CUDA_KERNELS if k.op == "quantise_activations")
