"""Every kernel for CPUs, one row each, and with those for GPUs (cuda/table.py) every one there is;
variants of an op stand in order of preference."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from kernels.cpu import (
    activations,
    add_squares,
    arithmetic,
    embedding,
    experts,
    gated_activations,
    heads,
    layer_norm,
    log_probabilities,
    quantise_activations,
    rms_norm,
    rope,
    softmax,
    verification,
    weight_formats,
)
from kernels.cpu.attention import (
    attention,
    attention_amx,
    attention_bf16,
    attention_kivi,
    attention_minicache,
    attention_received,
    attention_scalar,
    pattern_attention,
    prompt_patterns,
)
from kernels.cpu.cache import cell_scores, keep_cells, kivi, kv_write, minicache, pages
from kernels.cpu.formats.layouts import LAYOUTS
from kernels.cpu.formats.packing import (
    BF16_PACKINGS,
    BYTES,
    FOURS,
    LUT_AVX2_PACKINGS,
    LUT_AVX512_PACKINGS,
    PACKINGS,
    ROWS,
    SPREAD_PACKINGS,
    Packing,
)
from kernels.cpu.formats.rows import ALONG
from kernels.cpu.linear import (
    linear_amx,
    linear_amx_bf16,
    linear_avx2,
    linear_bf16,
    linear_experts,
    linear_float,
    linear_int8,
    linear_lut,
    linear_neon,
    linear_neon_bf16,
    linear_scalar,
)
from kernels.cpu.linear.linear import KNOBS, STREAM
from kernels.cpu.recurrent import causal_conv1d, gated_delta_net, ssm_scan
from kernels.cpu.runtime.share import Share
from kernels.cpu.samplers import choice, cut, edits, prefix
from kernels.cpu.schemes import float8, integers, linear_float8, linear_w8a8
from kernels.cpu.sparse import neuron_masks, sparse_axpy, sparse_linear
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.kernel import PROMPT, Kernel
from kernels.knob import Knob
from kernels.packages import Rows, kernels_beside
from reference.op import Shape
from reference.packages import Package
from reference.quantise_activations import QUANTISING, rounding_for
from reference.table import package_ops as ops_of_packages

AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl"})
VNNI = AVX512 | {"avx512vnni"}
VBMI = VNNI | {"avx512vbmi"}
BF16 = AVX512 | {"avx512bf16"}
DOTPROD = frozenset({"neon", "dotprod"})
I8MM = DOTPROD | {"i8mm"}
NEON_BF16 = frozenset({"neon", "bf16"})
AMX_INT8 = VNNI | {"amx-tile", "amx-int8"}
AMX_BF16 = BF16 | {"amx-tile", "amx-bf16"}
IN_FLOATS, IN_INT8 = linear_experts.FLOATS, linear_experts.CODES
ONTO = (("out", "before"),)  # what was there before
STATES = (("states", "before"),)
FITTING: dict[str, Any] = {"takes": sparse_linear.fits}
PROMPTS_IN_BF16: dict[str, Any] = {
    "activations": "bf16",
    "numerics": "fast",
    "fewest": PROMPT,
}
PAIRING = linear_int8.AVX512_VNNI_KNOBS
W8A8: dict[str, Any] = {
    "takes": linear_w8a8.whole_blocks,
    "pack": FOURS,
    "scratch": linear_w8a8.unfinished,
    "knobs": STREAM,
}


Packings = Mapping[str, Packing]
Knobs = tuple[Knob, ...] | Mapping[str, tuple[Knob, ...]]  # of all formats, or of each


def knobs_for(format: str | None, knobs: Knobs) -> tuple[Knob, ...]:
    return knobs if isinstance(knobs, tuple) else knobs[format or ""]


def of_formats(op: str, variant: str, shares: Mapping[str, Share], **rest: Any) -> list[Kernel]:
    """A variant of an op, in each of its formats."""
    return [Kernel(op, variant, s, f, **rest) for f, s in shares.items()]


def linear(
    variant: str, shares: dict[str, Share], packings: Packings = PACKINGS, **rest: Any
) -> list[Kernel]:
    """A variant of linear on packed weights, in each of its formats."""
    return [Kernel("linear", variant, s, f, pack=packings[f], **rest) for f, s in shares.items()]


def in_int8(
    variant: str,
    shares: dict[str, Share],
    packings: Packings = PACKINGS,
    knobs: Knobs = KNOBS,
    **rest: Any,
) -> list[Kernel]:
    """A variant of linear that meets quantised activations, in each of its formats."""
    made = quantising(linear(variant, shares, packings, **rest))
    return [replace(k, knobs=knobs_for(k.format, knobs)) for k in made]


def quantising(kernels: Iterable[Kernel]) -> list[Kernel]:
    """These, which meet activations quantised as their formats want them."""
    return [replace(k, activations=rounding_for(k.format or "")) for k in kernels]


def in_bf16(variant: str, shares: dict[str, Share], **rest: Any) -> list[Kernel]:
    """A variant of linear that rounds to bfloat16, in each of its formats. Weights in blocks are
    made floats for many tokens at once, and for few are faster as they are."""
    own = {"activations": "bf16", "numerics": "fast"} | rest
    kernels = linear(variant, shares, PACKINGS | BF16_PACKINGS, **own)
    return [
        replace(k, fewest=PROMPT) if k.format in LAYOUTS else replace(k, knobs=STREAM)
        for k in kernels
    ]


def of_experts(
    kind: linear_experts.Kind,
    variant: str,
    shares: Mapping[str, Share],
    packings: Packings = PACKINGS,
    knobs: Knobs = KNOBS,
    **rest: Any,
) -> list[Kernel]:
    """A variant of linear_experts, in each of the formats of linear's. Its knobs are not measured:
    how many tokens an expert has is what another node found."""
    kernels = [
        Kernel(
            "linear_experts",
            variant,
            s,
            f,
            pack=packings[f],
            knobs=tuple(replace(knob, tokens=()) for knob in knobs_for(f, knobs)),
            **rest,
        )
        for f, s in linear_experts.shares(kind, shares).items()
    ]
    return quantising(kernels) if kind == IN_INT8 else kernels


def on_rows(op: str, variant: str, shares: Mapping[str, Share], **rest: Any) -> list[Kernel]:
    """A variant of an op that brings the rows of active neurons, in each of its formats."""
    return of_formats(op, variant, shares, pack=ROWS, knobs=(ALONG,), **rest)


def on_int8_rows(variant: str, shares: Mapping[str, Share], **rest: Any) -> list[Kernel]:
    """A variant of sparse_linear that meets quantised activations, in each of its formats."""
    return quantising(on_rows("sparse_linear", variant, shares, **FITTING, **rest))


def attention_of(variant: str, shares: Mapping[str, Share], **rest: Any) -> list[Kernel]:
    """A variant of attention that takes whole vectors of its cache's format."""
    return [
        Kernel("attention", variant, s, f, takes=attention.TAKES[f], **rest)
        for f, s in shares.items()
    ]


