"""What comes before the first call, each by itself: compiling, certifying, packing weights."""

import os
import time

import pytest

from bench.benchmarking import measure
from bench.cases import BenchCase
from bench.compiling import PHASES, Compiler
from bench.results import Measurement
from bench.workload import weight
from kernels.certificates import Key
from kernels.cpu.team import Program


@pytest.fixture(scope="session")
def compiler():
    running = Compiler()
    yield running
    running.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_compile(benchmark, plan, recorder, compiler, kernel):
    """A kernel compiles from nothing and then passes its quick trial; two figures."""
    if not plan.measuring:
        pytest.skip("conformance compiles and tries every kernel")
    taken = {phase: [] for phase in PHASES}

    def once():
        seconds = compiler.time(kernel)
        for phase, samples in taken.items():
            samples.append(seconds[phase])
        return seconds["compile"]

    benchmark.group = "compile"
    measure(benchmark, {"compile": once}, plan.setup_rule)
    recorder.add(*(_row(kernel, phase, samples) for phase, samples in taken.items()))


def test_pack(benchmark, lab, plan, recorder, packed):
    """A weight is repacked by all threads, and the same bytes come out whoever packs."""
    kernel, hidden, out = packed
    assert kernel.format is not None
    source = weight(kernel.format, out, hidden)
    alone = kernel.pack(source)

    def once():
        memory, block = kernel.pack.job(source)
        memory.fill(0)  # finding pages for it is the system's work
        program = Program([(kernel.pack.share, block)])
        started = time.perf_counter()
        lab.team.run(program)
        seconds = time.perf_counter() - started
        assert memory.tobytes() == alone.tobytes()
        return seconds

    benchmark.group = "pack"
    samples = measure(benchmark, {"pack": once}, plan.rule)["pack"]
    shape = {"hidden": hidden, "out": out}
    work = BenchCase(kernel, shape, ()).sizes
    if plan.measuring:
        moved = source.nbytes + alone.nbytes
        recorder.add(_row(kernel, "pack", samples, work, moved, plan.threads))


def _row(kernel, phase, samples, shape="", moved=0.0, threads=1):
    return Measurement(
        bench="op",
        test=kernel.op,
        target=kernel.target,
        variant=kernel.variant,
        format=kernel.format or "",
        shape=shape,
        threads=threads,
        phase=phase,
        samples=tuple(samples),
        bytes=moved,
        kernel=Key.of(kernel).digest[:16],
        checked=len(samples),
    )
