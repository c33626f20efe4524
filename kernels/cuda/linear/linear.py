"""linear on a GPU. Up to eight tokens are multiplied by some rows of the weight per warp (functions
linear_1 to linear_8), more tokens in tiles; the grids decide which function runs. All sum in one
order (linear.cuh).

Block formats are packed (packing.py) and multiplied by activations in int8 blocks; floats are as in
the file. `tensor` multiplies F16 and BF16 by activations split into parts (linear_tensor.cuh),
which are computed before tiles. `bf16` has floats rounded to bfloat16, and many tokens multiplied
by the device's library.
"""

from collections.abc import Callable, Sequence

from kernels.cuda.formats.packing import Bfloats, Codes, Planes
from kernels.cuda.runtime.config import Config, constant, fixed
from kernels.cuda.runtime.launch import WARP, ConfiguredGrid, Grid, Launch, items
from kernels.cuda.runtime.product import Product, Stage
from kernels.knob import Knob
from reference import linear_experts
from reference.linear import OP
from reference.op import Shape

BLOCKS = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: format[out hidden] -> out: f32[tokens out]"
)
BFLOATS = "x: f32[tokens hidden] -> scratch: u16[tokens hidden]"
PRODUCT = "scratch: u16[tokens hidden], weight: u16[out hidden] -> out: f32[tokens out]"
ON_TENSOR = "linear_tensor.cu"
SPLIT = "x: f32[tokens hidden] -> scratch: f32[tokens hidden]"  # as large as `in_parts` says
OF_PARTS = OP.signature.replace(", weight", ", scratch: f32[tokens hidden], weight")
EXPERTS = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " ends: i32[experts], weight: format[held out hidden], slots: i32[experts]"
    " -> out: f32[tokens out]"
)
FEW = (1, 2, 4, 8)  # tokens, at most, of the functions for few
FEW_OF_BLOCKS = (1, 8)  # the same of block formats; the function of eight uses tensor cores

ROWS = (1, 2, 4)
WORK = (
    constant("FEW_WARPS", 4, "of a block, for few tokens"),
    constant("TILE", 64, "rows and tokens of a tile of floats"),
    constant("STEP", 2, "items of a row in shared memory at a time"),
    Knob("AT_ONCE_OF_FEW", (1, 2, 3), 2, "blocks of a multiprocessor, for a few", (2, 4, 8)),
    Knob("CHAIN_AHEAD", (1, 2, 3, 4), 2, "items that a lane loads ahead, up to 2 tokens", (1, 2)),
)
OF_ONE = Knob("ROWS_OF_1", ROWS, 2, "rows of a warp, for one token")
AT_ONCE = Knob("AT_ONCE_OF_ONE", (4, 5, 6, 8), 6, "blocks of a multiprocessor, for one token")
FLOAT = Config((
    *WORK,
    OF_ONE,
    AT_ONCE,
    Knob("ROWS_OF_2", ROWS, 2, "for two tokens", (2,)),
    Knob("ROWS_OF_4", ROWS, 4, "for up to four", (4,)),
    Knob("ROWS_OF_8", ROWS, 4, "for up to eight", (8,)),
))  # fmt: skip
LEAST_OF_128 = Knob(
    "LEAST_OF_128", (65, 129, 257, 513), 257,
    "tokens from which tiles are of 128: fewer would leave multiprocessors idle",
    (64, 128, 256, 512), crossover=True,
)  # fmt: skip
BLOCKED = Config((
    *WORK,
    OF_ONE,
    *fixed((AT_ONCE,)),
    constant("ROWS_OF_8", 4, "rows for each warp of a block: 16 in all, as mma.sync has"),
    constant("STAGES", 3, "steps of a tile: in use, in shared memory, on their way"),
    LEAST_OF_128,
))  # fmt: skip
UNTUNED = fixed((*WORK, AT_ONCE))  # of kernels that linear.cuh is but a part of
TENSOR = Config((
    *UNTUNED,
    LEAST_OF_128,
    Knob("STAGES", (2, 3, 4), 3, "halves of a tile's items in shared memory", (2048,)),
    constant("FEW_ROWS", 16, "of a block, for up to eight tokens"),
    constant("ITEM", 64, "elements of a row that a warp stages at a time"),
    Knob("TENSOR_WARPS", (4, 8), 8, "of a block, for few tokens", (1, 8)),
    Knob("FEW_STAGES", (2, 3, 4), 3, "items that each of them stages", (1, 8)),
    Knob("FEW_AT_ONCE", (2, 3, 4), 3, "blocks of a multiprocessor, for few tokens", (1, 8)),
))  # fmt: skip
EXPERT = Config((
    *UNTUNED,
    constant("EXPERT_ROWS", 2, "of a warp"),
    constant("MOST", 8, "tokens at a time"),
))  # fmt: skip
HALF = TENSOR["ITEM"] // 2
PARTS = {"F16": 2, "BF16": 3}  # of an activation
IN_PARTS = {"F16": "f16x2", "BF16": "bf16x3"}  # the judge's name for that
NOTHING = Grid((0, 0, 0), WARP)


