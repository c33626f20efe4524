"""What is measured on a GPU, one thing after the other, what matters most first: in a process of
its own, so that what hangs, or takes the context down with an access to nowhere, costs only itself.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.child import ChildError, Revived
from bench.cuda import cases, engine, step
from bench.cuda.cases import OpCase
from bench.cuda.clock import Ceilings, Clock, probe
from bench.cuda.goals import GEMV
from bench.cuda.measure import measure
from bench.cuda.sweep import SWEPT, sweep
from bench.race.results import Measurement
from data.shapes import ModelShape, read
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.gpu import Gpu

PATIENCE, SWEEPING = 60.0, 120.0  # seconds for one of them, and for the knobs of a case
LEAST = 15.0  # seconds that whatever is begun may take
HOME = "bench.cuda.jobs:Worker"
CELLS, PROMPT = 32768, 2048
STEPS = (("tinyllama-1.1b", "Q4_0"), ("llama-2-7b", "F16"), ("llama-2-7b", "Q4_0"))
FEW = 8  # tokens, as of a draft
TOKENS_OF_KNOBS = (1, 2, 4, 8, 64, 128, 256, 512, PROMPT)


@dataclass(frozen=True, slots=True)
class Lab:
    """What there is to measure with; kernels called so are left `out`."""

    gpu: Gpu
    clock: Clock
    ceilings: Ceilings
    out: frozenset[str]


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be measured: what is known of it before, how it gives a row for each contender,
    and the seconds that it may take."""

    row: Measurement
    run: Callable[[Lab], list[Measurement]]
    patience: float = PATIENCE

    def failed(self, why: str) -> list[Measurement]:
        """The row of a job of which nothing came."""
        return [replace(self.row, note=why)]


def of_op(case: OpCase) -> Job:
    """An op at a size: all kernels that can do it, and peers."""
    row = Measurement("gpu", case.test, target="cuda", format=case.format, shape=case.sizes)
    return Job(row, lambda lab: measure(lab.gpu, lab.clock, lab.ceilings, case, lab.out))


def of_knobs(case: OpCase) -> Job:
    """The knobs of all our kernels that can do it."""
    row = Measurement("gpu", f"{SWEPT}{case.test}", target="cuda", format=case.format)
    row = replace(row, shape=case.sizes)
    return Job(row, lambda lab: sweep(lab.gpu, lab.clock, lab.ceilings, case, lab.out), SWEEPING)


def of_step(name: str, model: ModelShape, format: str) -> Job:
    """The kernels of a decoding step of a model."""
    row = Measurement("gpu", "kernels of a step", target="cuda", format=format, model=name)

    def run(lab: Lab) -> list[Measurement]:
        return [
            step.decode(step.Step(lab.gpu, model, format, lab.out), lab.clock, lab.ceilings, row)
        ]

    return Job(row, run)


def of_engine(name: str, path: Path) -> Job:
    """The engine with a file whose shape has this name; kernels may have to be certified, and files
    are long."""
    row = Measurement("gpu", "engine", target="cuda", model=name)
    return Job(row, lambda lab: [engine.decoding(path, lab.ceilings, row)], patience=math.inf)


def jobs_of_goals() -> list[Job]:
    """Those of which goals are."""
    shapes = read().models
    steps = [of_step(name, shapes[name], kind) for name, kind in STEPS]
    return [*map(of_op, main_cases(shapes["llama-2-7b"])), *steps]


def jobs(models: Mapping[str, Path] | None) -> list[Job]:
    """All of them, the same in every process; those of goals first. If `models` is None,
    the knobs instead."""
    if models is None:
        return [of_knobs(case) for case in knob_cases(read().models["llama-2-7b"])]
    engines = [of_engine(name, path) for name, path in models.items()]
    further = map(of_op, further_cases(read().models["llama-2-7b"]))
    return [*jobs_of_goals(), *engines, *further]


def main_cases(llama: ModelShape) -> Iterator[OpCase]:
    """Of goals."""
    for kind in GEMV:
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "F16", CELLS)
    for kind in ("F16", "Q4_0"):
        for size in cases.shapes_of(llama, output=False):
            yield cases.linear("prefill", kind, PROMPT, *size)
    for kind in GEMV:
        for size in cases.shapes_of(llama, output=False):
            yield cases.linear(f"{FEW} tokens", kind, FEW, *size)


def knob_cases(llama: ModelShape) -> Iterator[OpCase]:
    """The largest matrix in steps of as many tokens as knobs show in; attention of a token."""
    yield cases.attention(llama, "F16", CELLS)
    for tokens in TOKENS_OF_KNOBS:
        for kind in GEMV:
            yield cases.linear(f"{tokens} tokens", kind, tokens, llama.hidden, llama.ffn)


def further_cases(llama: ModelShape) -> Iterator[OpCase]:
    for op in ("sparse_linear", "sparse_axpy"):
        for kind in ("F16", "Q4_0"):
            yield cases.sparse(op, llama, kind, 0.1)
    for kind in ("BF16", "Q6_K"):
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "Q8_0", CELLS)


class Measuring:
    """The jobs of these models, by a child; kernels called so are left `out`."""

    def __init__(
        self, child: Revived, models: Mapping[str, Path] | None, out: Iterable[str]
    ) -> None:
        self._child, self._models, self._out = child, models, frozenset(out)
        self.jobs = jobs(models)

    def probe(self, seconds: float) -> Ceilings:
        """Within so many seconds, LEAST or PATIENCE; once more if that fails, then ChildError."""
        try:
            found: Ceilings = self._ask("probe", PATIENCE, seconds)
        except ChildError:
            self._child.close()
            found = self._ask("probe", PATIENCE, seconds)
        return found

    def rows(self, number: int, ceilings: Ceilings, seconds: float) -> list[Measurement]:
        """Of the job of this number, within its patience and so many seconds, or LEAST; a row that
        says why if there are none."""
        job, rows = self.jobs[number], list[Measurement]()
        asked = {"models": self._models, "ceilings": ceilings, "out": self._out}
        try:
            rows, lost = self._ask("measure", job.patience, seconds, number=number, **asked)
        except ChildError as error:
            lost, rows = True, job.failed(error.reason)
        if lost:  # the context, perhaps
            self._child.close()
        return rows

    def _ask(self, method: str, patience: float, left: float, **arguments: Any) -> Any:
        return self._child.ask(min(patience, max(LEAST, left)), method, **arguments)


class Worker:
    """The child."""

    @cached_property
    def gpu(self) -> Gpu:
        return Gpu()

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.gpu)

    def probe(self) -> Ceilings:
        return probe(self.gpu, self.clock)

    def measure(
        self,
        number: int,
        models: Mapping[str, Path] | None,
        ceilings: Ceilings,
        out: frozenset[str],
    ) -> tuple[list[Measurement], bool]:
        """A job's rows, and whether the GPU is lost to it."""
        lab = Lab(self.gpu, self.clock, ceilings, out)
        return jobs(models)[number].run(lab), self._lost()

    def _lost(self) -> bool:
        """Whether one of those who failed has left a context that nobody can use."""
        try:
            self.gpu.wait()
        except DeviceError:
            return True
        return False
