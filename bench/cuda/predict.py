"""What a kernel should take on a GPU that nobody has at hand, from its machine code and the GPU's
published figures: a model, not a measurement.

A launch is as long as the longest of four things take, wave by wave of the blocks that the GPU
holds at once:

- memory: its bytes at the rate at which memory can be read;
- latency: a warp goes through its loop in order and waits where the machine code waits (sass.py);
  by Little's law the bytes on their way, over the time that one waits for them, are the rate; who
  brings pieces to shared memory waits for these (staged.py);
- issue: instructions, of which a scheduler issues one a cycle;
- tensor cores: products, at their peak.

Before and behind them stand the launch, the first bytes' way and the adding up. What is assumed
beside published figures are the five constants below, each with its reason; `--results` holds a
prediction against what was measured (docs/guide/gpu.md).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod

from bench.cuda.cases import OpCase
from bench.cuda.clock import Ceilings
from bench.cuda.goals import TINY
from bench.cuda.jobs import main_cases
from bench.cuda.measure import row_of
from bench.cuda.staged import Paced, paced, walk_of
from bench.cuda.step import CONTEXT, Step
from bench.race.results import Measurement
from data.gpus import GpuModel
from data.shapes import ModelShape, read
from kernels.cuda.runtime import sass
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import WARP, Grid, Launch
from kernels.cuda.runtime.occupancy import PARTITIONS, blocks_at_once
from kernels.cuda.runtime.sass import Loop, MachineCode
from kernels.cuda.table import CUDA_KERNELS
from reference.op import Shape

READ = 0.92  # of the published bandwidth, what kernels reach that only read: refreshes, turnarounds
QUEUE = 3.0  # times as long as in idle memory a load takes where memory is all but busy
LAUNCH = 1.3e-6  # seconds between kernels of a graph: the end of one, the beginning of the next
DRAIN = 600.0  # cycles behind a block's last item: chains are added, one after the other
TURNS = 6  # of a loop after which one more takes as long as the one before
BETWEEN = 40  # halvings, when the share of memory that is busy is looked for
MMA = {"16816": 2 * 16 * 8 * 16, "16832": 2 * 16 * 8 * 32, "1688": 2 * 16 * 8 * 8,
       "8816": 2 * 8 * 8 * 16}  # operations of an instruction, by what its name says  # fmt: skip


PRODUCTS = {"f16x2": 2, "bf16x3": 3}  # of tensor cores for one of float32, by activations


def ceilings(gpu: GpuModel) -> Ceilings:
    """As a probe would find them."""
    reading = READ * gpu.bandwidth * 1e9
    return Ceilings(
        gpu.name, reading, reading, gpu.half * 1e12, LAUNCH, int(gpu.cache * 2**20),
        lacks="published figures, not probed",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Predicted:
    """A launch: `seconds`, and what makes it so long (`limit`: launch, memory, latency, issue or
    tensor cores). `flight`: bytes on their way to a multiprocessor at once, of which `needed` would
    keep memory busy; `at_once`: blocks that a multiprocessor may hold, `waves` of them."""

    launch: str
    seconds: float
    limit: str
    at_once: int
    waves: float
    flight: float = 0.0
    needed: float = 0.0
    registers: int = 0

    @property
    def whole(self) -> bool:
        """Whether waiting for memory is in it: else it takes at least so long."""
        return self.flight > 0 or self.limit in ("issue", "tensor cores")


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch has to get through: `bytes` of memory, of which those of arrays `cold` come
    from there alone, and `operations`."""

    bytes: float
    operations: float
    cold: tuple[str, ...] = ()


