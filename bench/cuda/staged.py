"""What a block takes that brings keys and values to shared memory piece by piece: a model, as
bench/cuda/predict.py has it for what goes to registers.

A piece sets out for its place when the piece before it there has been used, and is there a latency
later; steps use pieces in their order, one after the other. How long a step computes is read off
the machine code: turns of its loops, and once all that stands between them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from data.gpus import GpuModel
from kernels.cuda.attention import attention
from kernels.cuda.runtime.launch import WARP, Grid, Launch
from kernels.cuda.runtime.sass import SCOREBOARDS, Instruction, Loop, MachineCode
from reference.formats import FORMATS
from reference.op import Shape

BARRIER = 30  # cycles, until four warps have met


@dataclass(frozen=True, slots=True)
class Step:
    """Uses so many pieces; each thread does so many `products` of float32 for it, or none if tensor
    cores do them in so many `turns` of a loop."""

    pieces: int
    products: int = 0
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Walk:
    """A block's way: `chunks` of it, whose `steps` use pieces of `size` bytes, for which there are
    so many `places`; a thread has `rows` of queries. The first piece sets out `begin` latencies
    late: in attention those of spans, and of the list of cells."""

    chunks: int
    steps: tuple[Step, ...]
    size: int
    places: int
    rows: int = 1
    begin: int = 2


def of_pieces(shape: Shape, launch: Launch, grid: Grid) -> Walk:
    """attention_few.cu: scores of two pieces of keys, a sum for each piece of values."""
    rows, _, _ = attention.few_tiles(shape)
    cells = attention.cells_of_piece(shape, launch.format, launch.config)
    scores = Step(2, products=rows * shape["head_dim"])
    sums = Step(1, products=rows * 2 * cells)
    every = attention.CHUNK // cells
    size = cells * FORMATS[launch.format].row_bytes(shape["head_dim"])
    steps = (scores,) * (every // 2) + (sums,) * every
    return Walk(_chunks(shape, grid), steps, size, launch.config["RING"], rows)


def of_tensor(shape: Shape, launch: Launch, grid: Grid) -> Walk:
    """attention_tensor_few.cu: a chunk's keys, then its values."""
    size = attention.CHUNK * FORMATS["F16"].row_bytes(shape["head_dim"])
    steps = Step(1, turns=shape["head_dim"] // 16), Step(1)
    return Walk(_chunks(shape, grid), steps, size, 2)


def of_items(shape: Shape, launch: Launch, grid: Grid) -> Walk:
    """linear_tensor.cuh, of few tokens: items of 16 rows, of which each warp has its own."""
    warps, rows, item, stages = (
        launch.config[name] for name in ("TENSOR_WARPS", "FEW_ROWS", "ITEM", "FEW_STAGES")
    )
    size = warps * rows * FORMATS[launch.format].row_bytes(item)
    items = -(-shape["hidden"] // item)
    return Walk(-(-items // warps), (Step(1),), size, stages, begin=0)


def _chunks(shape: Shape, grid: Grid) -> int:
    """Of the block that has most."""
    return math.ceil(attention.chunks(shape) / grid.blocks[0])


WALKS = {
    "attention_few": of_pieces,
    **{f"attention_tensor_few_{n}": of_tensor for n in attention.TENSOR_HEADS},
    **dict.fromkeys(("linear_tensor_8", "linear_tensor_pair_8", "linear_tensor_trio_8"), of_items),
    **dict.fromkeys(("linear_swiglu", "linear_geglu"), of_items),
}


def walk_of(code: MachineCode, shape: Shape, grid: Grid) -> Walk | None:
    """None for a launch that copies nothing while it goes on (before sm_80 none does), or whose way
    nobody has written down."""
    found = WALKS.get(code.launch.function) if _copies(code) else None
    return found(shape, code.launch, grid) if found else None


@dataclass(frozen=True, slots=True)
class Paced:
    """A walk whose steps take so many cycles each, of a warp alone that finds its pieces there, of
    which `issued` are instructions."""

    walk: Walk
    cycles: tuple[float, ...]
    issued: float

    def seconds(self, gpu: GpuModel, far: float) -> float:
        """That a block takes, if memory is `far` cycles away."""
        used: list[float] = []  # when each piece has been
        now = self.walk.begin * far
        first = now
        for _ in range(self.walk.chunks):
            for step, cycles in zip(self.walk.steps, self.cycles, strict=True):
                for k in range(len(used), len(used) + step.pieces):
                    asked = used[k - self.walk.places] if k >= self.walk.places else first
                    now = max(now, asked + far)
                now += cycles
                used += [now] * step.pieces
        return gpu.seconds(now)

    @property
    def bytes(self) -> float:
        """Of a block."""
        return self.walk.chunks * self.walk.size * sum(step.pieces for step in self.walk.steps)


def paced(gpu: GpuModel, code: MachineCode, walk: Walk, threads: int) -> Paced:
    """By its machine code. What stands once in a chunk is dealt out to its steps; of a single step
    a turn of the loop is all, which asks for the next turn's activations."""
    if len(walk.steps) == 1 and (loop := code.multiplying):
        turn, two = (_cycles(loop.instructions * n, gpu.l1, gpu.l2) for n in (1, 2))
        return Paced(walk, (two - turn,), walk.chunks * len(loop.instructions))
    parts = list(_loops(code, walk.rows))
    widest = max(_copies(code))
    copies = next(one for one in parts if any(load.bytes == widest for load in one.loads))
    inside = {one.address for loop in code.loops for one in loop.instructions}
    first, last = (parts[i].instructions[0].address for i in (0, -1))
    once = [one for one in code.instructions if first <= one.address <= last
            and one.address not in inside]  # fmt: skip
    working = [one for one in parts if one.products or one.count("FFMA")]
    scores, sums = working[0], working[-1]
    weighs = next((one for one in parts if one.count("SHFL")), None)
    every = sum(step.pieces for step in walk.steps)
    cycles, issued = [], 0.0
    for step in walk.steps:
        share = step.pieces / every
        loop = scores if step is walk.steps[0] else sums
        turns = step.turns or math.ceil(step.products / max(1, loop.count("FFMA")))
        loaders = step.pieces * math.ceil(walk.size / (threads * copies.bytes))
        used = [(loop, turns), (copies, loaders)]
        if weighs and step is walk.steps[0]:
            used.append((weighs, math.ceil(walk.rows / (threads // WARP))))
        own = share * _cycles(once, gpu.l1) + 2 * BARRIER
        own += sum(n * _cycles(one.instructions, gpu.l1) for one, n in used)
        cycles.append(own)
        issued += share * len(once) + sum(n * len(one.instructions) for one, n in used)
    return Paced(walk, tuple(cycles), walk.chunks * issued)


def _copies(code: MachineCode) -> list[int]:
    """The bytes of each."""
    return [load.bytes for load in code.loads if load.instruction.stem == "LDGSTS"]


def _loops(code: MachineCode, rows: int) -> Iterator[Loop]:
    """Those of a chunk: from its scores to its sums, of the copy of the code that is for so many
    rows, the first for one, the next for two."""
    loops = list(code.loops)
    if code.multiplying:
        yield from loops[loops.index(code.multiplying) :]
        return
    working = [bool(x.count("FFMA")) and not x.count("SHFL") for x in loops]
    at = [i for i, x in enumerate(loops) if x.count("SHFL") and x.count("MUFU")]
    weighs = at[int(math.log2(rows))]
    before = max(i for i in range(weighs) if working[i])
    after = min(i for i in range(weighs, len(loops)) if working[i])
    yield from loops[before : after + 1]


def _cycles(instructions: Sequence[Instruction], near: float, far: float = 0.0) -> float:
    """That a warp alone takes for these, if all that raises a scoreboard takes `near` cycles, and
    loads to registers `far`, if that is more."""
    down, now = [0.0] * SCOREBOARDS, 0.0
    for one in instructions:
        now = max([now, *(down[i] for i in one.waits)])
        if one.sets is not None and one.stem not in ("LDGSTS", "LDGDEPBAR"):
            away = max(near, far) if one.stem == "LDG" else near
            down[one.sets] = max(down[one.sets], now + away)
        now += max(1, one.stall)
    return now