def of_kivi(variant: str, share: Share, **rest: Any) -> list[Kernel]:
    """A variant of attention over pages."""
    own = {"takes": attention_kivi.whole_groups, "scratch": attention_kivi.partials, **rest}
    return [Kernel("attention_kivi", variant, share, "F16", then=attention_kivi.MERGE, **own)]


def scan(op: str, share: Share, scratch: Callable[[Shape], int]) -> Kernel:
    """An op that goes through tokens in order and updates states where they are."""
    return Kernel(op, "generic", share, in_place=STATES, scratch=scratch)


def in_float8(op: str, shares: dict[str, Share], **rest: Any) -> list[Kernel]:
    """The ops of one name for E4M3 and E5M2."""
    return [Kernel(f"{op}_{kind}", "generic", s, **rest) for kind, s in shares.items()]


KERNELS: tuple[Kernel, ...] = (
    *of_formats("embedding", "generic", embedding.SHARES, splits="tokens"),
    Kernel("rms_norm", "generic", rms_norm.generic, splits="tokens"),
    Kernel("rms_norm", "scalar", rms_norm.scalar, splits="tokens"),
    Kernel("layer_norm", "generic", layer_norm.generic, splits="tokens"),
    Kernel("layer_norm", "scalar", layer_norm.scalar, splits="tokens"),
    *(
        Kernel(QUANTISING[kind], "generic", s, splits="tokens")
        for kind, s in quantise_activations.SHARES.items()
    ),
    *in_bf16("amx_bf16", linear_amx_bf16.SHARES, requires=AMX_BF16),
    *in_bf16("avx512_bf16", linear_bf16.SHARES, requires=BF16),
    *in_bf16("neon_bf16", linear_neon_bf16.SHARES, requires=NEON_BF16),
    *linear("avx512", linear_float.AVX512_SHARES, requires=AVX512, knobs=KNOBS),
    *linear("generic", linear_float.GENERIC_SHARES, SPREAD_PACKINGS, knobs=KNOBS),
    *in_int8("amx", linear_amx.SHARES, requires=AMX_INT8, knobs=linear_amx.KNOBS),
    *in_int8("avx512_vnni", linear_int8.AVX512_VNNI_SHARES, requires=VNNI, knobs=PAIRING),
    *in_int8("avx2", linear_avx2.SHARES, requires=AVX2),
    # a single token in TQ1_0 and TQ2_0 is faster by lut_avx2 than by avx2, a prompt slower
    *in_int8("lut_avx512", linear_lut.AVX512_SHARES, LUT_AVX512_PACKINGS, requires=VBMI),
    *in_int8("lut_avx2", linear_lut.AVX2_SHARES, LUT_AVX2_PACKINGS, requires=AVX2),
    *in_int8("neon_i8mm", linear_neon.I8MM_SHARES, requires=I8MM),
    *in_int8("neon_dotprod", linear_neon.DOTPROD_SHARES, requires=DOTPROD),
    *in_int8("generic", linear_int8.GENERIC_SHARES, SPREAD_PACKINGS),
    *of_formats("linear", "scalar", linear_scalar.SHARES),
    *of_experts(IN_FLOATS, "avx512", linear_float.AVX512_SHARES, requires=AVX512),
    *of_experts(IN_FLOATS, "generic", linear_float.GENERIC_SHARES, SPREAD_PACKINGS),
    *of_experts(IN_INT8, "amx", linear_amx.SHARES, requires=AMX_INT8, knobs=linear_amx.KNOBS),
    *of_experts(
        IN_INT8, "avx512_vnni", linear_int8.AVX512_VNNI_SHARES, requires=VNNI, knobs=PAIRING
    ),
    *of_experts(IN_INT8, "avx2", linear_avx2.SHARES, requires=AVX2),
    *of_experts(IN_INT8, "neon_i8mm", linear_neon.I8MM_SHARES, requires=I8MM),
    *of_experts(IN_INT8, "neon_dotprod", linear_neon.DOTPROD_SHARES, requires=DOTPROD),
    *of_experts(IN_INT8, "generic", linear_int8.GENERIC_SHARES, SPREAD_PACKINGS),
    *of_formats("linear_experts", "scalar", linear_experts.SCALAR),
    Kernel(
        "choose_experts", "generic", experts.choose_experts, takes=experts.fits, splits="tokens"
    ),
    Kernel("gather_scores", "generic", experts.gather_scores, splits="tokens"),
    Kernel("normalise_weights", "generic", experts.normalise_weights, splits="tokens"),
    Kernel("sort_by_expert", "generic", experts.sort_by_expert),
    Kernel("sum_experts", "generic", experts.sum_experts, splits="tokens"),
    Kernel("sigmoid_gate", "generic", experts.sigmoid_gate, splits="tokens"),
    Kernel("split_heads", "generic", heads.split_heads),
    Kernel("merge_heads", "generic", heads.merge_heads),
    Kernel("rotation", "generic", rope.rotation, splits="tokens"),
    Kernel("rope_norm", "generic", rope.rope_norm, splits="tokens"),
    Kernel("rope_neox", "generic", rope.rope_neox, splits="tokens"),
    *of_formats("kv_write", "generic", kv_write.SHARES, in_place=ONTO, splits="tokens"),
    *attention_of("amx_bf16", attention_amx.SHARES, requires=AMX_BF16, **PROMPTS_IN_BF16),
    *attention_of("avx512_bf16", attention_bf16.SHARES, requires=BF16, **PROMPTS_IN_BF16),
    *attention_of("generic", attention.SHARES, scratch=attention.partials, then=attention.MERGE),
    *of_formats("attention", "scalar", attention_scalar.SHARES),
    *(
        Kernel(
            "attention_received",
            "generic",
            share,
            f,
            takes=attention.TAKES[f],
            in_place=ONTO,
            scratch=attention_received.partials,
            then=attention_received.THEN[f],
        )
        for f, share in attention_received.SHARES.items()
    ),
    *of_formats("attention_received", "scalar", attention_received.SCALAR_SHARES, in_place=ONTO),
    *of_formats("stripe_sums", "generic", prompt_patterns.SUM_SHARES, in_place=ONTO),
    *of_formats(
        "block_scores",
        "generic",
        prompt_patterns.SCORE_SHARES,
        in_place=ONTO,
        scratch=prompt_patterns.means_of_keys,
        then=prompt_patterns.THEN,
    ),
    Kernel(
        "prompt_pattern",
        "generic",
        prompt_patterns.prompt_pattern,
        in_place=ONTO,
        scratch=prompt_patterns.lists_of_stripes,
    ),
    *of_formats("pattern_attention", "generic", pattern_attention.SHARES, in_place=ONTO),
    *of_kivi("avx512", attention_kivi.AVX512, requires=AVX512),
    *of_kivi("generic", attention_kivi.GENERIC),
    *of_formats("kivi_keys", "generic", kivi.KEYS, in_place=ONTO),
    *of_formats("kivi_values", "generic", kivi.VALUES, in_place=ONTO),
    Kernel(
        "attention_minicache",
        "generic",
        attention_minicache.GENERIC,
        "F16",
        then=attention_minicache.MERGE,
        takes=attention_minicache.whole_vectors,
        scratch=attention_minicache.partials,
    ),
    *of_formats("slerp_weights", "generic", minicache.WEIGHING, in_place=ONTO),
    *of_formats(
        "merge_blocks", "generic", minicache.MERGED, in_place=ONTO, takes=minicache.whole_vectors
    ),
    *of_formats("knorm", "generic", cell_scores.KNORM_SHARES),
    *of_formats("keydiff", "generic", cell_scores.KEYDIFF_SHARES, scratch=cell_scores.directions),
    Kernel("pool_scores", "generic", cell_scores.pool_scores),
    Kernel("keep_top", "generic", keep_cells.keep_top),
    *of_formats("kv_keep", "generic", keep_cells.SHARES, in_place=ONTO),
    *of_formats("page_extremes", "generic", pages.EXTREMES_SHARES, in_place=ONTO),
    *of_formats("page_scores", "generic", pages.SCORES_SHARES, in_place=ONTO, takes=pages.fits),
    Kernel("choose_pages", "generic", pages.choose_pages, in_place=ONTO),
    Kernel("softmax", "generic", softmax.generic),
    Kernel("silu", "generic", activations.silu, splits="tokens"),
    Kernel("gelu", "generic", activations.gelu, splits="tokens"),
    Kernel("gelu_erf", "generic", activations.gelu_erf, splits="tokens"),
    Kernel("relu", "generic", activations.relu, splits="tokens"),
    Kernel("squared_relu", "generic", activations.squared_relu, splits="tokens"),
    Kernel("softplus", "generic", activations.softplus, splits="tokens"),
    Kernel("sigmoid", "generic", activations.sigmoid, splits="tokens"),
    Kernel("swiglu", "generic", gated_activations.swiglu, splits="tokens"),
    Kernel("swiglu", "scalar", gated_activations.swiglu_scalar, splits="tokens"),
    Kernel("geglu", "generic", gated_activations.geglu, splits="tokens"),
    Kernel("reglu", "generic", gated_activations.reglu, splits="tokens"),
    Kernel("squared_reglu", "generic", gated_activations.squared_reglu, splits="tokens"),
    Kernel("drelu", "generic", gated_activations.drelu, splits="tokens"),
    Kernel("swiglu_oai", "generic", gated_activations.swiglu_oai, splits="tokens"),
    Kernel("threshold_mask", "generic", neuron_masks.threshold_mask, splits="tokens"),
    Kernel("union_mask", "generic", neuron_masks.union_mask),
    Kernel("neuron_split", "generic", neuron_masks.neuron_split, splits="tokens"),
    Kernel("add_counts", "generic", neuron_masks.add_counts),
    Kernel("where_active", "generic", neuron_masks.where_active, splits="tokens"),
    Kernel("active_rows", "generic", neuron_masks.active_rows),
    *on_rows("sparse_linear", "avx512", sparse_linear.AVX512_FLOATS, requires=AVX512, **FITTING),
    *on_rows("sparse_linear", "generic", sparse_linear.GENERIC_FLOATS, **FITTING),
    *on_int8_rows("avx512_vnni", sparse_linear.AVX512_VNNI_BLOCKS, requires=VNNI),
    *on_int8_rows("avx2", sparse_linear.AVX2_BLOCKS, requires=AVX2),
    *on_int8_rows("generic", sparse_linear.GENERIC_BLOCKS),
    *on_rows("sparse_axpy", "avx512", sparse_axpy.AVX512_SHARES, requires=AVX512),
    *on_rows("sparse_axpy", "avx2", sparse_axpy.AVX2_SHARES, requires=AVX2),
    *on_rows("sparse_axpy", "generic", sparse_axpy.GENERIC_SHARES),
    Kernel("add", "generic", arithmetic.add, splits="tokens"),
    Kernel("add_bias", "generic", arithmetic.add_bias, splits="tokens"),
    Kernel("mul", "generic", arithmetic.mul, splits="tokens"),
    Kernel("mul_columns", "generic", arithmetic.mul_columns, splits="tokens"),
    Kernel("scale", "generic", arithmetic.scale, splits="tokens"),
    Kernel("softcap", "generic", arithmetic.softcap, splits="tokens"),
    Kernel("add_squares", "generic", add_squares.add_squares),
    Kernel("add_squares_by_expert", "generic", add_squares.add_squares_by_expert),
    *of_formats("quantise", "generic", weight_formats.QUANTISE_SHARES),
    *of_formats("quantise_weighted", "generic", weight_formats.WEIGHTED_SHARES),
    *of_formats("dequantise", "generic", weight_formats.DEQUANTISE_SHARES),
    Kernel("quantise_symmetric", "generic", integers.symmetric),
    Kernel("quantise_asymmetric", "generic", integers.asymmetric),
    Kernel("dequantise_symmetric", "generic", integers.from_symmetric),
    Kernel("dequantise_asymmetric", "generic", integers.from_asymmetric),
    *in_float8("quantise", float8.QUANTISE_SHARES),
    *in_float8("dequantise", float8.DEQUANTISE_SHARES),
    *in_float8("linear", linear_float8.SHARES, pack=BYTES, knobs=KNOBS),
    Kernel("linear_w8a8", "avx512_vnni", linear_w8a8.avx512_vnni, requires=VNNI, **W8A8),
    Kernel("linear_w8a8", "generic", linear_w8a8.generic, **W8A8),
    Kernel("linear_w8a8", "scalar", linear_w8a8.scalar, takes=linear_w8a8.fits),
    Kernel("logit_bias", "generic", edits.logit_bias),
    Kernel("penalties", "generic", edits.penalties),
    Kernel("dry", "generic", edits.dry),
    Kernel("top_n_sigma", "generic", cut.top_n_sigma),
    Kernel("top_k", "generic", prefix.top_k),
    Kernel("typical", "generic", prefix.typical),
    Kernel("top_p", "generic", prefix.top_p),
    Kernel("min_p", "generic", cut.min_p),
    Kernel("xtc", "generic", cut.xtc),
    Kernel("temperature", "generic", edits.temperature),
    Kernel("dynamic_temperature", "generic", edits.dynamic_temperature),
    Kernel("mirostat_v1", "generic", prefix.mirostat_v1),
    Kernel("mirostat_v2", "generic", cut.mirostat_v2),
    Kernel("log_sum_exp", "generic", choice.log_sum_exp),
    Kernel("greedy", "generic", choice.greedy),
    Kernel("argmax", "generic", choice.argmax),
    Kernel("draw", "generic", choice.draw),
    Kernel("causal_conv1d", "generic", causal_conv1d.generic, in_place=STATES),
    scan("ssm_scan", ssm_scan.channels, ssm_scan.of_channels),
    scan("ssm_scan_heads", ssm_scan.heads, ssm_scan.of_heads),
    scan("gated_delta_net", gated_delta_net.generic, gated_delta_net.scratch),
    Kernel("quantise_log_probabilities", "generic", log_probabilities.quantise_log_probabilities),
    Kernel("kl_divergence", "generic", log_probabilities.kl_divergence),
    Kernel("accept", "generic", verification.accept),
    Kernel("recover", "generic", verification.recover),
    Kernel("exclude", "generic", verification.exclude),
    Kernel("pick", "generic", verification.pick),
)


