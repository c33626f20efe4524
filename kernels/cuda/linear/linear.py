"""linear on a GPU. Up to eight tokens are multiplied by some rows of the weight per warp (functions
linear_1 to linear_8), more tokens in tiles; the grids decide which function runs. All sum in one
order (linear.cuh).

Block formats are packed (packing.py) and multiplied by activations in int8 blocks; floats are as in
the file. `tensor` multiplies F16 and BF16 by activations split into parts (linear_tensor.cuh),
which are computed before tiles. `bf16` has floats rounded to bfloat16, and many tokens multiplied
by the device's library.
"""

from collections.abc import Callable, Mapping

from kernels.cuda.formats.packing import Bfloats, Codes, Planes
from kernels.cuda.runtime.launch import Grid, Launch, items
from kernels.cuda.runtime.product import Product, Stage
from reference import linear_experts
from reference.linear import OP
from reference.op import Shape

BLOCKS = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: format[out hidden] -> out: f32[tokens out]"
)
BFLOATS = "x: f32[tokens hidden] -> scratch: u16[tokens hidden]"
PRODUCT = "scratch: u16[tokens hidden], weight: u16[out hidden] -> out: f32[tokens out]"
ON_TENSOR_CORES = "linear_tensor.cu"
SPLIT = "x: f32[tokens hidden] -> scratch: f32[tokens hidden]"  # as large as `in_parts` says
OF_PARTS = OP.signature.replace(", weight", ", scratch: f32[tokens hidden], weight")
EXPERTS = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " ends: i32[experts], weight: format[held out hidden], slots: i32[experts]"
    " -> out: f32[tokens out]"
)
FEW = {1: 2, 2: 2, 4: 4, 8: 4}  # rows of a warp, by the maximum number of tokens
FEW_OF_BLOCKS = {1: 2, 8: 4}  # those of block formats, whose function of eight uses tensor cores
FEW_WARPS, WARP = 4, 32
FEW_IN_PARTS = {8: 4}
TENSOR_WARPS = 8
PARTS = {"F16": 2, "BF16": 3}  # of an activation
IN_PARTS = {"F16": "f16x2", "BF16": "bf16x3"}  # the judge's name for that
ITEM, HALF = 64, 32  # elements
FEW_STAGES, STAGES = 3, 3  # items of few tokens, and halves of tiles, staged in shared memory
LEAST_OF_128 = 257  # tokens below which tiles of 128 would leave multiprocessors idle
NOTHING = Grid((0, 0, 0), WARP)
Tiles = Callable[[Shape], Grid]


