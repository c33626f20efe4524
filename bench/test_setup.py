"""What comes before the first call, each by itself: compiling, certifying, packing weights."""

import os
import time
from dataclasses import replace
from functools import partial

import pytest

from bench.child import Child
from bench.ops.cases import BenchCase
from bench.ops.compiling import HOME
from bench.ops.workload import weight
from bench.race.benchmarking import measure
from bench.race.experiment import Contender, Experiment, Sample
from bench.race.results import Measurement
from kernels.certificates import Key
from kernels.cpu.runtime.team import Program


@pytest.fixture(scope="session")
def compiler():
    with Child(HOME) as running:
        yield running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_compile(benchmark, plan, recorder, compiler, kernel):
    """A kernel compiles from nothing and then passes its quick trial; two figures."""
    if not plan.measuring:
        pytest.skip("conformance compiles and tries every kernel")

    def once():
        seconds = compiler.ask("time", kernel=kernel.name)
        return Sample(seconds["compile"], seconds, check=True)

    benchmark.group = "compile"
    entry = Contender(_row(kernel, "compile"), once, {"certify": _row(kernel, "certify")})
    raced = Experiment({"compile": entry})
    recorder.add(*raced.run(plan.setup_rule, partial(measure, benchmark)))


def test_pack(benchmark, lab, plan, recorder, packed):
    """A weight is repacked by all threads, and the same bytes come out whoever packs."""
    kernel, hidden, out = packed
    assert kernel.format is not None
    source = weight(kernel.format, out, hidden)
    alone = kernel.pack(source)

    def once():
        memory, blocks = kernel.pack.jobs(source)
        memory.fill(0)  # finding pages for it is the system's work
        program = Program([(kernel.pack.share, block) for block in blocks])
        started = time.perf_counter()
        lab.team.run(program)
        seconds = time.perf_counter() - started
        assert memory.tobytes() == alone.tobytes()
        return Sample(seconds, check=True)

    benchmark.group = "pack"
    sizes = BenchCase(kernel, {"hidden": hidden, "out": out}, ()).sizes
    moved = source.nbytes + alone.nbytes
    row = replace(_row(kernel, "pack"), shape=sizes, bytes=moved, threads=plan.threads)
    rows = Experiment({"pack": Contender(row, once)}).run(plan.rule, partial(measure, benchmark))
    recorder.add(*rows)


def _row(kernel, phase):
    return Measurement(
        "op", kernel.op, target=kernel.target, variant=kernel.variant, phase=phase, threads=1,
        format=kernel.format or "", kernel=Key.of(kernel).digest[:16],
    )  # fmt: skip