EVERY: tuple[Kernel | CudaKernel, ...] = (*KERNELS, *EVERY_CUDA)


VARIANTS = frozenset(kernel.variant for kernel in EVERY)
ANY = "*"  # variant, of packages too


@cache
def brought() -> tuple[Rows, list[str]]:
    """The kernels that installed packages bring, and complaints; they are imported now."""
    return kernels_beside(VARIANTS)


def package_of(kernel: Kernel) -> Package | None:
    """The package that brings this kernel, if one does; all packages are imported to know it."""
    _, package = brought()[0].get(kernel.name, (None, None))
    return package


def complaints() -> list[str]:
    """A line for each package that is installed and cannot be used, of its ops and its kernels."""
    return list(dict.fromkeys([*ops_of_packages()[2], *brought()[1]]))


def of_packages(variant: str | None = None) -> list[Kernel]:
    """Those of one variant, or all; no package is imported for a variant of ours."""
    found = [] if variant in VARIANTS else [kernel for kernel, _ in brought()[0].values()]
    return [kernel for kernel in found if variant in (None, kernel.variant)]


def variants(op: str, format: str | None = None, variant: str | None = None) -> list[Kernel]:
    """The CPU's kernels of an op and format, best first, and then those of a package where its
    variant is asked for, or ANY."""
    theirs = of_packages(None if variant == ANY else variant) if variant else []
    return [k for k in (*KERNELS, *theirs) if (k.op, k.format) == (op, format)]


def find(name: str) -> Kernel:
    """The kernel for CPUs called e.g. linear/cpu/generic/Q4_0, ours or a package's."""
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    variant = name.split("/")[2] if name.count("/") >= 2 else ""
    for kernel in of_packages(variant) if variant else ():
        if kernel.name == name:
            return kernel
    raise KeyError(f"no kernel is called {name!r}")


def find_any(name: str) -> Kernel | CudaKernel:
    """The kernel of any target."""
    on_gpus = (kernel for kernel in EVERY_CUDA if kernel.name == name)
    return next(on_gpus, None) or find(name)
