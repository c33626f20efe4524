"""Machine code of CUDA kernels (SASS), which needs no GPU: load widths, waits for memory,
occupancy, instructions for each tensor core product."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from kernels.cuda.attention import attention
from kernels.cuda.fusion.fusions import FUSED
from kernels.cuda.fusion.joined import GATED_OF_BLOCKS
from kernels.cuda.linear import linear
from kernels.cuda.linear.linear import LEAST_OF_128
from kernels.cuda.runtime import sass
from kernels.cuda.runtime.launch import Launch, ours
from kernels.cuda.runtime.occupancy import blocks_at_once
from kernels.cuda.table import CUDA_KERNELS

CAPABILITIES = (75, 80, 90)
SAMPLE = [("F16", 90), ("Q4_0", 90)]  # of the quick gate
FAR = 10_000  # cycles to memory: far beyond all else that a turn takes
WEIGHT = ("weight",)
# Bytes of each load by which a lane gets an item of one row: a run of eight floats, a block of 32.
LOADS = {
    "F32": (16, 16), "F16": (16,), "BF16": (16,), "Q8_0": (16, 16, 2), "Q4_0": (16, 2),
    "Q4_1": (16, 4), "Q4_K": (16, 4, 2), "Q5_K": (16, 4, 4, 2), "Q6_K": (16, 8, 2, 2),
    "IQ4_NL": (16, 2), "MXFP4": (16, 1),
}  # fmt: skip
AT_ONCE = {"linear_1": 5, "linear_2": 2, "linear_4": 2, "linear_8": 2}  # blocks of threads
FEWER = {"Q4_1": 4, "Q5_K": 4}  # of one token: with fewer registers it would spill
GATED = (*GATED_OF_BLOCKS, *linear.PARTS)
FFN = {"tokens": 1, "hidden": 4096, "out": 11008, "out_1": 11008}
LAUNCHES = linear.FLOAT_LAUNCHES | linear.BLOCK_LAUNCHES
TILED = linear.BLOCK_LAUNCHES | linear.TENSOR_LAUNCHES  # on tensor cores
FEW = list(product(LOADS, CAPABILITIES))
NOT_HERE = pytest.mark.skipif(bool(sass.missing()), reason=sass.missing())
HEADER = "\t.headerflags\n.text.add:\n"


def sampled(cases: list[tuple]) -> list:
    """Kernels of quick runs, and the others for exhaustive ones."""
    deep = pytest.mark.exhaustive
    return [pytest.param(*c, marks=() if c in SAMPLE else deep) for c in cases]


def waits(code: sass.MachineCode) -> float:
    """Waits for memory of a warp in one iteration of the main loop over the weight."""
    loop = code.stream
    far, none = (loop.cycles(9, d, 0, WEIGHT) - loop.cycles(8, d, 0, WEIGHT) for d in (FAR, 0))
    return (far - none) / FAR


def edited(tmp_path, launch: Launch, name: str, *changes: tuple[str, str]) -> Launch:
    """The same launch with one of its sources edited."""
    text = ours()[name].read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    for file in launch.files:
        if file in ours():
            (tmp_path / file).write_text(text if file == name else ours()[file].read_text())
    return replace(launch, folder=tmp_path)


@NOT_HERE
@pytest.mark.parametrize(("format", "capability"), sampled(FEW))
def test_weights_of_few_tokens_are_streamed(format, capability):
    """One wait for memory an iteration, no register copy of loaded data, loads of the intended
    width, and occupancy of as many warps."""
    tiled = linear.PACKS.keys() & {format}
    for launch in LAUNCHES[format][: 1 if tiled else 4]:
        code = sass.read(launch, capability)
        loop, used = code.stream, code.compiled
        assert not loop.copies_of_loads, launch.name
        found = Counter(load.bytes for load in loop.loads if load.argument == "weight")
        items = sum(found.values()) // len(LOADS[format])
        assert found == Counter(LOADS[format] * items), launch.name
        least = min(AT_ONCE[launch.function], FEWER.get(format, 5))
        assert blocks_at_once(capability, 128, used.registers, used.shared) >= least, launch.name
        assert not used.spills, launch.name
        if launch.function == "linear_1":
            assert waits(code) < 1.1


@NOT_HERE
@pytest.mark.parametrize(("format", "capability"), sampled(list(product(GATED, CAPABILITIES))))
def test_gate_and_up_are_streamed(format, capability):
    """Where their activation is computed with them: as wide loads of either, no copy of what has
    just been asked for, no spill, room for two blocks of sixteen warps or of eight."""
    if format in linear.PARTS and capability < 80:
        pytest.skip("its float32 kernel serves")
    fused = next(f for f in FUSED if f.op.startswith("linear_swiglu") and f.format == format)
    code = sass.read(fused.launches[0], capability)
    used, grid = code.compiled, fused.launches[0].at(FFN)
    assert not used.spills
    fits = blocks_at_once(capability, grid.threads, used.registers, used.shared + grid.shared)
    assert fits >= 1 + (capability > 75)
    if format in linear.PARTS:
        assert min(copies_in_flight(code.multiplying)) >= 1
        return
    assert not code.stream.copies_of_loads
    for name in ("weight", "weight_1"):
        found = Counter(x.bytes for x in code.stream.loads if x.argument == name)
        assert found == Counter(LOADS[format] * (sum(found.values()) // len(LOADS[format])))


ASIDE = """if (item >= items) continue;
      const auto own = next[d];
      next[d] = load(min(item + AHEAD * CHAINS, items - 1));
      use(item, own);"""
UNDER_A_CONDITION = """if (item < items) use(item, next[d]);
      next[d] = load(min(item + AHEAD * CHAINS, items - 1));"""


@NOT_HERE
def test_broken_pipelines_are_detected(tmp_path):
    """An item copied before the next load, and an iteration with branches, are detected."""
    launch, name = LAUNCHES["Q4_0"][0], "linear.cuh"
    text = ours()[name].read_text()
    begin = text.index("  do wait_for")
    end = text.index("\n}\n", begin) + 3  # of the function

    def turning(step: str) -> sass.MachineCode:
        turn = f"const int item = first + d * CHAINS;\n      {step}"
        loop = f"""  for (int first = lane; first < items; first += AHEAD * CHAINS)
