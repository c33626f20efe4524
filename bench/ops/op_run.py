"""One kernel at one size, ready to be timed repeatedly.

A sample is one program of the thread team: the kernel's entries over and over, no Python between
them, long enough to hide its start. *Hot* calls find their data in the caches. *Cold* calls rotate
over copies, and before each sample the last-level cache is swept of what those leave. Inputs change
from sample to sample; outputs are filled with garbage before and some are checked after.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from bench.machine import probe
from bench.machine.limits import Limits, limits
from bench.ops.cases import CACHES
from bench.ops.workload import Workload
from bench.race.experiment import Contender, Sample
from bench.race.results import Measurement
from kernels.call import stages
from kernels.certificates import Key
from kernels.cpu.formats.packing import aligned_zeros
from kernels.cpu.isa.simd import CACHE_LINE
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.team import Program, Team
from kernels.kernel import Kernel
from kernels.shapes import empty_outputs
from kernels.tuning import starting
from reference.op import Arguments, Array

SETS = 4  # sets of inputs for hot calls, over one weight
BEYOND = 4  # times the last-level cache: at twice its size some data still came from it
COPIES = 1024  # at most, for cold calls
COPIES_BYTES = 2**28
SAMPLE_SECONDS = 1e-3  # seconds of work: starting a program costs a few microseconds
PROBES = 3  # in a run, at most
TRIES = 3  # calls that tell how long one takes
TELLING = 1e5  # bytes or operations: a smaller call is mostly start-up, and predicts nothing
ENTRIES = 4096  # in a program, at most
Teller = Callable[..., None]  # receives how much is done and, if known, of how much
CHECK_EVERY = 7  # checked samples, beginning with the first; odd, so that all SETS get their turn


class WrongOutputError(RuntimeError):
    """A kernel whose output was wrong while it was being timed."""


class TooMuchError(ValueError):
    """A case too large for this machine's memory, or with calls longer than allowed."""


