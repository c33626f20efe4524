"""The engine and its peers in turns: loading, prompts, generation, batches, the first token."""

from dataclasses import fields

import pytest

from bench.benchmarking import measure
from bench.contenders.start import Start, cold_start, start
from bench.results import Measurement


def test_engine(benchmark, plan, recorder, engine_field, engine_test):
    """An engine's test gives logits that are sound, and takes this long."""
    benchmark.group = f"{engine_field.model.name} {engine_test.name}"
    measure(benchmark, engine_field.samplers(engine_test), plan.engine_rule)
    for taken in engine_field.last.values():
        assert all(sample.check is not None or engine_test.kind == "load" for sample in taken)
    if plan.measuring:
        recorder.add(*engine_field.measurements())


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_start(benchmark, plan, recorder, cache):
    """A new process gets to its first token, with all it needs in caches or with nothing there."""
    if cache == "cold" and not plan.measuring:
        pytest.skip("a cold start compiles and certifies everything anew: only when measuring")
    model, threads = plan.engine_models[0], plan.threads
    taken = []

    def once():
        begin = cold_start if cache == "cold" else start
        taken.append(begin(model, threads))
        return taken[-1].seconds

    benchmark.group = "start"
    measure(benchmark, {"assay": once}, plan.setup_rule)
    if plan.measuring:
        recorder.add(*_rows(model, threads, cache, taken))


def _rows(model, threads, cache, taken):
    """The whole, and each part of it as a phase."""
    for part in fields(Start):
        yield Measurement(
            bench="start",
            test="first token",
            model=model.name,
            threads=threads,
            cache=cache,
            phase="run" if part.name == "seconds" else part.name,
            samples=tuple(getattr(start, part.name) for start in taken),
            checked=len(taken),
        )