#pragma unroll
    for (int d = 0; d < AHEAD; ++d) {{
      {turn}
    }}
}}
"""
        (tmp_path / step[:14]).mkdir()
        changes = (text[begin:end], loop), ("TOKENS == 1 ? OF_ONE : AT_ONCE_OF_FEW", "2")
        return sass.read(edited(tmp_path / step[:14], launch, name, *changes), 90)

    assert len(turning(ASIDE).stream.copies_of_loads) >= 16
    conditional = turning(UNDER_A_CONDITION)
    assert not conditional.stream.copies_of_loads
    assert waits(conditional) > 1.9


@NOT_HERE
def test_narrow_loads_are_detected(tmp_path):
    """Loads of single words instead of vectors of four are detected."""
    launch = LAUNCHES["Q4_0"][0]
    wide = "const uint4 v = *reinterpret_cast<const uint4*>(from);"
    narrow = edited(
        tmp_path, launch, "portable.cuh",
        (wide, "const volatile uint32_t* w = from; const uint4 v{w[0], w[1], w[2], w[3]};"),
    )  # fmt: skip
    loads = [x.bytes for loop in sass.read(narrow, 90).loops for x in loop.loads]
    assert loads
    assert max(loads) < 16


# Functions of attention that bring pieces ahead: for each wait, in the order in which they stand,
# how many others may be under way (the first is for a run's list of cells); and blocks at once.
PIECES = {
    "attention_few": (attention.generic("F16")[0], (0, 1, 2), 3),
    "attention_tensor_few_128": (attention.tensor[1], (0, 1, 1), 2),
}
LLAMA = {"tokens": 1, "heads": 32, "kv_heads": 32, "head_dim": 128, "capacity": 32768}


def copies_in_flight(code: sass.MachineCode | sass.Loop) -> list[int]:
    """Groups of asynchronous copies to shared memory still pending after each wait."""
    return [int(x.operands[1], 16) for x in code.instructions if x.opcode == "DEPBAR.LE"]


@NOT_HERE
@pytest.mark.parametrize("name", PIECES)
def test_keys_and_values_are_prefetched(name):
    """Copies of sixteen bytes, and never a wait for all of them before computing."""
    launch, ahead, blocks = PIECES[name]
    code = sass.read(launch, 90)
    used, grid = code.compiled, launch.at(LLAMA)
    found = copies_in_flight(code)
    assert found == [*ahead] * (len(found) // len(ahead))  # for one row, for two, ...
    wide = [x for x in code.loads if x.instruction.stem == "LDGSTS" and x.bytes == 16]
    assert sum(x.is_of("kv") for x in wide) == len(wide) >= 8
    assert not used.spills
    assert blocks_at_once(90, grid.threads, used.registers, used.shared + grid.shared) >= blocks


@NOT_HERE
def test_waiting_for_all_kv_copies_is_detected(tmp_path):
    """An earlier version that waited for all copies is detected."""
    launch, _, _ = PIECES["attention_tensor_few_128"]
    changes = ("await_copies<1>();\n      __syncthreads();\n      float", "await_copies<0>();float")
    code = sass.read(edited(tmp_path, launch, launch.source, changes), 90)
    assert copies_in_flight(code)[1] == 0


@NOT_HERE
def test_chunk_sums_are_loaded_together():
    """32 of them, and the next maxima, are loaded before the first is waited for."""
    loop = sass.read(attention.MERGE, 90).stream
    assert sum(load.is_of(["scratch"]) for load in loop.loads) == 32 + 2
    far, none = (loop.cycles(9, d, 0, ["scratch"]) - loop.cycles(8, d, 0, ["scratch"])
                 for d in (FAR, 0))  # fmt: skip
    assert (far - none) / FAR < 1.1


PRODUCTS: dict[str, float] = {  # instructions of the loop for each product of tensor cores, at most
    **dict.fromkeys(linear.PACKS, 30.0),
    "Q8_0": 20.0,
    "Q4_0": 23.0,
    "Q4_K": 28.0,
    "linear_8": 77.0,  # 46 in Q4_0, of 63 in the time in which an H200 reads 16 blocks of it
    "F16": 4.0,  # 128 tokens, of both parts; an H200 has four cycles for each
    "BF16": 3.0,
    "tensor_few": 12.0,
    "tensor_many": 12.0,
}


def products_of(name: str) -> list[Launch]:
    if name in TILED:
        return [TILED[name][-1]]
    if name == "linear_8":
        return [launches[1] for launches in linear.BLOCK_LAUNCHES.values()]
    return [x for x in attention.tensor if x.function.startswith(f"attention_{name}_")]


@NOT_HERE
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PRODUCTS)
def test_instructions_per_tensor_core_product_are_bounded(name):
    """The number of instructions for each tensor core product is bounded."""
    for launch in products_of(name):
        loop = sass.read(launch, 90).multiplying
        assert len(loop.instructions) / loop.products <= PRODUCTS[name], launch.name


@NOT_HERE
@pytest.mark.parametrize(("format", "capability"), sampled(list(product(TILED, (80, 90)))))
def test_tiles_are_prefetched(format, capability):
    """Copies of sixteen bytes overlap products; operands are loaded by ldmatrix; nothing is
    spilled, and the intended number of blocks fits a multiprocessor."""
    copying = [x for x in TILED[format] if x.function not in ("linear_1", "split_tokens")]
    steps = 8, 64, LEAST_OF_128.default
    for launch, tokens, least in zip(copying, steps, (2, 3, 1), strict=True):
        code = sass.read(launch, capability)
        grid = launch.at({"tokens": tokens, "hidden": 4096, "out": 4096})
        threads, loop, used = grid.threads, code.multiplying, code.compiled
        copies = [load for load in loop.loads if load.instruction.stem == "LDGSTS"]
        assert min(copies_in_flight(loop)) >= 1, launch.name
        assert max(load.bytes for load in copies) == 16
        assert loop.count("LDSM") >= 2
        assert not used.spills, launch.name
        shared = used.shared + grid.shared
        assert blocks_at_once(capability, threads, used.registers, shared) >= least, launch.name


@NOT_HERE
def test_waiting_for_all_tile_copies_is_detected(tmp_path):
    launch = LAUNCHES["Q4_0"][-1]
    whole = ("await_copies<STAGES - 2>", "await_copies<0>")
    code = sass.read(edited(tmp_path, launch, "linear_blocks_tile.cuh", whole), 90)
    assert set(copies_in_flight(code.multiplying)) == {0}


# What goes through keys and values, or what is made of them, in F16: blocks at once, at least.
OF_CACHES = {"attention_received": 3, "stripe_sums": 4, "pattern_attention": 2, "page_scores": 4,
             "kv_keep": 5, "attention_kivi": 2, "attention_minicache": 2}  # fmt: skip


@NOT_HERE
@pytest.mark.exhaustive
@pytest.mark.parametrize("op", OF_CACHES)
def test_kv_caches_are_read_16_bytes_at_once(op):
    """The last launch of each op loads 16 bytes at once, spills nothing and fits."""
    kernel = next(k for k in CUDA_KERNELS if (k.op, k.format) == (op, "F16"))
    launch = kernel.launches[-1]
    code, threads = sass.read(launch, 90), 256 if op in ("page_scores", "kv_keep") else 128
    assert max(load.bytes for load in code.loads) == 16
    used = code.compiled
    assert not used.spills
    assert blocks_at_once(90, threads, used.registers, used.shared) >= OF_CACHES[op]


def line(address: int, text: str, control: int) -> str:
    """An instruction in nvdisasm's format; `control` are its bits from the 105th on."""
    return (
        f"        /*{address:04x}*/  {text} ;  /* 0x{0:016x} */\n  /* 0x{control << 41:016x} */\n"
    )


