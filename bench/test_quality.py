"""What every weight format leaves of the embedded model: `pytest bench/test_quality.py --benchmark`
measures it (minutes), and `assay report` shows it."""

import time

from pytest_benchmark.fixture import BenchmarkFixture

from bench.benchmarking import Recorder, measure
from bench.plan import Plan
from bench.quality import (
    MIXED,
    PURE,
    QUICK,
    STORIES,
    Quality,
    floor,
    mixed,
    pure,
    qualities,
    stories,
)
from bench.timing import Rule

ONCE = Rule(least=1, most=1)
FEW = 5  # stories


def test_quality(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Fewer bits are further from F16, where the difference in bits is large."""
    full = plan.measuring and not plan.quick
    told = stories(STORIES if full else FEW)
    kinds = {PURE: pure(), MIXED: mixed()} if full else {PURE: pure(QUICK)}
    found: list[Quality] = []

    def once() -> float:
        started = time.perf_counter()
        found.extend(qualities(kinds, told, plan.threads))
        return time.perf_counter() - started

    benchmark.group = "quality"
    measure(benchmark, {"formats": once}, ONCE)
    far = {q.name: q.divergence.value for q in found if q.kind == PURE}
    ordered = [far[name] for name in QUICK]
    assert ordered == sorted(ordered)
    if plan.measuring:
        recorder.add(floor(told, plan.threads))
        for quality in found:
            recorder.add(*quality.measurements(plan.threads))