def few(most: int, rows_of_warp: Mapping[int, int]) -> Callable[[Shape], Grid]:
    """A warp for some rows and all tokens, where these are at most so many, and too many for the
    next smaller function."""
    fewer = max((tokens for tokens in rows_of_warp if tokens < most), default=0)

    def grid(shape: Shape) -> Grid:
        if not fewer < shape["tokens"] <= most:
            return NOTHING
        rows = FEW_WARPS * rows_of_warp[most]
        return Grid((-(-shape["out"] // rows), 1, 1), FEW_WARPS * WARP)

    return grid


def on_tensor_cores(blocks: int) -> Grid:
    """So many blocks of threads for few tokens, with the items that they stage and the halves that
    they find, 16 rows of each."""
    staged, halves = FEW_STAGES * 16 * ITEM * 2, 2 * 2 * 4 * (16 + 1) * 8
    return Grid((blocks, 1, 1), TENSOR_WARPS * WARP, TENSOR_WARPS * (staged + halves))


def few_on_tensor_cores(shape: Shape) -> Grid:
    return on_tensor_cores(few(8, FEW_IN_PARTS)(shape).blocks[0])


def many(shape: Shape) -> bool:
    """Whether there are more tokens than any of those takes."""
    return shape["tokens"] > max(FEW)


def tiles(size: int, least: int = 0, most: int = 2**31, shared: int = 0) -> Tiles:
    """A block of threads for each tile of so many rows and tokens, for `least` to `most` tokens;
    with `shared` bytes of dynamic shared memory."""

    def grid(shape: Shape) -> Grid:
        if not many(shape) or not least <= shape["tokens"] <= most:
            return NOTHING
        rows, tokens = -(-shape["out"] // size), -(-shape["tokens"] // size)
        return Grid((rows, tokens, 1), 2 * size, shared)

    return grid


def whole_runs(shape: Shape) -> bool:
    """What `tensor` takes: rows of whole sixteens of bytes."""
    return shape["hidden"] % 8 == 0


def eights(shape: Shape) -> Grid:
    """A thread for eight elements of the tokens, where these are many."""
    return items("tokens", "hidden", each=8)(shape) if many(shape) else NOTHING


def whole_items(shape: Shape) -> Shape:
    """Rows of activations in parts."""
    return {**shape, "hidden": -(-shape["hidden"] // ITEM) * ITEM}


def runs(shape: Shape) -> Grid:
    return eights(whole_items(shape))


def in_parts(format: str) -> Callable[[Shape], int]:
    """Scratch for many tokens: their parts and, of float16, the powers of their halves."""

    def size(shape: Shape) -> int:
        elements = shape["tokens"] * whole_items(shape)["hidden"] if many(shape) else 0
        return elements * PARTS[format] // 2 + elements // HALF

    return size


def of_parts(format: str, size: int) -> int:
    """Bytes of shared memory for tiles of so many rows and tokens."""
    return STAGES * (2 * HALF * size * (1 + PARTS[format]) + 4 * (size if format == "F16" else 4))


def of_experts(shape: Shape) -> Grid:
    """A warp for two rows of each expert's matrix and all its tokens, if there are any."""
    rows, experts = -(-shape["out"] // (2 * FEW_WARPS)), shape["experts"]
    return Grid((rows, experts, 1), FEW_WARPS * WARP) if shape["tokens"] else NOTHING


def rounded(shape: Shape) -> int:
    """Scratch for many tokens in bfloat16."""
    return -(-shape["tokens"] * shape["hidden"] // 2) if many(shape) else 0


def launches(
    source: str, signature: str, format: str, rows_of_warp: Mapping[int, int], **tiled: Tiles
) -> tuple[Launch, ...]:
    return (
        *(
            Launch(source, f"linear_{most}", signature, few(most, rows_of_warp), format)
            for most in rows_of_warp
        ),
        *(Launch(source, name, signature, grid, format) for name, grid in tiled.items()),
    )


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

BLOCK_LAUNCHES = {
    name: launches(
        "linear_blocks.cu", BLOCKS, name, FEW_OF_BLOCKS,
        linear_tiles_64=tiles(64, most=LEAST_OF_128 - 1),
        linear_tiles=tiles(128, least=LEAST_OF_128),
    )
    for name in PACKS
}  # fmt: skip
FLOAT_LAUNCHES = {
    name: launches("linear_float.cu", OP.signature, name, FEW, linear_tiles=tiles(64))
    for name in FLOATS
}
TENSOR_LAUNCHES = {
    name: (
        Launch(ON_TENSOR_CORES, "linear_tensor_8", OP.signature, few_on_tensor_cores, name),
        Launch(ON_TENSOR_CORES, "split_tokens", SPLIT, runs, name),
        *launches(
            ON_TENSOR_CORES, OF_PARTS, name, {},
            linear_tiles_64=tiles(64, most=LEAST_OF_128 - 1, shared=of_parts(name, 64)),
            linear_tiles=tiles(128, least=LEAST_OF_128, shared=of_parts(name, 128)),
        ),
    )
    for name in PARTS
}  # fmt: skip
EXPERT_LAUNCHES = {
    name: Launch(source, "linear_experts", signature, of_experts, name)
    for source, signature, formats in (
        ("linear_experts_float.cu", linear_experts.OP.signature, FLOATS),
        ("linear_experts_blocks.cu", EXPERTS, PACKS),
    )
    for name in formats
}
BF16_STAGES: tuple[Stage, ...] = (
    *(Launch("linear_bf16.cu", f"linear_{n}", OP.signature, few(n, FEW), "BF16") for n in FEW),
    Launch("linear_bf16.cu", "round_tokens", BFLOATS, eights, "BF16"),
    Product(PRODUCT, many),
)
BF16_PACKS = {"F32": Bfloats("F32"), "F16": Bfloats("F16"), "BF16": None}
