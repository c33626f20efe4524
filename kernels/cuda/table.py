"""Every CUDA kernel, one row each; an op's variants are in order of preference."""

from collections.abc import Callable

from kernels.cuda import single
from kernels.cuda.attention import attention, attention_received, pages, prompts
from kernels.cuda.cache import cells, packed
from kernels.cuda.linear import linear
from kernels.cuda.recurrent import recurrent
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Launch
from kernels.cuda.runtime.product import Stage
from kernels.cuda.samplers import choice
from kernels.cuda.sparse import sparse_axpy, sparse_linear
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Shape
from reference.quantise_activations import QUANTISING, rounding_for

ONTO = (("out", "before"),)  # what was there before
STATES = (("states", "before"),)


def _scan(op: str, launch: Launch, scratch: Callable[[Shape], int]) -> CudaKernel:
    return CudaKernel(op, "generic", (launch,), in_place=STATES, scratch=scratch)


CUDA_KERNELS: tuple[CudaKernel, ...] = (
    *(CudaKernel(op, "generic", (x,)) for op, x in single.LAUNCHES.items()),
    *(CudaKernel("embedding", "generic", (x,), f) for f, x in single.EMBEDDING.items()),
    *(CudaKernel("dequantise", "generic", (x,), f) for f, x in single.DEQUANTISE.items()),
    *(
        CudaKernel("kv_write", "generic", (x,), f, in_place=ONTO)
        for f, x in single.KV_WRITE.items()
    ),
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
    *(
        CudaKernel(
            "linear",
            "tensor",
            x,
            f,
            takes=linear.whole_runs,
            activations=linear.IN_PARTS[f],
            scratch=linear.in_parts(f),
            capability=80,
        )
        for f, x in linear.TENSOR_LAUNCHES.items()
    ),
    *(CudaKernel("linear", "generic", x, f) for f, x in linear.FLOAT_LAUNCHES.items()),
    *(
        CudaKernel(
            "linear",
            "generic",
            x,
            f,
            pack=linear.PACKS[f],
            activations=rounding_for(f),
        )
        for f, x in linear.BLOCK_LAUNCHES.items()
    ),
    *(
        CudaKernel(
            "linear_experts",
            "generic",
            (x,),
            f,
            activations=rounding_for(f),
            pack=linear.PACKS[f],
        )
        if f in linear.PACKS
        else CudaKernel("linear_experts", "generic", (x,), f)
        for f, x in linear.EXPERT_LAUNCHES.items()
    ),
    CudaKernel("sort_by_expert", "generic", single.SORT),
    CudaKernel("split_heads", "generic", single.APART),
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
    CudaKernel(
        "attention_kivi",
        "generic",
        pages.KIVI,
        "F16",
        takes=attention.whole_blocks,
        scratch=pages.partials_of_kivi,
    ),
    CudaKernel(
        "attention_minicache",
        "generic",
        pages.MINICACHE,
        "F16",
        takes=attention.whole_vectors,
        scratch=pages.partials_of_minicache,
    ),
    *(
        CudaKernel(
            "attention_received",
            "generic",
            x,
            f,
            takes=attention.TAKES[f],
            in_place=ONTO,
            scratch=attention_received.totals,
        )
        for f, x in attention_received.LAUNCHES.items()
    ),
    *(
        CudaKernel("pattern_attention", "generic", (x,), f, in_place=ONTO)
        for f, x in prompts.ATTENTION.items()
    ),
    *(
        CudaKernel("stripe_sums", "generic", x, f, in_place=ONTO, scratch=attention_received.totals)
        for f, x in prompts.STRIPE_SUMS.items()
    ),
    *(
        CudaKernel("block_scores", "generic", x, f, in_place=ONTO, scratch=prompts.means)
        for f, x in prompts.BLOCK_SCORES.items()
    ),
    CudaKernel(
        "prompt_pattern", "generic", prompts.PROMPT_PATTERN, in_place=ONTO, scratch=prompts.chosen
    ),
    *(CudaKernel("knorm", "generic", (x,), f) for f, x in cells.KNORM.items()),
    *(
        CudaKernel("keydiff", "generic", x, f, scratch=cells.directions)
        for f, x in cells.KEYDIFF.items()
    ),
    CudaKernel("pool_scores", "generic", (cells.POOL,)),
    CudaKernel("keep_top", "generic", (cells.KEEP_TOP,)),
    *(CudaKernel("kv_keep", "generic", (x,), f, in_place=ONTO) for f, x in cells.KEEP.items()),
    *(
        CudaKernel("page_extremes", "generic", (x,), f, in_place=ONTO)
        for f, x in cells.EXTREMES_OF.items()
    ),
    *(
        CudaKernel("page_scores", "generic", (x,), f, in_place=ONTO)
        for f, x in cells.SCORES_OF.items()
    ),
    CudaKernel("choose_pages", "generic", (cells.CHOOSE,), in_place=ONTO),
    *(
        CudaKernel(op, "generic", (x,), "F16", in_place=ONTO, takes=takes)
        for op, (x, takes) in packed.LAUNCHES.items()
    ),
    *(CudaKernel("sparse_linear", "generic", x, f) for f, x in sparse_linear.FLOATS.items()),
    *(
        CudaKernel("sparse_linear", "generic", x, f, activations=rounding_for(f))
        for f, x in sparse_linear.BLOCKS.items()
    ),
    *(
        CudaKernel("sparse_axpy", "generic", x, f, scratch=sparse_axpy.partials)
        for f, x in sparse_axpy.LAUNCHES.items()
    ),
    CudaKernel("causal_conv1d", "generic", (recurrent.convolution,), in_place=STATES),
    _scan("ssm_scan", recurrent.channels, recurrent.of_channels),
    _scan("ssm_scan_heads", recurrent.heads, recurrent.of_heads),
    _scan("gated_delta_net", recurrent.delta, recurrent.of_heads),
    CudaKernel("argmax", "generic", choice.ARGMAX, scratch=choice.scratch),
)


def quantising(activations: str) -> tuple[Stage, ...]:
    """The kernel that rounds activations before kernels whose row requires it."""
    if activations not in QUANTISING:
        return ()
    return next(k.stages for k in CUDA_KERNELS if k.op == QUANTISING[activations])
