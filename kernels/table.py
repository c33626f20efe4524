"""Every kernel there is, one row each; variants of an op stand in order of preference."""

from kernels.cpu import (
    activations,
    arithmetic,
    attention,
    embedding,
    gated_activations,
    kv_write,
    linear,
    linear_scalar,
    linear_vnni,
    quantise_activations,
    rms_norm,
    rope,
    softmax,
    weight_formats,
)
from kernels.cpu.packing import PACKINGS, VNNI_PACKINGS
from kernels.cpu.samplers import choice, cut, edits, prefix
from kernels.kernel import Kernel

VNNI = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vnni"})
WRITES_CACHE = (("out", "before"),)


KERNELS: tuple[Kernel, ...] = (
    *(Kernel("embedding", "generic", s, f) for f, s in embedding.SHARES.items()),
    Kernel("rms_norm", "generic", rms_norm.generic),
    Kernel("rms_norm", "scalar", rms_norm.scalar),
    Kernel("quantise_activations", "generic", quantise_activations.generic),
    *(
        Kernel("linear", "avx512_vnni", s, f, VNNI, pack=VNNI_PACKINGS[f], activations="int8")
        for f, s in linear_vnni.SHARES.items()
    ),
    *(Kernel("linear", "generic", s, f, pack=PACKINGS[f]) for f, s in linear.FLOAT_SHARES.items()),
    *(
        Kernel("linear", "generic", s, f, pack=PACKINGS[f], activations="int8")
        for f, s in linear.QUANTISED_SHARES.items()
    ),
    *(Kernel("linear", "scalar", s, f) for f, s in linear_scalar.SHARES.items()),
    Kernel("rotation", "generic", rope.rotation),
    Kernel("rope_norm", "generic", rope.rope_norm),
    Kernel("rope_neox", "generic", rope.rope_neox),
    *(
        Kernel("kv_write", "generic", s, f, in_place=WRITES_CACHE)
        for f, s in kv_write.SHARES.items()
    ),
    *(
        Kernel("attention", "generic", s, f, takes=attention.whole_vectors)
        for f, s in attention.FLASH_SHARES.items()
    ),
    *(Kernel("attention", "scalar", s, f) for f, s in attention.SCALAR_SHARES.items()),
    Kernel("softmax", "generic", softmax.generic),
    Kernel("silu", "generic", activations.silu),
    Kernel("gelu", "generic", activations.gelu),
    Kernel("relu", "generic", activations.relu),
    Kernel("squared_relu", "generic", activations.squared_relu),
    Kernel("swiglu", "generic", gated_activations.swiglu),
    Kernel("swiglu", "scalar", gated_activations.swiglu_scalar),
    Kernel("geglu", "generic", gated_activations.geglu),
    Kernel("reglu", "generic", gated_activations.reglu),
    Kernel("add", "generic", arithmetic.add),
    Kernel("add_bias", "generic", arithmetic.add_bias),
    Kernel("scale", "generic", arithmetic.scale),
    *(Kernel("quantise", "generic", s, f) for f, s in weight_formats.QUANTISE_SHARES.items()),
    *(Kernel("dequantise", "generic", s, f) for f, s in weight_formats.DEQUANTISE_SHARES.items()),
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
    Kernel("draw", "generic", choice.draw),
)


def variants(op: str, format: str | None = None, target: str = "cpu") -> list[Kernel]:
    """The kernels of an op and format for a target, best first."""
    return [k for k in KERNELS if (k.op, k.format, k.target) == (op, format, target)]


def find(name: str) -> Kernel:
    """The kernel called e.g. linear/cpu/generic/Q4_0."""
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    raise KeyError(f"no kernel is called {name!r}")
