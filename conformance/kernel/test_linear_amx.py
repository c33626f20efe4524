"""linear on emulated AMX tiles: the kernels judged, and compared with vector kernels."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.cross_compile import called, python_for
from conformance.support.depth import DEEP
from conformance.support.machine_kernels import HERE, inputs_of, run
from kernels.call import call
from kernels.cpu.attention import attention_amx
from kernels.cpu.formats.layouts import GRIDS, LAYOUTS
from kernels.cpu.linear import linear_amx, linear_amx_bf16
from kernels.cpu.linear.linear_amx_slices import TILES, TOGETHER
from kernels.cpu.linear.linear_amx_superblocks import HALVES, WHOLE
from kernels.cpu.runtime.share import Share, pack_words
from kernels.guard import at_page_end
from kernels.judge import judge
from kernels.kernel import Kernel
from kernels.knob import array_of
from kernels.table import AMX_BF16, AMX_INT8, find
from kernels.trial import EMULATED_MOST, held, laws_of
from reference.formats import FORMATS

# One of each kind of layout, since each takes long to compile; all of them in deep runs, and few
# where the CPU has tiles and the same kernels are tried on those.
TILES_HERE = not find("linear/cpu/amx/Q8_0").missing()
pytestmark = [] if TILES_HERE else pytest.mark.exhaustive
LIKES = {"Q4_K"} if TILES_HERE else {"Q8_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS"}


def emulated(variant: str, shares: dict[str, Share], formats: set[str]) -> list[Kernel]:
    """A variant's kernels in these formats, on emulated tiles."""
    return [
        replace(find(f"{variant}/{kind}"), share=share, requires=frozenset())
        for kind, share in shares.items()
        if kind in formats or DEEP
    ]


FLOATING = {"F32", "F16", "BF16"}
INT8 = emulated("linear/cpu/amx", linear_amx.EMULATED_SHARES, LIKES)
BF16 = emulated("linear/cpu/amx_bf16", linear_amx_bf16.EMULATED_SHARES, {"Q4_K"} | FLOATING)
FLOATS = [kernel for kernel in BF16 if kernel.fewest == 1]
ATTENTION = emulated("attention/cpu/amx_bf16", attention_amx.EMULATED_SHARES, LIKES | {"F16"})
TOKENS, ALONE = TILES[1] * 16, linear_amx.TILES_FROM.default - 1
X86 = llvm.get_process_triple().startswith("x86_64")
each_kernel = pytest.mark.parametrize(
    "kernel", INT8 + BF16, ids=lambda k: f"{k.variant}-{k.format}"
)


@pytest.mark.parametrize("kernel", [*INT8, *BF16, *ATTENTION], ids=lambda k: k.name)
def test_kernels_pass_their_trial(kernel):
    """Everything that certifies a kernel holds on emulated tiles: bounds, threads, memory."""
    op = kernel.spec
    costs = [(case, op.cost(case.shape, case.format)) for case in op.quick_cases(kernel.format)]
    for case, cost in costs:
        if cost.bytes + cost.operations > EMULATED_MOST or not kernel.takes(case.shape):
            continue
        verdict = judge(kernel, case)
        assert verdict.passed, f"{case.describe()}: {verdict.failure}"