def of_launch(
    gpu: GpuModel, code: MachineCode, grid: Grid, work: Work, walk: Paced | None = None
) -> Predicted:
    """One launch of a kernel; `walk` is how it goes through pieces, if it does."""
    shared = code.compiled.shared + grid.shared
    at_once = blocks_at_once(gpu.capability, grid.threads, code.compiled.registers, shared)
    blocks, warps = prod(grid.blocks), -(-grid.threads // WARP)
    waves = blocks / (max(at_once, 1) * gpu.multiprocessors)
    reading = READ * gpu.bandwidth * 1e9
    total, limits = 0.0, dict.fromkeys(("memory", "latency", "issue", "tensor cores"), 0.0)
    stream = _streaming(code, work)
    flight = needed = 0.0
    left = blocks
    while left > 0:
        now = min(left, max(at_once, 1) * gpu.multiprocessors)
        active, share = min(now, gpu.multiprocessors), now / blocks
        own = -(-now // gpu.multiprocessors) * warps  # of the fullest multiprocessor
        times = dict.fromkeys(limits, 0.0)
        times["memory"] = share * work.bytes / reading
        if walk:
            busy: Callable[[float], float] = partial(_of_walk, gpu, walk)
            times["issue"] = gpu.seconds(walk.issued * -(-own // PARTITIONS))
            times["latency"] = busy(balance(times["memory"], busy))
            if not flight:
                flight = own / warps * walk.bytes * gpu.seconds(gpu.latency * QUEUE) / busy(1.0)
                needed = reading / active * gpu.seconds(gpu.latency * QUEUE)
        elif not stream:
            times |= _arithmetic(gpu, code, work, share, own)
        else:
            turns = max(1, math.ceil(_turns(stream, work, blocks * warps)))
            near = gpu.l2 if left == blocks else gpu.l1
            busy = of_warp(gpu, stream, turns, work.cold, near)
            issue = gpu.seconds(turns * len(stream.instructions) * -(-own // PARTITIONS))
            times["issue"] = max(times["issue"], issue)
            times["latency"] = busy(balance(times["memory"], busy))
            if not flight:
                each = sum(load.bytes for load in stream.loads if load.is_of(work.cold))
                flight = own * WARP * each * turns * gpu.seconds(gpu.latency * QUEUE) / busy(1.0)
                needed = reading / active * gpu.seconds(gpu.latency * QUEUE)
        longest = max(times, key=lambda name: times[name])
        total += times[longest]
        limits[longest] += times[longest]
        left -= now
    ends = LAUNCH + gpu.seconds(gpu.latency + DRAIN)
    limits["launch"] = ends
    limit = max(limits, key=lambda name: limits[name])
    return Predicted(
        code.launch.name, ends + total, limit, at_once, waves, flight, needed,
        code.compiled.registers,
    )  # fmt: skip


def _of_walk(gpu: GpuModel, walk: Paced, busy: float) -> float:
    """Seconds that a block takes, by how busy memory is."""
    return walk.seconds(gpu, gpu.latency * (1 + (QUEUE - 1) * busy))


def of_warp(
    gpu: GpuModel, loop: Loop, turns: int, cold: Sequence[str], near: float
) -> Callable[[float], float]:
    """Seconds that a warp takes for all of its turns, by how busy memory is: the busier the longer
    a load waits, up to QUEUE times."""

    def seconds(busy: float) -> float:
        far = gpu.latency * (1 + (QUEUE - 1) * busy)
        few = loop.cycles(min(turns, TURNS), far, near, cold)
        if turns > TURNS:
            few += (turns - TURNS) * (few - loop.cycles(TURNS - 1, far, near, cold))
        return gpu.seconds(few)

    return seconds


def balance(memory: float, seconds: Callable[[float], float]) -> float:
    """How busy memory is, 0 to 1, by whoever takes `seconds(busy)` for what it could give in
    `memory` seconds: the busier it is the longer everybody waits, and asks for less."""
    low, high = 0.0, 1.0
    for _ in range(BETWEEN):
        middle = (low + high) / 2
        low, high = (middle, high) if memory > middle * seconds(middle) else (low, middle)
    return high


def _streaming(code: MachineCode, work: Work) -> Loop | None:
    """The loop that goes through the cold arrays, whose loads go into registers; None where there
    is no such one, or tensor cores do most."""
    loop = code.stream
    if loop is None or code.multiplying or any(x.instruction.sets is None for x in loop.loads):
        return None
    return loop if any(load.is_of(work.cold) for load in loop.loads) else None


def _turns(loop: Loop, work: Work, warps: int) -> float:
    """Of a warp."""
    return work.bytes / (warps * WARP * sum(x.bytes for x in loop.loads if x.is_of(work.cold)))


def _arithmetic(
    gpu: GpuModel, code: MachineCode, work: Work, share: float, warps: int
) -> dict[str, float]:
    """Seconds of a wave that issuing and tensor cores take at least."""
    loop = code.multiplying or max(code.loops, key=lambda x: x.count("FFMA"), default=None)
    count = loop and (loop.products or loop.count("FFMA"))
    if not loop or not count or not work.operations:
        return {}
    first = next((one for one in loop.instructions if one.multiplies), None)
    each = 2 * WARP if first is None else _operations(first.opcode)
    peak = gpu.int8 if first and first.stem == "IMMA" else gpu.half
    rate = gpu.clock * 1e6 * gpu.multiprocessors * min(warps, PARTITIONS)
    done = share * work.operations
    found = {"issue": done / each * len(loop.instructions) / count / rate}
    return found | ({"tensor cores": done / (peak * 1e12)} if first else {})


def _operations(opcode: str) -> int:
    """Of a product of tensor cores."""
    return next(count for name, count in MMA.items() if f".{name}." in opcode)


@cache
def code_of(launch: Launch, capability: int) -> MachineCode:
    return sass.read(launch, capability)


def of_kernel(gpu: GpuModel, kernel: CudaKernel, shape: Shape, work: Work) -> list[Predicted]:
    """Its launches that have a block at these sizes; that which reads what is cold does the work,
    or the first, and others fill or read scratch memory, if there is some, in the last cache."""
    every = [(launch, launch.at(shape)) for launch in kernel.launches]
    grids = [(launch, grid) for launch, grid in every if not grid.empty]
    main, grid = next(
        (one for one in grids if any(a.name in work.cold for a in one[0].arguments)), grids[0]
    )
    work = replace(work, operations=work.operations * PRODUCTS.get(kernel.activations, 1))
    code = code_of(main, gpu.capability)
    walk = walk_of(code, shape, grid)
    pace = paced(gpu, code, walk, grid.threads) if walk else None
    parts = [of_launch(gpu, code, grid, work, pace)]
    left = Work(4.0 * kernel.scratch(shape) if kernel.scratch else 0.0, 0.0, ("scratch",))
    near = replace(gpu, latency=gpu.l2)
    for launch, grid in grids:
        if launch is main:
            continue
        reads = any(a.name == "scratch" for a in launch.arguments)
        parts.append(of_launch(
            near, code_of(launch, gpu.capability), grid, left if reads else Work(0.0, 0.0)
        ))  # fmt: skip
    return parts


def of_case(gpu: GpuModel, kernel: CudaKernel, case: OpCase) -> tuple[Measurement, list[Predicted]]:
    """A row like that of bench.cuda.measure, its only sample what is predicted, and the launches
    that it comes from."""
    work = Work(case.cost.bytes, case.cost.operations, tuple(case.cold))
    parts = of_kernel(gpu, kernel, case.shape, work)
    row = replace(row_of(case, ceilings(gpu)), variant=kernel.variant, note="predicted")
    return replace(row, samples=(sum(part.seconds for part in parts),)), parts


def held_against(
    rows: Iterable[Measurement], measured: Iterable[Measurement]
) -> Iterator[tuple[Measurement, Measurement | None]]:
    """Each with the last measurement of the same kernel, or step, at the same sizes."""

    def key(row: Measurement) -> tuple[str, ...]:
        context = row.settings.partition(",launches=")[0]
        return row.test, row.contender, row.variant, row.format, row.shape, row.model, context

    known = {key(row): row for row in measured if row.bench == "gpu" and row.samples}
    return ((row, known.get(key(row))) for row in rows)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A `row` like those of `make gpu-check`, how many `launches` it comes from, and the `longest`
    of these."""

    row: Measurement
    launches: int
    longest: Predicted


def predictions(
    gpu: GpuModel, model: ModelShape, format: str | None = None
) -> Iterator[Prediction]:
    """What `make gpu-check` measures of a model's ops, in its order, and a whole step in each
    format that has GEMVs there."""
    wanted = [case for case in main_cases(model) if format in (None, case.format)]
    for case in wanted:
        for kernel in CUDA_KERNELS:
            if (kernel.op, kernel.format) != (case.op, case.format) or kernel.multiplies:
                continue
            if kernel.takes(case.shape) and kernel.capability <= gpu.capability:
                row, parts = of_case(gpu, kernel, case)
                yield Prediction(row, len(parts), max(parts, key=lambda part: part.seconds))
    for kind in dict.fromkeys(case.format for case in wanted if case.test == "GEMV"):
        yield of_step(gpu, model, kind)


def of_goals(gpu: GpuModel) -> list[Measurement]:
    """A row for whatever the goals of `make gpu-check` are of and the model knows."""
    llama, tiny = (read().models[name] for name in ("llama-2-7b", TINY[0]))
    return [one.row for one in (*predictions(gpu, llama), of_step(gpu, tiny, TINY[1]))]


def named(model: ModelShape) -> str:
    """What data/shapes.toml calls it."""
    return next((name for name, shape in read().models.items() if shape == model), "")


def of_step(gpu: GpuModel, model: ModelShape, format: str) -> Prediction:
    """The kernels of a decoding step of a model in one graph, as bench.cuda.step runs them."""
    step = Step(None, model, format)  # type: ignore[arg-type]  # no device: nothing is run
    parts: list[Predicted] = []
    for part, times in [*((p, model.blocks) for p in step.block_parts()),
                        *((p, 1) for p in step.end_parts())]:  # fmt: skip
        kernel, shape = part.kernel, part.shape
        cost = kernel.spec.cost(shape, kernel.format)
        cold = tuple(a.name for a in kernel.spec.inputs if a.dtype == "format")
        parts += times * of_kernel(gpu, kernel, shape, Work(cost.bytes, cost.operations, cold))
    row = Measurement(
        "gpu", "kernels of a step", target="cuda", format=format, model=named(model),
        settings=f"context={CONTEXT},launches={len(parts)}", tokens=1, bytes=step.bytes,
        samples=(sum(part.seconds for part in parts),), note="predicted", cache="cold",
    )  # fmt: skip
    row = ceilings(gpu).limit(step.bytes, 0).of(row)
    return Prediction(row, len(parts), max(parts, key=lambda part: part.seconds))
