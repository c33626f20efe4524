"""Every fused kernel, one row each; of two that begin with the same kernel the longer one comes
first."""

from collections.abc import Iterator
from dataclasses import replace

from kernels.cuda.attention import attention
from kernels.cuda.fusion.fused import Fused, Member
from kernels.cuda.fusion.joined import JOINED, ROUND, ROUNDED, row
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import THREADS, Grid, Launch, fours, items
from kernels.cuda.table import CUDA_KERNELS
from reference.attention.attention import OP as ATTENTION
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.gated_activations import OPS as GATED
from reference.op import Shape, same_shape
from reference.quantise_activations import BLOCK

ADD, NORM = row("add"), row("rms_norm")
# by prefix of the names of kernels that round their outputs
ROUNDS = {"_round": ROUND, "_round_256": row("quantise_activations_256")}
TOKENS = (0, 1, 2, 7)
HIDDEN = (1, 2, 31, 33, 127, 129, 2048)
BLOCKS = {"tokens": TOKENS, "hidden": (32, 96, 160, 256, 768, 2048)}

# A residual added, the sum normalised, the norm's output rounded

NORMED = "weight: f32[hidden], eps: f64 ->"
ADDED = f"x: f32[tokens hidden], y: f32[tokens hidden], {NORMED} sum: f32[tokens hidden]"
ADD_MEMBERS = (
    Member(ADD, {"width": "hidden", "out": "sum"}),
    Member(NORM, {"x": "sum", "out": "normed"}),
)


def _norm(name: str, signature: str, members: tuple[Member, ...], ending: str = "") -> Fused:
    rounds, op = ROUNDS.get(ending), f"{name}{ending}"
    signature += f" normed: f32[tokens hidden]{f', {ROUNDED}' if rounds else ''}"
    return Fused(
        op=op,
        variant="generic",
        signature=signature,
        members=(*members, *([Member(rounds, {"x": "normed"})] if rounds else ())),
        stages=(Launch("add_norm.cu", op, signature, fours),),
        axes=BLOCKS if rounds else {"tokens": TOKENS, "hidden": HIDDEN},
        fit=rounds.spec.fit if rounds else same_shape,
        corners=({"tokens": 2, "hidden": 4128},),  # more than a block of threads holds at once
    )


ADD_NORM = "add_norm", f"{ADDED},", ADD_MEMBERS
ONE_NORM = "norm", f"x: f32[tokens hidden], {NORMED}", (Member(NORM, {"out": "normed"}),)
NORMS = (
    *(_norm(*ADD_NORM, ending) for ending in ROUNDS),
    _norm(*ADD_NORM),
    *(_norm(*ONE_NORM, ending) for ending in ROUNDS),
)

# A gated activation rounded


def _gated(op: str, ending: str) -> Fused:
    name = f"{op}{ending}"
    signature = f"{row(op).spec.signature.replace('width', 'hidden')}, {ROUNDED}"
    return Fused(
        op=name,
        variant="generic",
        signature=signature,
        members=(Member(row(op), {"width": "hidden"}), Member(ROUNDS[ending], {"x": "out"})),
        stages=(Launch("gated_round.cu", name, signature, items("tokens", "hidden", each=4)),),
        axes=BLOCKS,
        fit=ROUNDS[ending].spec.fit,
    )


# Queries and keys rotated, keys and values written to their caches

ROPE_WRITE = (
    "q: f32[tokens heads head_dim], k: f32[tokens kv_heads head_dim], v: f32[tokens width],"
    " rotation: f32[tokens pairs 2], cells: i32[tokens] -> q_out: f32[tokens heads head_dim],"
    " k_out: f32[tokens kv_heads head_dim], k_cache: format[capacity width],"
    " v_cache: format[capacity width]"
)