def few(most: int, functions: Sequence[int]) -> ConfiguredGrid:
    """A warp for some rows and all tokens, where these are at most so many, and too many for the
    next smaller of the functions."""
    fewer = max((tokens for tokens in functions if tokens < most), default=0)

    def grid(shape: Shape, config: Config) -> Grid:
        if not fewer < shape["tokens"] <= most:
            return NOTHING
        warps = config["FEW_WARPS"]
        rows = warps * config[f"ROWS_OF_{most}"]
        return Grid((-(-shape["out"] // rows), 1, 1), warps * WARP)

    return grid


def on_tensor_cores(blocks: int, config: Config) -> Grid:
    """So many blocks of threads for few tokens, with the items that they stage and the halves that
    they find, of FEW_ROWS rows each."""
    rows, warps = config["FEW_ROWS"], config["TENSOR_WARPS"]
    staged, halves = config["FEW_STAGES"] * rows * config["ITEM"] * 2, 2 * 2 * 4 * (rows + 1) * 8
    return Grid((blocks, 1, 1), warps * WARP, warps * (staged + halves))


def few_on_tensor_cores(shape: Shape, config: Config) -> Grid:
    blocks = 0 if many(shape) or not shape["tokens"] else -(-shape["out"] // config["FEW_ROWS"])
    return on_tensor_cores(blocks, config)


def many(shape: Shape) -> bool:
    """Whether there are more tokens than any of those takes."""
    return shape["tokens"] > max(FEW)


def tiles(size: int, format: str = "") -> ConfiguredGrid:
    """A block of threads for each tile of so many rows and tokens on tensor cores, where that size
    serves; with dynamic shared memory for activations in parts, if the format has them so."""

    def grid(shape: Shape, config: Config) -> Grid:
        if not many(shape) or size != (64 if shape["tokens"] < config["LEAST_OF_128"] else 128):
            return NOTHING
        rows, tokens = -(-shape["out"] // size), -(-shape["tokens"] // size)
        shared = of_parts(format, size, config) if format else 0
        return Grid((rows, tokens, 1), 2 * size, shared)

    return grid


def tiles_of_floats(shape: Shape, config: Config) -> Grid:
    """A block of threads for each tile, where tokens are many."""
    size = config["TILE"]
    rows, tokens = -(-shape["out"] // size), -(-shape["tokens"] // size)
    return Grid((rows, tokens, 1), config["STEP"] * size) if many(shape) else NOTHING


def whole_runs(shape: Shape) -> bool:
    """What `tensor` takes: rows of whole sixteens of bytes."""
    return shape["hidden"] % 8 == 0


def eights(shape: Shape, config: Config) -> Grid:
    """A thread for eight elements of the tokens, where these are many."""
    return items("tokens", "hidden", each=8)(shape) if many(shape) else NOTHING


def whole_items(shape: Shape) -> Shape:
    """Rows of activations in parts."""
    return {**shape, "hidden": -(-shape["hidden"] // TENSOR["ITEM"]) * TENSOR["ITEM"]}


def runs(shape: Shape, config: Config) -> Grid:
    return eights(whole_items(shape), config)


def in_parts(format: str) -> Callable[[Shape], int]:
    """Scratch for many tokens: their parts and, of float16, the powers of their halves."""

    def size(shape: Shape) -> int:
        elements = shape["tokens"] * whole_items(shape)["hidden"] if many(shape) else 0
        return elements * PARTS[format] // 2 + elements // HALF

    return size


def of_parts(format: str, size: int, config: Config) -> int:
    """Bytes of shared memory for tiles of so many rows and tokens."""
    staged = 2 * HALF * size * (1 + PARTS[format]) + 4 * (size if format == "F16" else 4)
    return config["STAGES"] * staged


def of_experts(shape: Shape) -> Grid:
    """A warp for some rows of each expert's matrix and all its tokens, if there are any."""
    warps = EXPERT["FEW_WARPS"]
    rows, experts = -(-shape["out"] // (EXPERT["EXPERT_ROWS"] * warps)), shape["experts"]
    return Grid((rows, experts, 1), warps * WARP) if shape["tokens"] else NOTHING


def rounded(shape: Shape) -> int:
    """Scratch for many tokens in bfloat16."""
    return -(-shape["tokens"] * shape["hidden"] // 2) if many(shape) else 0


PACKS: dict[str, Planes | Codes] = {
    "Q8_0": Planes("Q8_0", ((2, 32), (0, 2))),
    "Q4_0": Planes("Q4_0", ((2, 16), (0, 2))),
    "Q4_1": Planes("Q4_1", ((4, 16), (0, 4))),
    **{name: Codes(name) for name in ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")},
    "IQ4_NL": Planes("IQ4_NL", ((2, 16), (0, 2))),
    "IQ4_XS": Codes("IQ4_XS"),
    "MXFP4": Planes("MXFP4", ((1, 16), (0, 1))),
    **{name: Codes(name) for name in ("TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS")},
    **{name: Codes(name) for name in ("IQ2_S", "IQ3_XXS", "IQ3_S")},
}
FLOATS = ("F32", "F16", "BF16")


def launches(
    source: str, signature: str, format: str, config: Config, **grids: ConfiguredGrid
) -> tuple[Launch, ...]:
    """Functions of a source, by their names."""
    return tuple(
        Launch(source, name, signature, grid, format, config=config) for name, grid in grids.items()
    )


def of_few(functions: Sequence[int]) -> dict[str, ConfiguredGrid]:
    return {f"linear_{most}": few(most, functions) for most in functions}


BLOCK_LAUNCHES = {
    name: launches(
        "linear_blocks.cu", BLOCKS, name, BLOCKED, **of_few(FEW_OF_BLOCKS),
        linear_tiles_64=tiles(64), linear_tiles=tiles(128),
    )
    for name in PACKS
}  # fmt: skip
FLOAT_LAUNCHES = {
    name: launches(
        "linear_float.cu", OP.signature, name, FLOAT, **of_few(FEW), linear_tiles=tiles_of_floats
    )
    for name in FLOATS
}
TENSOR_LAUNCHES = {
    name: (
        *launches(ON_TENSOR, OP.signature, name, TENSOR, linear_tensor_8=few_on_tensor_cores),
        *launches(ON_TENSOR, SPLIT, name, TENSOR, split_tokens=runs),
        *launches(
            ON_TENSOR, OF_PARTS, name, TENSOR, linear_tiles_64=tiles(64, name),
            linear_tiles=tiles(128, name),
        ),
    )
    for name in PARTS
}  # fmt: skip
EXPERT_LAUNCHES = {
    name: Launch(source, "linear_experts", signature, of_experts, name, config=EXPERT)
    for source, signature, formats in (
        ("linear_experts_float.cu", linear_experts.OP.signature, FLOATS),
        ("linear_experts_blocks.cu", EXPERTS, PACKS),
    )
    for name in formats
}
BF16_STAGES: tuple[Stage, ...] = (
    *launches("linear_bf16.cu", OP.signature, "BF16", FLOAT, **of_few(FEW)),
    *launches("linear_bf16.cu", BFLOATS, "BF16", FLOAT, round_tokens=eights),
    Product(PRODUCT, many),
)
BF16_PACKS = {"F32": Bfloats("F32"), "F16": Bfloats("F16"), "BF16": None}
