"""What every weight format leaves of the embedded model: `pytest bench/test_quality.py --benchmark`
measures it (minutes), and `assay report` shows it."""

from pytest_benchmark.fixture import BenchmarkFixture

from bench import quality
from bench.race.benchmarking import Recorder, once
from bench.race.plan import Plan

FEW = 5  # stories


def test_quality(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Fewer bits are further from F16, where the difference in bits is large."""
    full = plan.measuring and not plan.quick
    told, pure = quality.stories(quality.STORIES if full else FEW), quality.PURE
    kinds = {pure: quality.pure(), quality.MIXED: quality.mixed()}
    kinds = kinds if full else {pure: quality.pure(quality.QUICK)}
    found = once(benchmark, "quality", quality.qualities(kinds, told, plan.threads))
    far = {m.format: m.median for m in found if (m.variant, m.test) == (pure, quality.DIVERGENCE)}
    ordered = [far[name] for name in quality.QUICK]
    assert ordered == sorted(ordered)
    recorder.add(quality.floor(told, plan.threads), *found)
