"""The figures that the engine is to reach (bench/targets.py): `pytest bench/test_figures.py
--benchmark --engine-model MODEL` measures these alone, and prints the card."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.contenders.contender import FAST, OURS, Setup
from bench.contenders.racer import Racer
from bench.contenders.start import STATUS, Held, held
from bench.engine.engine_race import Field, field_of, gaps
from bench.engine.profile import Profile, empty_steps, profile, timed_step
from bench.figures import READING, reading, streams
from bench.ops.op_run import Lab
from bench.race.benchmarking import Recorder, measure
from bench.race.experiment import ONCE, Contender, Experiment, Rule, Sampler
from bench.race.plan import Plan
from bench.race.results import Measurement
from engine import Engine

RACERS = (FAST, "llama.cpp")  # beside our engine; slower ones would only take time
DEPTH = 128
ROOM = 1024  # cells of the cache whose memory counts
THRICE = Rule(least=3, most=3)


@pytest.fixture(scope="module")
def racing(request: pytest.FixtureRequest, plan: Plan) -> Iterator[Field]:
    """A model's, for all of the card's races."""
    names = [name for name in plan.peers if name in RACERS]
    with field_of(request.param, plan.card.setup(plan.threads), names) as opened:
        yield opened


def test_race(
    benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder, racing: Field, figure_race: str
) -> None:
    """We and llama.cpp in turns; whoever takes part gives logits that are sound."""
    benchmark.group = f"{racing.model.stem} {figure_race}"
    raced = racing.experiment(*plan.card.races[figure_race])
    rows = raced.run(plan.figure_rule, partial(measure, benchmark))
    assert all(sample.check for one in raced.contenders.values() for sample in one.taken)
    recorder.add(*rows, *gaps(raced))


def test_threads(
    benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder, engine_path: Path
) -> None:
    """The same prompt on all threads and on one, in turns."""
    if plan.threads == 1:
        pytest.skip("there is one thread")
    test = plan.card.prompt

    def contender(n: int) -> Contender:
        racer = stack.enter_context(Racer(OURS, engine_path, Setup(n, context=test.context)))
        row = Measurement(
            "scaling", test.name, model=engine_path.name, threads=n, settings=racer.settings,
            tokens=test.tokens,
        )  # fmt: skip
        return Contender(row, lambda: racer.sample(test))

    benchmark.group = f"{engine_path.stem} threads"
    with ExitStack() as stack:
        raced = Experiment({f"{n} threads": contender(n) for n in (plan.threads, 1)})
        rows = raced.run(plan.figure_rule, partial(measure, benchmark))
    recorder.add(*rows)


@pytest.mark.skipif(not STATUS.exists(), reason="this system tells no process's peak")
def test_memory(
    benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder, engine_path: Path
) -> None:
    """A process that loads and runs a prompt; what it held is told by the system."""
    prompt = plan.card.prompt.prompt
    setup = Setup(plan.threads, context=max(ROOM, prompt + 1))
    found: list[Held] = []

    def once() -> float:
        started = time.perf_counter()
        found.append(held(engine_path, setup, prompt))
        return time.perf_counter() - started

    benchmark.group = f"{engine_path.stem} memory"
    measure(benchmark, {"memory": once}, THRICE if plan.measuring and not plan.quick else ONCE)
    assert all(one.peak > one.cache > 0 for one in found)
    row = Measurement(
        "memory", f"load, {plan.card.prompt.name}", model=engine_path.name, threads=plan.threads,
        shape=f"file={found[0].file},cache={found[0].cache}", unit="B",
    )  # fmt: skip
    recorder.add(replace(row, samples=tuple(float(one.peak) for one in found)))


def test_steps(
    benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder, lab: Lab, engine_path: Path
) -> None:
    """A decode step takes this long, and reading its weights, in turns; with the clock read after
    every node it and a prompt's step give the same. A step that does nothing is timed as well."""
    rule = plan.engine_rule if plan.measuring else ONCE
    known = lab.limits if plan.measuring else None
    prompt = plan.card.prompt.prompt
    with Engine.load(engine_path, threads=plan.threads, context=max(DEPTH + 1, prompt)) as engine:

        def profiles() -> tuple[Profile, Profile]:
            decode = profile(engine, 1, DEPTH, rule, known)
            return decode, profile(engine, prompt, 0, rule, known)

        benchmark.group = f"{engine_path.stem} step"
        taken = measure(benchmark, {OURS: _decode(engine), READING: reading(engine.model)}, rule)
        found = profiles()
        if not plan.measuring:
            return
        if any(one.rejected() for one in found) and lab.probe_again():
            recorder.raise_limits(lab.limits)
            known = lab.limits
            found = profiles()
        recorder.add(*streams(engine.model, found[0], lab.limits, taken))
        recorder.add(*empty_steps(engine.model))
    for one in found:
        recorder.add(*one.measurements())


def _decode(engine: Engine) -> Sampler:
    """A step of one token after DEPTH others."""
    engine.model.evaluate([0] * DEPTH, 0)
    return partial(timed_step, engine.model, [0], DEPTH)
