"""When to stop measuring, and how to measure several contenders fairly: in turns.

Machines drift: clocks, neighbours, heat. Contenders that take turns within one run drift together,
so their ratio is stable where their times are not.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Sampler = Callable[[], float]  # measures once and returns the seconds of one call


def relative_error(samples: Sequence[float]) -> float:
    """The standard error of the median over the median, whatever the distribution.

    How many samples lie below the true median is binomial(n, 1/2), so the order statistics one
    standard deviation of it, sqrt(n) / 2, to either side of the middle enclose it two times in
    three.
    """
    n = len(samples)
    if n < 3:
        return math.inf
    ordered = np.sort(samples)
    middle, reach = (n - 1) / 2, math.sqrt(n) / 2
    low = ordered[max(0, math.floor(middle - reach))]
    high = ordered[min(n - 1, math.ceil(middle + reach))]
    error, median = float(high - low) / 2, float(np.median(ordered))
    if not error:
        return 0.0  # also of phases that took no time at all
    return error / median if median else math.inf


@dataclass(frozen=True, slots=True)
class Rule:
    """Stop once the relative error of the median is below `error`, or time is up.

    `least` samples are taken whatever they cost; `cap_seconds` and `most` end what does not settle.
    """

    least: int = 5
    error: float = 0.01
    cap_seconds: float = 1.0
    most: int = 1000

    def enough(self, samples: Sequence[float], elapsed: float) -> bool:
        if len(samples) < self.least:
            return False
        settled = not relative_error(samples) >= self.error  # a dead contender settles, too
        return settled or elapsed >= self.cap_seconds or len(samples) >= self.most


ONCE = Rule(least=1, most=1)


def race(
    contenders: Mapping[str, Sampler], rule: Rule, progress: Callable[[int], None] | None = None
) -> dict[str, list[float]]:
    """Samples of every contender, taken in turns until all have enough. Each round begins with
    another one, so that none always follows the same.

    `progress` receives after each round how many are done.
    """
    started, names, rounds = time.perf_counter(), list(contenders), 0
    samples: dict[str, list[float]] = {name: [] for name in names}
    while not all(rule.enough(s, time.perf_counter() - started) for s in samples.values()):
        first = rounds % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(contenders[name]())
        rounds += 1
        if progress:
            progress(rounds)
    return samples
