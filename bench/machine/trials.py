"""The probe's trials: every way to move a working set, and every unit that multiplies."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine.probe import ELEMENTS, LINE, PEAKS, READS, STEP, available, copy, triad
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.share import Share, pack_words
from kernels.cpu.runtime.team import Program, Team

PAGE = 1024  # elements of a page of memory
SMALLEST = 16 << 10  # bytes of a thread's smallest working set: half of a small L1d
SAMPLE_SECONDS = 0.01
COUNTED = (1 << 24) - 1  # float32 counts exactly up to here
ODD = np.nextafter(np.float32(1), np.float32(2))  # odd as an integer: any lost load shows in a sum
STREAMS = 4
MOST_BYTES = 512 << 20  # of a working set
STRIDE = 1021  # elements between the outputs that are checked after each sample


@dataclass(frozen=True, slots=True)
class Cache:
    """A level of cache, as "L1d", "L2" or "L3"; `shared_by` logical CPUs."""

    level: str
    bytes: int
    shared_by: int

    def reach(self, threads: int) -> int:
        """Bytes of it that so many threads have, each instance serving as many as it can."""
        return self.bytes * math.ceil(threads / self.shared_by)


def read_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[Cache, ...]:
    """The data caches that Linux reports; elsewhere, sizes that few machines exceed."""
    found = []
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, cpus = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
            spans = [span.split("-") for span in cpus.split(",")]
            sharers = sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
            name = f"L{int(level)}" + ("d" if kind == "Data" else "")
            if kind != "Instruction":
                found.append(Cache(name, int(size[:-1]) * unit, sharers))
        except (OSError, ValueError, KeyError, IndexError):
            continue
    cores = physical_cores()
    return tuple(found) or (
        Cache("L1d", 64 << 10, 1), Cache("L2", 2 << 20, 1), Cache("L3", 64 << 20, cores)
    )  # fmt: skip


def working_sets(caches: Sequence[Cache], threads: int) -> list[int]:
    """Doubling sizes, from what fits any cache to four times the last one, bytes of all threads."""
    enough = min(4 * max(cache.reach(threads) for cache in caches), MOST_BYTES)
    sizes = [SMALLEST * threads]
    while sizes[-1] < enough:
        sizes.append(min(2 * sizes[-1], enough))
    return sizes


@dataclass(slots=True)
class Trial:
    """A share over its arrays, to be timed: `amount` bytes or operations a repeat.

    `name` is the kind of traffic or the unit. `watched`, zero before each sample, equals
    `expected(repeats)` in every element after.
    """

    name: str
    threads: int
    working_set: int
    share: Share
    values: dict[str, Any]
    amount: int
    watched: Any
    expected: Callable[[int], float]
    repeats: int = 1
    most_repeats: int = COUNTED

    @property
    def key(self) -> tuple[str, int, int]:
        """Trials of one key are ways to do one thing: the fastest counts."""
        return self.name, self.threads, self.working_set

    def seconds(self, team: Team) -> float:
        """The time of one sample; a RuntimeError if its result is wrong."""
        block = pack_words(self.share.signature, {**self.values, "repeats": self.repeats})
        program = Program([(self.share, block)])
        self.watched[...] = 0
        started = time.perf_counter()
        team.run(program)
        seconds = time.perf_counter() - started
        if not np.all(self.watched == self.expected(self.repeats)):
            raise RuntimeError(f"the probe {self.name} on {self.threads} threads computes wrongly")
        return seconds

    def calibrate(self, team: Team) -> None:
        """Choose the repeats that make a sample last long enough."""
        while (seconds := self.seconds(team)) < SAMPLE_SECONDS and self.repeats < self.most_repeats:
            growth = min(100.0, max(1.25, 1.1 * SAMPLE_SECONDS / max(seconds, 1e-9)))
            self.repeats = min(math.ceil(self.repeats * growth), self.most_repeats)

    def rate(self, team: Team) -> float:
        """Bytes or operations a second."""
        return self.amount * self.repeats / self.seconds(team)


class Arena:
    """Memory for working sets up to so many bytes: to read all of it, or write half as much."""

    def __init__(self, most_bytes: int) -> None:
        sizes = most_bytes // 4 + 2 * PAGE, most_bytes // 8 + 2 * PAGE
        self.data, self.spare = (aligned(4 * n, 4 * PAGE).view(np.float32) for n in sizes)
        self.data[:] = ODD
        self.spare[:] = 0

    def trials(self, threads: int, working_set: int, cached: bool) -> list[Trial]:
        """Every way to move this working set on so many threads."""
        # prefetching costs issue slots where there is no latency to hide
        ways = ("plain",) if cached else tuple(READS)
        reads = [(READS[way], streams) for way in ways for streams in (1, STREAMS)]
        n = _elements(working_set, threads)
        x, sums = self.data[:n].view(np.int32), np.zeros(threads * STEP, np.int32)
        taken_off = partial(_counted, -int(ODD.view(np.uint32)) * (n // (threads * STEP)))
        trials = [
            Trial(
                "read", threads, working_set, way, {"streams": streams, "x": x, "out": sums},
                4 * n, sums.view(np.uint32), taken_off,
            )
            for way, streams in reads
        ]  # fmt: skip
        for name, way, arrays, wanted in (("copy", copy, 2, ODD), ("triad", triad, 3, 2 * ODD)):
            n = _elements(working_set // arrays, threads)
            pages = -(-n // PAGE) * PAGE
            y = self.data[pages : pages + n] if way is triad else self.data[:0]
            # stores one line behind loads, modulo a page, so that no load waits for one
            out = self.spare[PAGE - LINE :][:n]
            values = {"k": 1.0, "x": self.data[:n], "y": y, "out": out}
            trials.append(
                Trial(
                    name, threads, working_set, way, values, 4 * n * arrays,
                    out[::STRIDE], partial(_constant, wanted),
                )
            )  # fmt: skip
        return trials


def _counted(each: int, repeats: int) -> int:
    """The contents of a 32-bit sum that every repeat increases by `each`."""
    return each * repeats % (1 << 32)


def _constant(value: float, repeats: int) -> float:
    return value


def _elements(array_bytes: int, threads: int) -> int:
    """A number of float32 elements that threads and streams share evenly in whole steps."""
    unit = threads * STREAMS * STEP
    return array_bytes // 4 // unit * unit


def shares_of_trials() -> list[Share]:
    """The shares of all trials."""
    return [*READS.values(), copy, triad, *(PEAKS[name] for name in available())]


def peak_trials(threads: int) -> list[Trial]:
    """Every unit of this machine on so many threads."""
    trials = []
    for name, unit in available().items():
        element, kind = map(np.dtype, ELEMENTS[unit.arithmetic])
        ones = np.full(4096 // element.itemsize, unit.operand, element)
        sums = np.zeros((threads, 4 * unit.sums), np.uint8)
        trials.append(
            Trial(
                name, threads, 0, PEAKS[name], {"ones": ones.view(np.uint8), "sums": sums},
                unit.operations * threads, sums.view(kind),
                partial(_counted, unit.raises), most_repeats=COUNTED // unit.raises,
            )
        )  # fmt: skip
    return trials
