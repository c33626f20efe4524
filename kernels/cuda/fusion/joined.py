"""Fused kernels of weights that meet the same few tokens; and of two of them with what a gated
activation makes of their products."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from kernels.cuda.fusion.fused import Fused, Member
from kernels.cuda.linear import linear
from kernels.cuda.runtime.config import Config, constant
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import WARP, Grid, Launch
from kernels.cuda.table import CUDA_KERNELS
from reference.formats import FORMATS
from reference.op import Shape
from reference.quantise_activations import BLOCK, ROUNDINGS


def row(op: str, format: str | None = None, variant: str = "generic") -> CudaKernel:
    """A row of the table."""
    wanted = op, format, variant
    return next(k for k in CUDA_KERNELS if (k.op, k.format, k.variant) == wanted)


ROUND = row("quantise_activations")
ROUNDED = "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32]"
FORMATS_JOINED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K")
JOINED_SOURCES = {
    "tensor": dict.fromkeys(linear.PARTS, "linear_tensor_joined.cu"),
    "generic": {f: "linear_float_joined.cu" if f in linear.FLOATS else "linear_blocks_joined.cu"
                for f in FORMATS_JOINED},
    "bf16": dict.fromkeys(linear.BF16_PACKS, "linear_bf16_joined.cu"),
}  # fmt: skip


def _joined(count: int, name: str, variant: str, format: str, source: str) -> Fused:
    kernel = row("linear", format, variant)
    rounds = kernel.activations in ROUNDINGS
    ends = ["", *(f"_{i}" for i in range(1, count))]
    weights = ", ".join(f"weight{end}: format[out{end} hidden]" for end in ends)
    outs = ", ".join(f"out{end}: f32[tokens out{end}]" for end in ends)
    signature = f"{ROUNDED if rounds else 'x: f32[tokens hidden]'}, {weights} -> {outs}"

    def together(launch: Launch) -> Launch:
        """The same for all weights in one launch, which has the blocks that each would have
        alone."""
        alone = launch.grid
        beginning, _, most = launch.function.rpartition("_")

        def grid(shape: Shape, config: Config) -> Grid:
            grids = [alone({**shape, "out": shape[f"out{end}"]}, config) for end in ends]
            return replace(grids[0], blocks=(sum(g.blocks[0] for g in grids), 1, 1))

        function = f"{beginning}_{name}_{most}"
        return replace(launch, source=source, function=function, signature=signature, grid=grid)

    endings, taken = tuple(f"_{most}" for most in linear.FEW), kernel.takes
    return Fused(
        op=f"linear_{name}",
        variant=variant,
        format=format,
        signature=signature,
        members=tuple(Member(kernel, {"weight": f"weight{e}", "out": f"out{e}"}) for e in ends),
        stages=tuple(together(own) for own in kernel.launches if own.function.endswith(endings)),
        axes={"tokens": (0, 1, 2, 3, 4, 5, 8), "hidden": (1, 31, 129, 256, 1056)}
        | {f"out{end}": (1, 2, 9, 31, 33) for end in ends},
        fit=whole_rows,
        takes=lambda shape: not linear.many(shape) and taken(shape),
        pack=kernel.pack,
        numerics=kernel.numerics,
        capability=kernel.capability,
    )


# Two of them whose gated activation is computed, and in block formats rounded, at once

GATES = ("swiglu", "geglu")
GATED_OF_BLOCKS = ("Q8_0", "Q4_0")  # whose activations have a scale for 32 elements
GATED = Config((
    *linear.UNTUNED,
    constant("GATED_WARPS", 16, "of a block, whose rows they take in turn"),
    constant("GATED_AT_ONCE", 2, "blocks of a multiprocessor"),
))  # fmt: skip


def _with_gate(gate: str, variant: str, format: str) -> Fused:
    rounds = format in GATED_OF_BLOCKS
    pair = _joined(2, "pair", variant, format, JOINED_SOURCES[variant][format])
    signature = f"{pair.signature}, gated: f32[tokens out]"
    names = {"gate": "out", "up": "out_1", "width": "out", "out": "gated"}
    members = (*pair.members, Member(row(gate), names))
    source, op, config = "linear_gated_tensor.cu", f"linear_{gate}", linear.TENSOR
    if rounds:
        signature += ", codes: i8[tokens out], steps: f32[tokens out/32]"
        signature += ", totals: i32[tokens out/32]"
        names = {"x": "gated", "hidden": "out", "q": "codes", "scale": "steps", "total": "totals"}
        members += (Member(ROUND, names),)
        source, op, config = "linear_gated_blocks.cu", f"{op}_round", GATED
    few = pair.takes

    def takes(shape: Shape) -> bool:
        one = shape["tokens"] <= 1 and shape["out"] % BLOCK == 0
        return shape["out"] == shape["out_1"] and (one if rounds else few(shape))

    def of_blocks(shape: Shape) -> Grid:
        blocks = -(-shape["out"] // BLOCK) if shape["tokens"] else 0
        return Grid((blocks, 1, 1), GATED["GATED_WARPS"] * WARP)

    def on_tensor_cores(shape: Shape, config: Config) -> Grid:
        rows = config["FEW_ROWS"] // 2  # of both
        return linear.on_tensor_cores(-(-shape["out"] // rows) if shape["tokens"] else 0, config)

    grid: Callable[..., Grid] = of_blocks if rounds else on_tensor_cores

    def fit(shape: Shape, format: str | None) -> Shape:
        out = -(-shape["out"] // BLOCK) * BLOCK if rounds else shape["out"]
        return {**whole_rows(shape, format), "out": out, "out_1": out}

    return replace(
        pair,
        op=op,
        signature=signature,
        members=members,
        stages=(Launch(source, op, signature, grid, format, config=config),),
        axes={**pair.axes, "tokens": (0, 1)} if rounds else pair.axes,
        fit=fit,
        takes=takes,
    )


def whole_rows(shape: Shape, format: str | None) -> Shape:
    """Rows are whole blocks, of activations too where these are rounded."""
    block = max(FORMATS[format or "F32"].block, BLOCK if format not in linear.FLOATS else 1)
    return {**shape, "hidden": -(-shape["hidden"] // block) * block}


def _all() -> Iterator[Fused]:
    for gate in GATES:
        yield from (_with_gate(gate, "generic", kind) for kind in GATED_OF_BLOCKS)
        yield from (_with_gate(gate, "tensor", kind) for kind in linear.PARTS)
    for count, name in ((3, "trio"), (2, "pair")):
        for variant, sources in JOINED_SOURCES.items():
            for kind, source in sources.items():
                yield _joined(count, name, variant, kind, source)


JOINED = tuple(_all())