# Around the tile's 16 tokens, a panel's end, and what a panel holds of hidden.
SHAPES = [
    *({"tokens": t, "hidden": 96, "out": 33} for t in (ALONE, ALONE + 1, 15, 16, 17, 32, 33, 49)),
    {"tokens": 20, "hidden": 32 * 65, "out": 17},
    {"tokens": 17, "hidden": 32 * 513, "out": 17},
    {"tokens": 9, "hidden": 32 * 201, "out": 16 * TOGETHER + 5},
    {"tokens": TOKENS + 17, "hidden": 32 * 33, "out": 17},
    # several batches of groups, and superblocks that do not fit one panel
    {"tokens": 33, "hidden": 256, "out": 16 * (2 * TOGETHER + 1) + 5},
    {"tokens": 113, "hidden": 32 * 200, "out": 16 * TOGETHER + 5},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kernel", INT8, ids=lambda k: k.format)
def test_bits_equal_the_vector_kernels(kernel, shape):
    """Tiles have the bits of the best vector variant on this machine."""
    alike = ("linear", kernel.format, kernel.activations)
    vectors = next(
        k for k in HERE if (k.op, k.format, k.activations) == alike and k.variant != "amx"
    )
    for values in ("normal", "large"):
        inputs = inputs_of(kernel, values=values, **shape)
        assert call(kernel, inputs)["out"].tobytes() == call(vectors, inputs)["out"].tobytes()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@each_kernel
def test_batched_tokens_have_the_bits_of_each_alone(kernel, shape):
    """At every panel boundary, each token has the same bits."""
    inputs = inputs_of(kernel, **shape)
    together = run(kernel, **inputs)
    picked = {0, ALONE, 15, 16, 31, 32, TOKENS - 1, TOKENS, shape["tokens"] - 1}
    for t in picked & set(range(shape["tokens"])):
        alone = run(kernel, **{**inputs, "x": inputs["x"][t : t + 1]})
        assert_array_equal(alone.view(np.uint32), together[t : t + 1].view(np.uint32))


@pytest.mark.parametrize("kernel", ATTENTION, ids=lambda k: k.format)
def test_attention_on_tiles_keeps_its_laws(kernel):
    """A token's and a head's bits do not depend on others, nor on where cells are."""
    for law in laws_of(kernel):
        verdict = held(kernel, law, kernel.spec.case({"head_dim": 64}, format=kernel.format))
        assert verdict.passed, verdict.failure


@pytest.mark.parametrize("what", [np.inf, -np.inf, np.nan])
def test_non_finite_values_reach_only_tokens_that_see_them(what):
    """Tokens from the cell on are non-finite; for earlier ones a zero weight hides it."""
    (kernel,) = (k for k in ATTENTION if k.format == "F16")
    inputs = inputs_of(kernel, tokens=40, heads=2, kv_heads=1, head_dim=32, capacity=40)
    inputs |= {"spans": np.array([[0, 0, t + 1] for t in range(40)], np.int32)}
    inputs["v"].view(np.float16)[inputs["lists"][0, 21], 5] = what
    out = run(kernel, **inputs)
    assert np.isfinite(out[:21]).all()
    assert not np.isfinite(out[21:, :, 5]).any()
    assert np.isfinite(np.delete(out, 5, axis=2)).all()


@pytest.mark.parametrize("hidden", [1, 31, 32, 33, 65])
@pytest.mark.parametrize("kernel", FLOATS, ids=lambda k: k.format)
def test_partial_tiles_equal_zero_padding(kernel, hidden):
    """A row that ends inside a tile equals one padded with zeros."""
    layout, inputs = FORMATS[kernel.format], inputs_of(kernel, tokens=5, hidden=hidden, out=17)
    wide = -hidden % 32
    x = np.pad(inputs["x"], [(0, 0), (0, wide)])
    weight = np.pad(inputs["weight"], [(0, 0), (0, wide * layout.block_bytes)])
    assert_array_equal(run(kernel, x=x, weight=weight), run(kernel, **inputs))


@each_kernel
def test_nothing_beyond_the_packed_weight_is_read(kernel):
    """Its last byte may be the last of mapped memory."""
    for tokens, out in itertools.product((1, ALONE + 1), (1, 16, 17)):
        inputs = inputs_of(kernel, tokens=tokens, hidden=96, out=out)  # a multiple of its block
        hidden = inputs["x"].shape[1]
        values = {
            "x": inputs["x"],
            "q": np.ones((tokens, hidden), np.int8),
            "scale": np.ones((tokens, hidden // 32), np.float32),
            "total": np.full((tokens, hidden // 32), 32, np.int32),
            "weight": at_page_end(kernel.pack(inputs["weight"])),
            "tuning": array_of(kernel.knobs, {}),
            "out": np.full((tokens, out), np.nan, np.float32),
        }
        kernel.share(pack_words(kernel.share.signature, values))
        assert np.isfinite(values["out"]).all()


# The integers of a superblock's parts, as files hold them.
INTEGERS = {
    "Q2_K": (0, 15), "Q3_K": (-32, 31), "Q4_K": (0, 63), "Q5_K": (0, 63), "Q6_K": (-128, 127),
    "IQ4_XS": (-32, 31), "TQ1_0": (1, 1), "TQ2_0": (1, 1), **dict.fromkeys(GRIDS, (1, 31)),
}  # fmt: skip


@pytest.mark.parametrize("format", [f for f, layout in LAYOUTS.items() if layout.blocks > 1])
def test_a_code_times_its_integer_fits_a_tile(format):
    """Products are bytes, or 128 times a byte and seven bits more."""
    layout = LAYOUTS[format]
    codes = (min(layout.table, default=-layout.zero_point), layout.widest - layout.zero_point)
    times = WHOLE.get(format, HALVES)
    products = [code * integer * min(times) for code in codes for integer in INTEGERS[format]]
    if times == HALVES:
        products = [p >> 7 for p in products]
    assert min(products) >= -128
    assert max(products) <= 127


def test_a_process_without_permission_lacks_amx(monkeypatch):
    """A kernel can run if the CPU has its features and the system permits tiles."""
    kernel = Kernel("linear", "amx", linear_amx.SHARES["Q8_0"], "Q8_0", requires=AMX_INT8)
    monkeypatch.setattr("kernels.kernel.cpu_features", lambda: AMX_INT8 - {"amx-tile"})
    assert kernel.missing() == ["amx-tile"]
    monkeypatch.setattr("kernels.kernel.cpu_features", lambda: AMX_INT8 | AMX_BF16)
    for granted, missing in ((True, []), (False, ["the system's permission to use amx-tile"])):
        monkeypatch.setattr("kernels.cpu.isa.amx.request", lambda granted=granted: granted)
        assert kernel.missing() == missing


ASSEMBLY = """
from kernels.cpu.linear import linear_amx, linear_amx_bf16
from kernels.cpu.runtime.object_code import assembly
for share in (linear_amx.SHARES["Q8_0"], *map(linear_amx_bf16.SHARES.get, ("F32", "Q4_0"))):
    print(assembly(share.function))
print("superblocks")
print(assembly(linear_amx.SHARES["Q4_K"].function))
"""


def basic_blocks(text: str) -> Iterator[tuple[str, list[str], str]]:
    """Basic blocks: the label before each, its instructions' names, and the final jump's target."""
    label, names = "", list[str]()
    for line in text.splitlines():
        if found := re.match(r"(\.?\w+):", line):
            yield label, names, ""
            label, names = found[1], []
        elif found := re.match(r"\t([a-z]\w*)(?:\t([^#]*))?", line):
            names.append(found[1])
            if found[1].startswith("j"):
                yield label, names, (found[2] or "").strip()
                label, names = "", []
    yield label, names, ""


def instructions_of(text: str, word: str, *, loops: bool = False) -> list[list[str]]:
    """The instructions of the basic blocks, or only of loops, that contain `word`."""
    return [
        names
        for label, names, target in basic_blocks(text)
        if (not loops or (target and target == label)) and any(n.startswith(word) for n in names)
    ]


@pytest.mark.skipif(not X86, reason="this is no x86-64")
def test_inner_loops_consist_of_tile_instructions(tmp_path):
    """Compiled for a CPU with AMX on any CPU. Four blocks of bytes take three vector instructions
    for each of sixteen tokens, and fewer moves than dot products. Pairs take a tile load for each
    product with two tiles of tokens, and no vector instructions except those that dequantise
    blocks: 32 products with scales for a tile. Eight tokens' dots in a superblock and their
    products with mins are converted once, and stay in registers."""
    features = AMX_INT8 | AMX_BF16 | {"f16c"}
    text = python_for("sapphirerapids", features, ASSEMBLY, ASSAY_CACHE=str(tmp_path))
    assert not [f for f in called(text) if f.startswith("__")]
    text, superblocks = text.split("\nsuperblocks\n")

    (bytes_,) = instructions_of(text, "tdpbssd", loops=True)
    names = ("tdpbssd", "tileloadd", "tilestored", "vcvtdq2ps", "vmulps", "vfmadd", "vcvtph2ps")
    counts = [sum(name.startswith(n) for name in bytes_) for n in names]
    assert counts == [4, 8, 4, 64, 64, 64, 0]
    assert sum(name.startswith("vmov") for name in bytes_) < 32
    assert not [name for name in bytes_ if name.startswith("call")]

    pairs = [p for p in instructions_of(text, "tdpbf16ps") if p.count("tdpbf16ps") == 4]
    assert pairs
    assert {p.count("tileloadd") for p in pairs} == {4}
    assert not [name for p in pairs for name in p if name.startswith(("v", "call", "tilestored"))]

    added = [p for p in instructions_of(superblocks, "vcvtdq2ps") if p.count("vpslld") == 8]
    assert added
    assert {(p.count("vcvtdq2ps"), p.count("vmulps")) for p in added} == {(16, 8)}
    assert max(sum(name.startswith("vmov") for name in p) for p in added) < 32

    lowered = instructions_of(text, "vcvtne2ps2bf16")
    whole = [p for p in lowered if p.count("vcvtne2ps2bf16") >= 16]
    assert whole
    for names in whole:
        tiles = names.count("vcvtne2ps2bf16") // 16
        assert sum(name.startswith("vfmadd") for name in names) == 32 * tiles