@dataclass(slots=True)
class Lab:
    """Shared by benchmarks of ops: threads, the machine's limits, and the kernels' best rates.

    `most_seconds` limits one call, as predicted from smaller ones; `moved` are the bytes of the
    calls that limits are for, if not for any; `teller` gives a progress callback for probing.
    """

    team: Team
    limits: Limits
    most_seconds: float = 1.0
    moved: Sequence[int] = ()
    teller: Callable[[str], Teller] | None = None
    probed: int = 0
    _pace: dict[str, float] = field(default_factory=dict)  # seconds per byte or operation
    _packed: tuple[Any, Array | None] = (None, None)
    _sweep: Program = field(init=False)
    _swept: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._swept = {
            "repeats": 1,
            "streams": 1,
            "x": np.ones(BEYOND * self.limits.last_level() // 4, np.int32),
            "out": np.zeros(probe.STEP * self.team.n_threads, np.int32),
        }
        self._sweep = Program([(probe.READS["plain"], pack_words(probe.READ, self._swept))])

    @classmethod
    def for_calls(
        cls, team: Team, moved: Sequence[int], teller: Callable[[str], Teller],
        most_seconds: float = 1.0,
    ) -> "Lab":  # fmt: skip
        """A lab for a few calls that move so many bytes; their limits are probed if unknown."""
        found = limits((team.n_threads,), teller("probing the machine (once)"), moved=moved)
        return cls(team, found, most_seconds, moved, teller)

    def demand_feasible(self, work: Workload) -> None:
        """Raise TooMuchError for what would not fit the memory or the time."""
        kernel, shape = work.bench.kernel, work.bench.shape
        arrays = [a for a in (*kernel.spec.inputs, *kernel.spec.outputs) if a.axes]
        wanted = 3 * 4 * sum(math.prod(a.dims(shape, kernel.format)) for a in arrays)
        free = psutil.virtual_memory().available
        if wanted > free:
            raise TooMuchError(f"needs about {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
        predicted = self._pace.get(kernel.name, 0.0) * _amount(work)
        if predicted > self.most_seconds:
            cap = f"{self.most_seconds:g} s"
            raise TooMuchError(f"a call would take about {predicted:.2g} s, over the cap of {cap}")

    def learn(self, work: Workload, seconds: float) -> None:
        """Remember the kernel's best rate."""
        if _amount(work) < TELLING:
            return
        name, pace = work.bench.kernel.name, seconds / _amount(work)
        self._pace[name] = min(self._pace.get(name, pace), pace)

    def packed(self, kernel: Kernel, weight: Array) -> Array:
        """The weight in the kernel's layout; the last one is kept for other numbers of tokens."""
        assert kernel.pack is not None
        key = (kernel.name, weight.shape)  # rows are the same for one shape: see workload.weight
        known, packed = self._packed
        if known != key or packed is None:
            self._packed = (None, None)  # free the old one first
            packed, blocks = kernel.pack.jobs(weight)
            self.team.run(Program([(kernel.pack.share, block) for block in blocks]))
            self._packed = (key, packed)
        return packed

    def probe_again(self) -> bool:
        """Raise the ceilings to what the machine can do now; False after a few times. Memory speed
        varies where machines share a host."""
        if self.probed >= PROBES:
            return False
        tell = self.teller("probing the machine again") if self.teller else None
        counts = (1, self.team.n_threads)[bool(self.moved) :]
        self.limits = limits(counts, tell, again=True, moved=self.moved)
        self.probed += 1
        return True

    def sweep(self) -> None:
        """Evict our data from the last-level cache, with all threads, so that none sleeps."""
        self.team.run(self._sweep)


def _amount(work: Workload) -> float:
    return max(work.cost.bytes, work.cost.operations, 1.0)


@dataclass(frozen=True, slots=True)
class Bound:
    """A kernel bound to arrays of its own."""

    inputs: Arguments
    outputs: Mapping[str, Array]
    entries: list[tuple[Any, Any]]
    memory: list[Any]  # what the entries point to

    @classmethod
    def of(cls, work: Workload, inputs: Arguments, packed: Array | None) -> "Bound":
        kernel = work.bench.kernel
        outputs = _placed(empty_outputs(kernel.spec, work.bench.shape, kernel.format))
        parts = stages(kernel, inputs, outputs, packed, tuning=starting(kernel))
        entries = [(share, block) for share, block, _ in parts]
        return cls(inputs, outputs, entries, [memory for _, _, memory in parts])

    def renew(self, work: Workload, seed: int) -> None:
        """Put other numbers in the same memory, and in what the kernel updates in place."""
        again = work.again(self.inputs, seed)
        new = {name for name, value in again.items() if value is not self.inputs[name]}
        for name in new:
            self.inputs[name][...] = again[name]
        if any(source in new for _, source in work.bench.kernel.in_place):
            self.restore(work)

    def restore(self, work: Workload) -> None:
        """Restore what the kernel updates in place."""
        for output, source in work.bench.kernel.in_place:
            self.outputs[output][...] = self.inputs[source]

    def spoil(self) -> None:
        """Fill the outputs with NaN, or -1."""
        for array in self.outputs.values():
            array.view(np.uint8).fill(0xFF)


class OpRun:
    """Samples of one kernel at one size on hot or cold caches. Calling it takes the next sample."""

    def __init__(self, lab: Lab, work: Workload, cache: str) -> None:
        lab.demand_feasible(work)
        self.lab, self.work, self.cache = lab, work, cache
        self.checked = self.taken = 0
        kernel = work.bench.kernel
        inputs = work.inputs()
        packed = lab.packed(kernel, inputs["weight"]) if kernel.pack else None
        leave = () if packed is None else ("weight",)  # that no kernel reads
        inputs = _placed(inputs, leave)
        first = Bound.of(work, inputs, packed)
        self._bounds = [first]
        lab.team.run(Program(first.entries))  # compiles, and touches every page
        once = Program(first.entries)
        seconds = min(self._time(once) for _ in range(TRIES))
        lab.learn(work, seconds)
        calls = max(1, int(SAMPLE_SECONDS / max(seconds, 1e-7)))
        self.copies = 1  # so that a peer may do the same
        if cache == "hot":
            further = (_placed(work.again(inputs, i), leave) for i in range(1, SETS))
            self._bounds += [Bound.of(work, own, packed) for own in further]
            repeats = min(calls, ENTRIES // len(first.entries))
            self._programs = [Program(b.entries * repeats) for b in self._bounds]
            self.calls = repeats
        else:
            size = _bytes(inputs, first.outputs, packed)
            fit = max(1, COPIES_BYTES // max(1, size))
            for i in range(1, min(calls, COPIES, fit)):
                own = None if packed is None else packed.copy()
                copies = _placed(work.again(inputs, i), leave, anew=True)
                self._bounds.append(Bound.of(work, copies, own))
            self._programs = [Program([e for b in self._bounds for e in b.entries])]
            self.calls = len(self._bounds)
            self.copies = max(self.calls, -(-BEYOND * lab.limits.last_level() // max(1, size)))

    def _time(self, program: Program) -> float:
        started = time.perf_counter()
        self.lab.team.run(program)
        return time.perf_counter() - started

    def __call__(self) -> float:
        """Take a sample: seconds per call."""
        turn = self.taken % len(self._bounds)
        bound = self._bounds[turn]
        in_place = bool(self.work.bench.kernel.in_place)
        check = self.taken % CHECK_EVERY == 0
        if check and in_place:  # of a call by itself: others continue from its results
            bound.restore(self.work)
            self.lab.team.run(Program(bound.entries))
            self.check(bound)
        if self.cache == "hot":
            self.lab.team.run(Program(bound.entries))
        else:
            bound.renew(self.work, self.taken)
        if not in_place:
            bound.spoil()
        if self.cache == "cold":
            self.lab.sweep()
        program = self._programs[turn if self.cache == "hot" else 0]
        seconds = self._time(program) / self.calls
        if check and not in_place:
            self.check(bound)
        self.taken += 1
        return seconds

    def check(self, bound: Bound) -> None:
        """Raise WrongOutputError where sampled outputs differ from the reference."""
        if failure := self.work.check(bound.inputs, bound.outputs, self.taken):
            raise WrongOutputError(f"{self.work.bench}: {failure}")
        self.checked += 1

    def contender(self) -> Contender:
        """This run as a contender of an experiment."""

        def measure() -> Sample:
            before, seconds = self.checked, self()
            return Sample(seconds, check=self.checked > before)

        return Contender(self.row(), measure)

    def row(self, contender: str = "assay") -> Measurement:
        """The row before any samples, ours or a peer's at the same work."""
        work, kernel, ours = self.work, self.work.bench.kernel, contender == "assay"
        return Measurement(
            bench="op",
            test=kernel.op,
            contender=contender,
            target=kernel.target,
            variant=kernel.variant if ours else "",
            format=kernel.format or "",
            shape=work.bench.sizes,
            model=", ".join(work.bench.models),
            threads=self.lab.team.n_threads,
            cache=self.cache,
            bytes=work.cost.bytes,
            operations=work.cost.operations,
            kernel=Key.of(kernel).digest[:16] if ours else "",
        )

    def limited(self, row: Measurement) -> Measurement:
        """The row with the machine's limit, as known now."""
        cost, threads = self.work.cost, self.lab.team.n_threads
        working_set = int(cost.bytes) if self.cache == "hot" else None
        limit = self.lab.limits.limit(cost, self.work.arithmetic, threads, working_set)
        return limit.of(row) if limit else row


def prepared(
    lab: Lab, works: Mapping[str, Workload], tell: Teller = lambda *_: None
) -> tuple[dict[tuple[str, str], OpRun], dict[tuple[str, str], str]]:
    """Runs of these kernels by name and cache state, and reasons for those that are too large."""
    runs, absent = dict[tuple[str, str], OpRun](), dict[tuple[str, str], str]()
    for i, (name, work) in enumerate(works.items()):
        tell(i, len(works))
        for cache in CACHES:
            try:
                runs[name, cache] = OpRun(lab, work, cache)
            except TooMuchError as error:
                absent[name, cache] = str(error)
    tell(len(works), len(works))
    return runs, absent


def _placed(arguments: Arguments, leave: tuple[str, ...] = (), anew: bool = False) -> Arguments:
    """Arrays aligned to cache lines, as in an engine: copies of those that are not, or `anew` of
    all."""
    return {
        name: _copy(value)
        if isinstance(value, np.ndarray)
        and name not in leave
        and (anew or value.ctypes.data % CACHE_LINE)
        else value
        for name, value in arguments.items()
    }


def _copy(array: Array) -> Array:
    copy = aligned_zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


def _bytes(inputs: Arguments, outputs: Mapping[str, Array], packed: Array | None) -> int:
    arrays = [v for v in (*inputs.values(), *outputs.values(), packed) if isinstance(v, np.ndarray)]
    return sum(a.nbytes for a in arrays)
