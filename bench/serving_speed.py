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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench.child import ChildError, output
from bench.contenders.contender import OURS
from bench.race.experiment import Contender, Racing, Rule, Sample, timed
from bench.race.program import Tell, parsed, report
from bench.race.results import Measurement
from bench.report import serving
from engine import Engine, Options, SamplingParams
from engine.embedded import resolve
from engine.model import Model
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler

RULE, QUICKLY = Rule(least=5, most=40, error=0.01, cap_seconds=60), Rule(least=2, most=2)
TRIES = 5  # llama-batched-bench may end before its logging thread has printed the result
UNTIMED = 3  # first steps of answers, which read their prompts


@dataclass(frozen=True, slots=True)
class Load:
    """So many prompts at once, of so many tokens, and the tokens of each answer; for the mixed load
    also the tokens of a long prompt and how many of those arrive."""

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
    """Seconds of a scheduler's step, those in which the model ran, and those in which tokens were
    sampled; `answers` and `read`: tokens of continued answers, and of prompts."""

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
    """An engine that serves random prompts, all from one seed."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._random = engine, np.random.default_rng(0)

    def prompt(self, length: int) -> list[int]:
        drawn = self._random.integers(0, self.engine.model.config.vocab, length)
        return cast(list[int], drawn.tolist())

    def row(self, test: str, load: Load, contender: str = OURS, **more: Any) -> Measurement:
        """A part's row before it is measured."""
        model = self.engine.model
        return Measurement(
            serving.BENCH, test, contender, model=model.file.path.name,
            threads=model.team.n_threads, shape=load.shape, **more,
        )  # fmt: skip

    def requests(self, load: Load) -> list[Request]:
        return [
            Request(str(i), self.prompt(load.prompt), answer(load.answer))
            for i in range(load.sequences)
        ]

    def steps(self, arriving: Mapping[int, Sequence[Request]]) -> tuple[list[Step], int]:
        """Steps of a scheduler to which requests arrive at these steps, and the number of evaluated
        tokens."""
        own, watched = self.engine.serving(), Watched(self.engine.model)
        scheduler, timings = Scheduler(replace(own, model=watched)), own.timings  # type: ignore[arg-type]
        found: list[Step] = []
        while scheduler.has_work or len(found) <= max(arriving):
            for request in arriving.get(len(found), ()):
                scheduler.add(request)
            spans = timings.eval, timings.prompt
            before = watched.seconds, timings.sample.seconds, *(span.tokens for span in spans)
            started = time.perf_counter()
            scheduler.step()
            taken = time.perf_counter() - started
            after = watched.seconds, timings.sample.seconds, *(span.tokens for span in spans)
            found.append(Step(taken, *(b - a for a, b in zip(before, after, strict=True))))  # type: ignore[arg-type]
        self.engine.text.set_held(scheduler.close())
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
        """The median step that continues answers; the share outside model and sampling is kept."""
        steps, _ = self.steps({0: self.requests(load)})
        going = [s for s in steps[UNTIMED:] if s.answers == load.sequences and not s.read]
        kept += [1 - (s.model + s.drawing) / s.seconds for s in going]
        return float(np.median([s.seconds for s in going]))

    def mixed(self, load: Load) -> list[Step]:
        """Steps with answers in progress, among which long prompts arrive, evenly spread."""
        arriving = {0: self.requests(load)}
        for k in range(load.count):
            long = Request(f"long {k}", self.prompt(load.long), answer(1))
            arriving[(k + 1) * load.answer // (load.count + 2)] = [long]
        return [s for s in self.steps(arriving)[0][UNTIMED:] if s.answers]

    def prefix(self, load: Load) -> tuple[int, int]:
        """Tokens evaluated for prompts with a common prefix, and the smallest possible number."""
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
    """Greedy tokens, exactly so many."""
    return SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)