def _blocks_of_rows(shape: Shape) -> Grid:
    """A thread for each element of queries, keys and values, which share no block."""
    queries = -(-shape["heads"] * shape["head_dim"] // THREADS)
    return Grid((shape["tokens"], queries + 2 * -(-shape["width"] // THREADS), 1), THREADS)


def whole_heads(shape: Shape, format: str | None) -> Shape:
    """Caches' rows are all heads, in whole blocks; there is a cell for every token."""
    head_dim, kv_heads = max(2, shape["head_dim"]), max(1, shape["kv_heads"])
    if (kv_heads * head_dim) % FORMATS[format or "F32"].block:
        head_dim = FORMATS[format or "F32"].block
    return {
        **shape,
        "head_dim": head_dim,
        "kv_heads": kv_heads,
        "width": kv_heads * head_dim,
        "pairs": max(1, min(shape["pairs"], head_dim // 2)),
        "capacity": max(shape["capacity"], shape["tokens"]),
    }


def _rope_write(rope: str, format: str) -> Fused:
    op, write = f"{rope}_write", row("kv_write", format)
    return Fused(
        op=op,
        variant="generic",
        format=format,
        signature=ROPE_WRITE,
        members=(
            Member(row(rope), {"x": "q", "out": "q_out"}),
            Member(row(rope), {"x": "k", "out": "k_out", "heads": "kv_heads"}),
            Member(write, {"x": "k_out", "before": "k_before", "out": "k_cache"}),
            Member(write, {"x": "v", "before": "v_before", "out": "v_cache"}),
        ),
        stages=(Launch("rope_write.cu", op, ROPE_WRITE, _blocks_of_rows, format),),
        in_place=(("k_cache", "k_before"), ("v_cache", "v_before")),
        axes={
            "tokens": TOKENS,
            "heads": (1, 3, 8),
            "kv_heads": (1, 2, 3),
            "head_dim": (2, 6, 32, 128),
            "pairs": (1, 3, 16, 64),
            "capacity": (1, 8, 40),
            "width": (0,),  # as `fit` has it
        },
        fit=whole_heads,
    )


# Attention of few tokens, merged and rounded; attention has a q and a scale of its own already

MERGE_ROUND_SIGNATURE = (
    f"{attention.MERGE_SIGNATURE}, codes: i8[tokens heads head_dim],"
    " steps: f32[tokens heads head_dim/32], total: i32[tokens heads head_dim/32]"
)
MERGES = (attention.MERGE, attention.MERGE_LARGE)


def heads_of_blocks(shape: Shape, format: str | None) -> Shape:
    """Heads are whole blocks of activations."""
    head_dim = -(-shape["head_dim"] // BLOCK) * BLOCK
    return ATTENTION.fit({**shape, "head_dim": head_dim}, format)


def _rounding(merge: Launch) -> Launch:
    name = f"{merge.function}_round"
    source = "attention_merge_round.cu"
    return replace(merge, source=source, function=name, signature=MERGE_ROUND_SIGNATURE)


def _attention(kernel: CudaKernel) -> Fused:
    known = kernel.takes

    def takes(shape: Shape) -> bool:
        few = shape["tokens"] <= attention.FEW
        return few and shape["head_dim"] % BLOCK == 0 and known(shape)

    _, _, rounded = MERGE_ROUND_SIGNATURE.partition(" -> ")
    return Fused(
        op="attention_round",
        variant=kernel.variant,
        format=kernel.format,
        signature=ATTENTION.signature.partition(" -> ")[0] + " -> " + rounded,
        members=(
            Member(kernel),
            Member(ROUND, {"x": "out", "q": "codes", "scale": "steps", "hidden": "heads*head_dim"}),
        ),
        stages=tuple(_rounding(s) if s in MERGES else s for s in kernel.stages),
        scratch=kernel.scratch,
        takes=takes,
        numerics=kernel.numerics,
        capability=kernel.capability,
        axes=dict(ATTENTION.axes) | {"tokens": (0, 1, 2, 5), "head_dim": (32, 64, 128)},
        fit=heads_of_blocks,
    )


def _all() -> Iterator[Fused]:
    yield from NORMS
    yield from (_gated(op.name, ending) for op in GATED for ending in ROUNDS)
    yield from JOINED
    for rope in ("rope_norm", "rope_neox"):
        for kind in FORMATS_OF_CACHE:
            yield _rope_write(rope, kind)
    for kernel in CUDA_KERNELS:
        if kernel.op == "attention" and kernel.variant != "scalar":
            yield _attention(kernel)


FUSED: tuple[Fused, ...] = tuple(_all())
EVERY_CUDA: tuple[CudaKernel, ...] = (*CUDA_KERNELS, *FUSED)
