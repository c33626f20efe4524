"""What every weight format, and what skipping neurons, leaves of the embedded models: `pytest
bench/test_quality.py --benchmark` measures it (minutes), and `assay report` shows it."""

from pytest_benchmark.fixture import BenchmarkFixture

from bench import quality, sparsity
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


def test_sparsity(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Neurons that do not fire may be left out for nothing; a higher threshold names fewer, and
    finds fewer of those that fire."""
    full = plan.measuring and not plan.quick
    told = quality.stories(quality.STORIES if full else FEW)
    thresholds = sparsity.THRESHOLDS if full else sparsity.QUICK
    found = once(benchmark, "sparsity", sparsity.sparse(told, thresholds, plan.threads))
    figures = {(m.variant, m.test): m.median for m in found}
    assert figures[sparsity.FIRING, quality.LOSS] == figures[sparsity.ALL, quality.LOSS]
    for test in (sparsity.SHARE, sparsity.RECALL):
        falling = [m.median for m in found if (m.variant, m.test) == (sparsity.PREDICTED, test)]
        assert falling == sorted(falling, reverse=True)
    recorder.add(*found)
