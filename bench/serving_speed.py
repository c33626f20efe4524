"""How an engine serves many prompts at once, beside llama.cpp's llama-batched-bench.

`python -m bench.serving_speed MODEL [--batched-bench PROGRAM] [-o PAGE.md]` measures prompts that
arrive together, steps of many answers beside steps of one and what the scheduler takes of them,
answers among which long prompts arrive, a beginning that prompts share, and one prompt alone beside
bare steps. Tokens are random, and nothing ends early.
"""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench.child import ChildError, output
from bench.contenders.contender import OURS
from bench.race.experiment import Contender, Experiment, Sample, timed
from bench.race.program import Tell, parsed, report
from bench.race.results import Measurement
from bench.race.timing import Rule, Sampler, race
from bench.report.serving import (
    ALONE,
    ANSWERS,
    ARRIVING,
    BARE,
    BENCH,
    MIXED,
    OWN,
    PEER,
    PREFIX,
    STEP,
    section,
)
from engine import Engine, Options, SamplingParams
from engine.embedded import resolve
from engine.model import Model
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler

RULE, QUICKLY = Rule(least=5, most=40, error=0.01, cap_seconds=60), Rule(least=2, most=2)
PATIENCE = 600.0  # seconds for a sample of a program
TRIES = 5  # llama-batched-bench may end before its logging thread has printed the result
UNTIMED = 3  # steps at the beginning of answers, which read their prompts


@dataclass(frozen=True, slots=True)
class Load:
    """So many prompts at once, of so many tokens, and the tokens of each answer; of the mixed load
    also the tokens of a long prompt and how many of those come."""

    sequences: int
    prompt: int
    answer: int
    long: int = 0
    count: int = 0

    @property
    def tokens(self) -> int:
        return self.sequences * (self.prompt + self.answer)

    @property
    def shape(self) -> str:
        return f"sequences={self.sequences},prompt={self.prompt},answer={self.answer}"


@dataclass(frozen=True, slots=True)
class Effort:
    """What each part serves; `context` has cells for all of any."""

    arriving: Load
    step: Load
    mixed: Load
    prefix: Load
    context: int


