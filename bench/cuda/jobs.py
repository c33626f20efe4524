"""What is measured on a GPU, one thing after the other, what matters most first."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bench.cuda import cases, engine, step
from bench.cuda.cases import OpCase
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import Clock
from bench.cuda.goals import GEMV
from bench.cuda.measure import measure
from bench.results import Measurement
from data.shapes import ModelShape, read
from kernels.cuda.gpu import Gpu

PATIENCE = 60.0  # seconds for one of them
CELLS, PROMPT = 32768, 2048
STEPS = (("tinyllama-1.1b", "Q4_0"), ("llama-2-7b", "F16"))


@dataclass(frozen=True, slots=True)
class Lab:
    """What there is to measure with; kernels called so are left `out`."""

    gpu: Gpu
    clock: Clock
    ceilings: Ceilings
    out: frozenset[str]


class Job(Protocol):
    """Something to be measured."""

    @property
    def row(self) -> Measurement:
        """What is known before."""

    @property
    def patience(self) -> float:
        """Seconds that it may take."""

    def run(self, lab: Lab) -> list[Measurement]:
        """A row for each contender."""


@dataclass(frozen=True, slots=True)
class OfOp:
    """An op at a size: all kernels that can do it, and peers."""

    case: OpCase
    patience: float = PATIENCE

    @property
    def row(self) -> Measurement:
        case = self.case
        return Measurement(
            bench="gpu", test=case.test, target="cuda", format=case.format, shape=case.sizes
        )

    def run(self, lab: Lab) -> list[Measurement]:
        return measure(lab.gpu, lab.clock, lab.ceilings, self.case, lab.out)


@dataclass(frozen=True, slots=True)
class OfStep:
    """The kernels of a decoding step of a model."""

    name: str
    model: ModelShape
    format: str
    patience: float = PATIENCE

    @property
    def row(self) -> Measurement:
        return Measurement(
            bench="gpu", test="kernels of a step", target="cuda", format=self.format,
            model=self.name,
        )  # fmt: skip

    def run(self, lab: Lab) -> list[Measurement]:
        step_of = step.Step(lab.gpu, self.model, self.format, lab.out)
        return [step.decode(step_of, lab.clock, lab.ceilings, self.row)]


@dataclass(frozen=True, slots=True)
class OfEngine:
    """The engine with a file whose shape has this name."""

    name: str
    path: Path
    patience: float = math.inf  # kernels may have to be certified, and files are long

    @property
    def row(self) -> Measurement:
        return Measurement(bench="gpu", test="engine", target="cuda", model=self.name)

    def run(self, lab: Lab) -> list[Measurement]:
        return [engine.decoding(self.path, lab.ceilings, self.row)]


def failed(job: Job, why: str) -> list[Measurement]:
    """The row of a job of which nothing came."""
    return [replace(job.row, note=why)]


def jobs(models: Mapping[str, Path]) -> list[Job]:
    """All of them, the same in every process."""
    shapes = read().models
    llama = shapes["llama-2-7b"]
    steps = [OfStep(name, shapes[name], kind) for name, kind in STEPS]
    engines = [OfEngine(name, path) for name, path in models.items()]
    return [*map(OfOp, main_cases(llama)), *steps, *engines, *map(OfOp, further_cases(llama))]


def main_cases(llama: ModelShape) -> Iterator[OpCase]:
    """Of goals."""
    for kind in GEMV:
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "F16", CELLS)
    for size in cases.shapes_of(llama, output=False):
        yield cases.linear("prefill", "F16", PROMPT, *size)


def further_cases(llama: ModelShape) -> Iterator[OpCase]:
    for op in ("sparse_linear", "sparse_axpy"):
        for kind in ("F16", "Q4_0"):
            yield cases.sparse(op, llama, kind, 0.1)
    for size in cases.shapes_of(llama, output=False):
        yield cases.linear("prefill", "Q4_0", PROMPT, *size)
    for kind in ("BF16", "Q6_K"):
        for size in cases.shapes_of(llama, output=True):
            yield cases.linear("GEMV", kind, 1, *size)
    yield cases.attention(llama, "Q8_0", CELLS)
