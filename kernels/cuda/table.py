"""Every CUDA kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cuda import (
    activations,
    add_squares,
    arithmetic,
    attention,
    causal_conv1d,
    choice,
    embedding,
    gated_activations,
    gated_delta_net,
    kv_write,
    layer_norm,
    linear,
    neuron_masks,
    rms_norm,
    rope,
    softmax,
    sparse_axpy,
    sparse_linear,
    ssm_scan,
    top_k,
    verification,
    weight_formats,
)
from kernels.cuda import quantise_activations as rounding
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.product import Stage
from reference.kv_write import FORMATS_OF_CACHE

ONTO = (("out", "before"),)  # what was there before
STATES = (("states", "before"),)

CUDA_KERNELS: tuple[CudaKernel, ...] = (
    *(CudaKernel("embedding", "generic", (x,), f) for f, x in embedding.LAUNCHES.items()),
    CudaKernel("rms_norm", "generic", (rms_norm.generic,)),
    CudaKernel("layer_norm", "generic", (layer_norm.generic,)),
    CudaKernel("quantise_activations", "generic", (rounding.generic,)),
    *(
        CudaKernel(
            "linear",
            "bf16",
            linear.BF16_STAGES,
            f,
            pack=pack,
            activations="bf16",
            numerics="fast",
            scratch=linear.rounded,
            capability=80,
        )
        for f, pack in linear.BF16_PACKS.items()
    ),
    *(CudaKernel("linear", "generic", x, f) for f, x in linear.FLOAT_LAUNCHES.items()),
    *(
        CudaKernel("linear", "generic", x, f, pack=linear.PACKS[f], activations="int8")
        for f, x in linear.BLOCK_LAUNCHES.items()
    ),
    CudaKernel("rotation", "generic", (rope.rotation,)),
    CudaKernel("rope_norm", "generic", (rope.rope_norm,)),
    CudaKernel("rope_neox", "generic", (rope.rope_neox,)),
    *(
        CudaKernel("kv_write", "generic", (x,), f, in_place=ONTO)
        for f, x in kv_write.LAUNCHES.items()
    ),
    CudaKernel(
        "attention",
        "tensor",
        attention.tensor,
        "F16",
        takes=attention.for_tensor_cores,
        activations="f16x2",
        numerics="fast",
        scratch=attention.partials,
        capability=80,
    ),
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
    CudaKernel("softmax", "generic", (softmax.generic,)),
    *(CudaKernel(op, "generic", (x,)) for op, x in activations.LAUNCHES.items()),
    *(CudaKernel(op, "generic", (x,)) for op, x in gated_activations.LAUNCHES.items()),
    CudaKernel("add", "generic", (arithmetic.add,)),
    CudaKernel("add_bias", "generic", (arithmetic.add_bias,)),
    CudaKernel("mul", "generic", (arithmetic.mul,)),
    CudaKernel("mul_columns", "generic", (arithmetic.mul_columns,)),
    CudaKernel("scale", "generic", (arithmetic.scale,)),
    CudaKernel("softcap", "generic", (arithmetic.softcap,)),
    *(CudaKernel(op, "generic", (x,)) for op, x in neuron_masks.LAUNCHES.items()),
    *(CudaKernel("sparse_linear", "generic", x, f) for f, x in sparse_linear.FLOATS.items()),
    *(
        CudaKernel("sparse_linear", "generic", x, f, activations="int8")
        for f, x in sparse_linear.BLOCKS.items()
    ),
    *(
        CudaKernel("sparse_axpy", "generic", x, f, scratch=sparse_axpy.partials)
        for f, x in sparse_axpy.LAUNCHES.items()
    ),
    CudaKernel("causal_conv1d", "generic", (causal_conv1d.generic,), in_place=STATES),
    CudaKernel(
        "ssm_scan",
        "generic",
        (ssm_scan.channels,),
        in_place=STATES,
        scratch=ssm_scan.of_channels,
    ),
    CudaKernel(
        "ssm_scan_heads",
        "generic",
        (ssm_scan.heads,),
        in_place=STATES,
        scratch=ssm_scan.of_heads,
    ),
    CudaKernel(
        "gated_delta_net",
        "generic",
        (gated_delta_net.generic,),
        in_place=STATES,
        scratch=gated_delta_net.scratch,
    ),
    CudaKernel("add_squares", "generic", (add_squares.generic,)),
    CudaKernel("top_k", "generic", (top_k.generic,)),
    CudaKernel("log_sum_exp", "generic", choice.log_sum_exp, scratch=choice.sum_scratch),
    CudaKernel("greedy", "generic", choice.greedy, scratch=choice.greedy_scratch),
    *(CudaKernel("dequantise", "generic", (x,), f) for f, x in weight_formats.DEQUANTISE.items()),
    *(CudaKernel(op, "generic", (x,)) for op, x in verification.LAUNCHES.items()),
)


def quantise_activations() -> tuple[Stage, ...]:
    """What has to run before kernels on rounded activations."""
    return next(k.stages for k in CUDA_KERNELS if k.op == "quantise_activations")
