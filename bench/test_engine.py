"""The engine and its peers in turns: loading, prompts, generation, batches, the first token."""

from dataclasses import replace
from functools import partial

import pytest

from bench.contenders.start import PARTS, cold_start, start
from bench.race.benchmarking import measure
from bench.race.experiment import Contender, Experiment
from bench.race.results import Measurement


def test_engine(benchmark, plan, recorder, engine_field, engine_test):
    """An engine's test gives logits that are sound, and takes this long."""
    benchmark.group = f"{engine_field.model.name} {engine_test.name}"
    raced = engine_field.experiment(engine_test)
    rows = raced.run(plan.engine_rule, partial(measure, benchmark))
    for one in raced.contenders.values():
        assert all(s.check is not None or engine_test.kind == "load" for s in one.taken)
    recorder.add(*rows)


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_start(benchmark, plan, recorder, cache):
    """A new process gets to its first token, with all it needs in caches or with nothing there."""
    if cache == "cold" and not plan.measuring:
        pytest.skip("a cold start compiles and certifies everything anew: only when measuring")
    model, threads = plan.engine_models[0], plan.threads
    row = Measurement("start", "first token", model=model.name, threads=threads, cache=cache)
    begin = cold_start if cache == "cold" else start
    benchmark.group = "start"
    raced = Experiment({
        "assay": Contender(row, partial(begin, model, threads),
                           {part: replace(row, phase=part) for part in PARTS}),
    })  # fmt: skip
    rows = raced.run(plan.setup_rule, partial(measure, benchmark))
    recorder.add(*rows)
