"""What every weight format leaves of the embedded model: `pytest bench/test_quality.py --benchmark`
measures it (minutes), and `assay report` shows it."""

from pytest_benchmark.fixture import BenchmarkFixture

from bench.quality import (
    DIVERGENCE,
    MIXED,
    PURE,
    QUICK,
    STORIES,
    floor,
    mixed,
    pure,
    qualities,
    stories,
)
from bench.race.benchmarking import Recorder, once
from bench.race.plan import Plan

FEW = 5  # stories


def test_quality(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Fewer bits are further from F16, where the difference in bits is large."""
    full = plan.measuring and not plan.quick
    told = stories(STORIES if full else FEW)
    kinds = {PURE: pure(), MIXED: mixed()} if full else {PURE: pure(QUICK)}
    found = once(benchmark, "quality", qualities(kinds, told, plan.threads))
    far = {m.format: m.median for m in found if (m.variant, m.test) == (PURE, DIVERGENCE)}
    ordered = [far[name] for name in QUICK]
    assert ordered == sorted(ordered)
    if plan.measuring:
        recorder.add(floor(told, plan.threads), *found)
