"""What verifying costs: a step of several tokens over one of a single token."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from bench.results import Measurement
from bench.speculation.contest import BENCH
from bench.timing import Race, Rule, Sampler, race
from engine import Engine

VERIFY = "verify"
MOST = 17  # tokens: llama.cpp's longest draft and the one before it
GOAL_TOKENS, GOAL = 5, 1.35


@dataclass(frozen=True, slots=True)
class Verifying:
    """Seconds of steps by their tokens, behind a text of `depth` tokens, taken in turns."""

    kind: ClassVar[str] = VERIFY
    model: str
    threads: int
    depth: int
    samples: Mapping[int, Sequence[float]]
    rivals: str = field(default_factory=lambda: secrets.token_hex(4))

    def quartiles(self, tokens: int) -> tuple[float, float, float]:
        """Of a step of so many tokens over the step of one in the same round: the lower quartile,
        the median, the upper quartile."""
        ratios = np.divide(self.samples[tokens], self.samples[1])
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        return float(low), float(middle), float(high)

    def cost(self, tokens: int) -> float:
        """The median; between two numbers of tokens that were measured on the line through both."""
        known = sorted(self.samples)
        return float(np.interp(tokens, known, [self.quartiles(n)[1] for n in known]))

    def measurements(self) -> Iterator[Measurement]:
        for tokens, samples in self.samples.items():
            test = f"{tokens} token{'s' * (tokens > 1)}"
            yield Measurement(
                BENCH, test, shape=f"{VERIFY} behind {self.depth}", model=self.model,
                threads=self.threads, samples=tuple(samples), tokens=tokens, rivals=self.rivals,
            )  # fmt: skip


def verifying(
    engine: Engine,
    text: Sequence[int],
    depth: int,
    counts: Sequence[int],
    rule: Rule,
    watch: Callable[[int], None],
) -> Verifying:
    """Steps of each of these numbers of tokens, logits of all, behind the first `depth` tokens of
    the text, which goes on for as many at least as the largest step has."""
    model = engine.model
    engine.reset()
    model.evaluate(text[:depth], 0)

    def stepping(tokens: int) -> Sampler:
        part = text[depth : depth + tokens]

        def step() -> float:
            started = time.perf_counter()
            model.step(part, range(depth, depth + tokens), [(0,)] * tokens, range(tokens))
            taken = time.perf_counter() - started
            model.cells.remove(0, depth)
            return taken

        return step

    steps = {str(tokens): stepping(tokens) for tokens in counts}
    Race(steps).round()  # which does not count
    samples = race(steps, rule, watch)
    engine.reset()
    return Verifying(
        model.file.path.name, model.team.n_threads, depth,
        {tokens: samples[str(tokens)] for tokens in counts},
    )  # fmt: skip