def batched_bench(program: str, model: Path, load: Load, threads: int, context: int) -> Sample:
    """llama-batched-bench's result for the same load, without loading."""
    options = {
        "-m": model, "-c": context, "-b": 2048, "-ub": 512, "-t": threads, "-tb": threads,
        "-npp": load.prompt, "-ntg": load.answer, "-npl": load.sequences,
        "--output-format": "jsonl",
    }  # fmt: skip
    for _ in range(TRIES):
        told = output(program, options)[0].splitlines()
        if found := [line for line in told if line.startswith("{")]:
            return Sample(json.loads(found[0])["t"])
    raise ChildError(f"{program} does not print what it found")


def measured(asked: Namespace, tell: Tell) -> Generator[list[Measurement], None, None]:
    """Rows, one part after the other; `tell` receives the part, and how many rounds are done."""
    path, effort = resolve(asked.model), QUICK if asked.quick else FULL
    tell(f"{path.stem}: opening")
    racing = Racing(asked.rule, tell, path.stem)
    most = max(effort.arriving.sequences, effort.prefix.sequences, effort.mixed.sequences + 1)
    options = Options(threads=asked.threads, context=effort.context, sequences=most)
    with Engine.load(path, options) as engine:
        served = Served(engine)
        served.arriving(QUICK.arriving)  # to warm up
        yield arriving(racing, served, effort, asked.batched_bench)
        yield from steps(racing, served, effort.step)
        yield mixed(racing, served, effort.mixed, 1 if asked.quick else 3)
        evaluated, least = served.prefix(effort.prefix)
        row = served.row(serving.PREFIX, effort.prefix, unit="tokens", tokens=least)
        yield [replace(row, samples=(float(evaluated),))]


def arriving(racing: Racing, served: Served, effort: Effort, program: str) -> list[Measurement]:
    """All prompts at once, in turns with llama.cpp's program if there is one."""
    load, test, model = effort.arriving, serving.ARRIVING, served.engine.model
    about = model.file.path, load, model.team.n_threads, effort.context
    ours = served.row(test, load, tokens=load.tokens)
    absent = "" if program else "llama-batched-bench is not named: --batched-bench PROGRAM"
    run = partial(batched_bench, program, *about)
    return racing(test, {
        OURS: Contender(ours, partial(served.arriving, load)),
        serving.PEER: Contender(
            replace(ours, contender=serving.PEER), run, excused=ChildError, absent=absent
        ),
    })  # fmt: skip


def steps(racing: Racing, served: Served, many: Load) -> Iterator[list[Measurement]]:
    """Steps of many answers and of one, the scheduler's part of either, and one prompt by
    `generate` beside bare steps; each pair in turns."""
    one = replace(many, sequences=1)
    own: dict[Load, list[float]] = {many: [], one: []}
    yield racing(serving.STEP, {
        load.shape: Contender(
            served.row(serving.STEP, load, tokens=load.sequences),
            timed(partial(served.step, load, own[load])),
        )
        for load in own
    })  # fmt: skip
    yield [served.row(serving.OWN, load, samples=tuple(own[load]), unit="share") for load in own]
    ways = {serving.ALONE: served.alone, serving.BARE: served.bare}
    yield racing(serving.ALONE, {
        test: Contender(served.row(test, one, tokens=one.tokens), timed(partial(way, one)))
        for test, way in ways.items()
    })  # fmt: skip


def mixed(racing: Racing, served: Served, load: Load, rounds: int) -> list[Measurement]:
    """Steps of answers, with a part of a prompt beside them and without."""
    found = list[Step]()
    for done in range(rounds):
        racing.say(serving.MIXED, f"round {done}")
        found += served.mixed(load)
    plain = tuple(s.seconds for s in found if not s.read)
    among, beside = tuple(s.seconds for s in found if s.read), f"beside prompts of {load.long}"
    return [
        served.row(serving.MIXED, load, samples=plain, settings=serving.ANSWERS),
        served.row(serving.MIXED, load, samples=among, settings=beside),
    ]


def main() -> int:
    parser = ArgumentParser(prog="python -m bench.serving_speed", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or e.g. story")
    parser.add_argument("--batched-bench", default="", metavar="PROGRAM", help="llama.cpp's")
    options = parsed(parser, RULE, QUICKLY)
    return report(options, serving.section, partial(measured, options))


if __name__ == "__main__":
    sys.exit(main())
