"""The figures that the engine is to reach (bench/targets.py): `pytest bench/test_figures.py
--benchmark --engine-model MODEL` measures these alone, and prints the card."""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.benchmarking import Recorder, measure
from bench.contenders.contender import FAST, OURS, Setup
from bench.contenders.racer import Racer
from bench.empty_step import empty_steps
from bench.engine_race import Fields
from bench.figures import READING, reading, streams
from bench.memory import STATUS, Held, held
from bench.op_run import Lab
from bench.plan import Plan
from bench.profile import Profile, measurements, profile
from bench.results import Measurement
from bench.timing import Rule, Sampler
from engine import Engine

RACERS = (FAST, "llama.cpp")  # beside our engine; slower ones would only take time
DEPTH = 128
ROOM = 1024  # cells of the cache whose memory counts
ONCE, THRICE = Rule(least=1, most=1), Rule(least=3, most=3)


@pytest.fixture(scope="module")
def racing(plan: Plan) -> Iterator[Fields]:
    with Fields([name for name in plan.peers if name in RACERS]) as opened:
        yield opened


def test_race(
    benchmark: BenchmarkFixture,
    plan: Plan,
    recorder: Recorder,
    racing: Fields,
    figure_race: tuple[Path, str],
) -> None:
    """We and llama.cpp in turns; whoever takes part gives logits that are sound."""
    path, name = figure_race
    field = racing.of(path, plan.card.setup(plan.threads))
    benchmark.group = f"{path.stem} {name}"
    measure(benchmark, field.samplers(*plan.card.races[name]), plan.figure_rule)
    assert all(sample.check for taken in field.last.values() for sample in taken)
    if plan.measuring:
        recorder.add(*field.measurements(), *field.gaps())


def test_threads(
    benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder, engine_path: Path
) -> None:
    """The same prompt on all threads and on one, in turns."""
    if plan.threads == 1:
        pytest.skip("there is one thread")
    test = plan.card.prompt

    def sampler(racer: Racer) -> Sampler:
        return lambda: racer.sample(test).seconds

    with ExitStack() as stack:
        racers = {
            n: stack.enter_context(Racer(OURS, engine_path, Setup(n, context=test.context)))
            for n in (plan.threads, 1)
        }
        contenders = {f"{n} threads": sampler(racer) for n, racer in racers.items()}
        benchmark.group = f"{engine_path.stem} threads"
        samples = measure(benchmark, contenders, plan.figure_rule)
    rivals = secrets.token_hex(4)
    if plan.measuring:
        for n, taken in zip(racers, samples.values(), strict=True):
            recorder.add(
                Measurement(
                    bench="scaling",
                    test=test.name,
                    model=engine_path.name,
                    threads=n,
                    settings=racers[n].settings,
                    samples=tuple(taken),
                    tokens=test.tokens,
                    rivals=rivals,
                )
            )


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
    if plan.measuring:
        recorder.add(
            Measurement(
                bench="memory",
                test=f"load, {plan.card.prompt.name}",
                shape=f"file={found[0].file},cache={found[0].cache}",
                model=engine_path.name,
                threads=plan.threads,
                samples=tuple(float(one.peak) for one in found),
                unit="B",
            )
        )


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
        recorder.add(*measurements(one))


def _decode(engine: Engine) -> Sampler:
    """A step of one token after DEPTH others."""
    model = engine.model
    model.evaluate([0] * DEPTH, 0)

    def step() -> float:
        model.cells.remove(0, DEPTH)
        started = time.perf_counter()
        model.step([0], [DEPTH], [(0,)], [0])
        return time.perf_counter() - started

    return step