FULL = Effort(Load(16, 128, 64), Load(8, 16, 48), Load(8, 16, 160, 1024, 4), Load(16, 256, 4), 8192)
QUICK = Effort(Load(4, 16, 6), Load(3, 4, 8), Load(2, 4, 24, 32, 2), Load(4, 24, 2), 1024)


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a scheduler's step, of them those in which the model ran, and in which tokens were
    drawn; `answers` and `read`: tokens of answers that go on, and of prompts."""

    seconds: float
    model: float
    drawing: float
    answers: int
    read: int


class Watched:
    """A model whose steps are timed."""

    def __init__(self, model: Model) -> None:
        self.model, self.seconds = model, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def rows(self, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return self.model.rows(*arguments)
        finally:
            self.seconds += time.perf_counter() - started


class Served:
    """An engine that serves random prompts, all of one seed."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._random = engine, np.random.default_rng(0)

    def prompt(self, length: int) -> list[int]:
        drawn = self._random.integers(0, self.engine.model.config.vocab, length)
        return cast(list[int], drawn.tolist())

    def requests(self, load: Load) -> list[Request]:
        return [
            Request(str(i), self.prompt(load.prompt), answer(load.answer))
            for i in range(load.sequences)
        ]

    def steps(self, arriving: Mapping[int, Sequence[Request]]) -> tuple[list[Step], int]:
        """Of a scheduler to whom requests come at these steps, and the tokens that it evaluated."""
        serving, watched = self.engine.serving(), Watched(self.engine.model)
        scheduler, timings = Scheduler(replace(serving, model=watched)), serving.timings  # type: ignore[arg-type]
        found: list[Step] = []
        while scheduler.work or len(found) <= max(arriving):
            for request in arriving.get(len(found), ()):
                scheduler.add(request)
            spans = timings.eval, timings.prompt
            before = watched.seconds, timings.sample.seconds, *(span.tokens for span in spans)
            started = time.perf_counter()
            scheduler.step()
            taken = time.perf_counter() - started
            after = watched.seconds, timings.sample.seconds, *(span.tokens for span in spans)
            found.append(Step(taken, *(b - a for a, b in zip(before, after, strict=True))))  # type: ignore[arg-type]
        self.engine.text.hold(scheduler.close())
        self.engine.reset()
        return found, scheduler.evaluated

    def arriving(self, load: Load) -> Sample:
        prompts = [self.prompt(load.prompt) for _ in range(load.sequences)]
        started = time.perf_counter()
        results = self.engine.generate(prompts, answer(load.answer))
        seconds = time.perf_counter() - started
        written = sum(len(result.outputs[0].token_ids) for result in results)
        return Sample(seconds, check=written == load.sequences * load.answer)

    def step(self, load: Load, kept: list[float]) -> float:
        """The median of steps that go on with answers; what of each was neither the model's nor
        spent on drawing is kept, as a share."""
        steps, _ = self.steps({0: self.requests(load)})
        going = [s for s in steps[UNTIMED:] if s.answers == load.sequences and not s.read]
        kept += [1 - (s.model + s.drawing) / s.seconds for s in going]
        return float(np.median([s.seconds for s in going]))

    def mixed(self, load: Load) -> list[Step]:
        """Steps with answers under way, among which long prompts come, evenly spread."""
        arriving = {0: self.requests(load)}
        for k in range(load.count):
            long = Request(f"long {k}", self.prompt(load.long), answer(1))
            arriving[(k + 1) * load.answer // (load.count + 2)] = [long]
        return [s for s in self.steps(arriving)[0][UNTIMED:] if s.answers]

    def prefix(self, load: Load) -> tuple[int, int]:
        """Tokens evaluated of prompts that begin alike, and how few can be."""
        shared, own = self.prompt(load.prompt), 8
        asked = [
            Request(str(i), shared + self.prompt(own), answer(load.answer))
            for i in range(load.sequences)
        ]
        least = load.prompt + load.sequences * (own + load.answer - 1)
        return self.steps({0: asked})[1], least

    def alone(self, load: Load) -> float:
        prompt = self.prompt(load.prompt)
        started = time.perf_counter()
        self.engine.generate([prompt], answer(load.answer))
        seconds = time.perf_counter() - started
        self.engine.reset()
        return seconds

    def bare(self, load: Load) -> float:
        """The same steps without prompts, parameters, sampling or text."""
        model, prompt = self.engine.model, self.prompt(load.prompt)
        started = time.perf_counter()
        model.step(prompt, list(range(len(prompt))), [(0,)] * len(prompt), [len(prompt) - 1])
        for i in range(load.answer - 1):
            model.step([prompt[0]], [len(prompt) + i], [(0,)], [0])
        seconds = time.perf_counter() - started
        self.engine.reset()
        return seconds


def answer(tokens: int) -> SamplingParams:
    """The likeliest tokens, exactly so many."""
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


def batched_bench(program: str, model: Path, load: Load, threads: int, context: int) -> Sample:
    """What llama-batched-bench says of the same load, its loading not counted."""
    options = {
        "-m": model, "-c": context, "-b": 2048, "-ub": 512, "-t": threads, "-tb": threads,
        "-npp": load.prompt, "-ntg": load.answer, "-npl": load.sequences,
        "--output-format": "jsonl",
    }  # fmt: skip
    for _ in range(TRIES):
        told = output(program, options, PATIENCE)[0].splitlines()
        if found := [line for line in told if line.startswith("{")]:
            return Sample(json.loads(found[0])["t"])
    raise ChildError(f"{program} does not print what it found")


def measured(asked: Namespace, tell: Tell) -> Generator[list[Measurement], None, None]:
    """Rows, one part after the other; `tell` is told which, and how many rounds are done."""
    path, effort, rule = resolve(asked.model), QUICK if asked.quick else FULL, asked.rule
    tell(f"{path.stem}: opening")
    most = max(effort.arriving.sequences, effort.prefix.sequences, effort.mixed.sequences + 1)
    options = Options(threads=asked.threads, context=effort.context, sequences=most)

    def watch(part: str) -> Callable[[int], None]:
        return lambda rounds: tell(f"{path.stem}, {part}: round {rounds}")

    with Engine.load(path, options) as engine:
        served = Served(engine)
        served.arriving(QUICK.arriving)  # to warm up

        def row(test: str, load: Load, contender: str = OURS, **more: Any) -> Measurement:
            return Measurement(
                BENCH, test, contender, model=path.name, threads=asked.threads, shape=load.shape,
                **more,
            )  # fmt: skip

        yield arriving(served, row, effort, asked.batched_bench, path, rule, watch(ARRIVING))
        yield from steps(served, row, effort, rule, watch)
        mixed, load = list[Step](), effort.mixed
        for rounds in range(1 if asked.quick else 3):
            watch(MIXED)(rounds)
            mixed += served.mixed(load)
        plain = [s.seconds for s in mixed if not s.read]
        among = [s.seconds for s in mixed if s.read]
        yield [
            row(MIXED, load, samples=tuple(plain), settings=ANSWERS),
            row(MIXED, load, samples=tuple(among), settings=f"beside prompts of {load.long}"),
        ]
        evaluated, least = served.prefix(effort.prefix)
        yield [row(PREFIX, effort.prefix, samples=(evaluated,), unit="tokens", tokens=least)]


Row = Callable[..., Measurement]


def arriving(
    served: Served, row: Row, effort: Effort, program: str, path: Path, rule: Rule,
    watch: Callable[[int], None],
) -> list[Measurement]:  # fmt: skip
    """All prompts at once, in turns with llama.cpp's program where it is."""
    load, threads = effort.arriving, served.engine.model.team.n_threads
    run = partial(batched_bench, program, path, load, threads, effort.context)
    contenders = {
        OURS: Contender(
            row(ARRIVING, load, tokens=load.tokens), partial(served.arriving, load)
        ),
        PEER: Contender(
            row(ARRIVING, load, PEER, tokens=load.tokens), run, excused=ChildError,
            absent="" if program else "llama-batched-bench is not named: --batched-bench PROGRAM",
        ),
    }  # fmt: skip
    return Experiment(contenders).run(rule, partial(race, watch=watch))


def steps(
    served: Served, row: Row, effort: Effort, rule: Rule, watch: Callable[[str], Any]
) -> Iterator[list[Measurement]]:
    """Steps of many answers and of one, the scheduler's part of either, and one prompt by
    `generate` beside bare steps; each pair in turns."""
    many, one = effort.step, replace(effort.step, sequences=1)
    own: dict[Load, list[float]] = {many: [], one: []}

    def pair(names: Mapping[str, tuple[Measurement, Sampler]]) -> list[Measurement]:
        contenders = {
            name: Contender(about, timed(measure)) for name, (about, measure) in names.items()
        }
        return Experiment(contenders).run(rule, partial(race, watch=watch(next(iter(names)))))

    yield pair(
        {
            f"{STEP} {load.sequences}": (
                row(STEP, load, tokens=load.sequences),
                partial(served.step, load, own[load]),
            )
            for load in (many, one)
        }
    )
    yield [row(OWN, load, samples=tuple(own[load]), unit="share") for load in own]
    yield pair(
        {
            ALONE: (row(ALONE, one, tokens=one.tokens), partial(served.alone, one)),
            BARE: (row(BARE, one, tokens=one.tokens), partial(served.bare, one)),
        }
    )


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.serving_speed", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or e.g. story")
    parser.add_argument("--batched-bench", default="", metavar="PROGRAM", help="llama.cpp's")
    options = parsed(parser, RULE, QUICKLY)
    return report(options, section, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