def control(stall: int = 1, sets: int = 7, waits: tuple[int, ...] = ()) -> int:
    return stall | sets << 5 | 7 << 8 | sum(1 << 11 + i for i in waits)


CODE = HEADER + "".join((
    line(0x00, "LDC.64 R2, c[0x0][0x210]", control(sets=0)),
    line(0x10, "ULDC.64 UR4, c[0x0][0x208]", control()),
    line(0x20, "IMAD.WIDE R4, R0, 0x10, R2", control(waits=(0,))),
    ".L_x_1:\n",
    line(0x30, "LDG.E.128.CONSTANT R8, desc[UR4][R4.64]", control(sets=1)),
    line(0x40, "@!P0 LDG.E.U16 R6, desc[UR4][R4.64+0x10]", control(sets=2)),
    line(0x50, "IMAD.MOV.U32 R12, RZ, RZ, R9", control(stall=4, waits=(1,))),
    line(0x60, "FFMA R13, R12, R6, R13", control(waits=(2,))),
    line(0x70, "MOV R14, R13", control()),
    line(0x80, "@P0 BRA `(.L_x_1)", control(stall=5)),
    line(0x90, "EXIT", control()),
))  # fmt: skip


def test_nvdisasm_output_is_parsed():
    """Opcodes, registers, widths, scoreboards, loops and copies, worked out by hand; an iteration
    of a warp in cycles: loads are issued at 0 and 1, the copy waits until 100, the product one
    cycle less than until 1 + 100, and all issues take 4 + 1 + 1 + 5 more."""
    compiled = sass.Compiled(b"", 16, 0, 0)
    launch = Launch("add.cu", "add", "x: f32[n] -> out: f32[n]", lambda shape: None)
    code = sass.MachineCode(launch, 90, compiled, *sass.parsed(CODE)["add"])
    (loop,) = code.loops
    assert [load.argument for load in code.loads] == ["x", "x"]
    assert [load.bytes for load in loop.loads] == [16, 2]
    wide, narrow, copy, *_ = loop.instructions
    assert wide.writes == {"R8", "R9", "R10", "R11"}
    assert (narrow.predicate, narrow.sets, copy.waits, copy.stall) == ("@!P0", 2, {1}, 4)
    assert loop.copies_of_loads == (copy,)
    assert loop.cycles(2, 100, 0, ["x"]) - loop.cycles(1, 100, 0, ["x"]) == 100 + 4 + 1 + 1 + 5


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks"),
    [
        (90, 128, 32, 0, 16),  # 64 warps
        (90, 128, 80, 1056, 6),  # 16,384 registers of a quarter hold 6 warps of 2,560
        (90, 128, 255, 0, 2),
        (90, 128, 32, 100 << 10, 2),  # 228 KiB hold two of 101
        (75, 32, 16, 0, 16),  # blocks
        (80, 1024, 64, 0, 1),
        (80, 1024, 65, 0, 0),  # 72 registers of 1,024 threads are more than there are
        (103, 128, 80, 1056, 6),  # a newer one has what the newest known has
    ],
)
def test_occupancy(capability, threads, registers, shared, blocks):
    """Occupancy, worked out by hand from the programming guide's tables."""
    assert blocks_at_once(capability, threads, registers, shared) == blocks
