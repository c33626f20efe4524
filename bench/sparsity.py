"""What skipping neurons leaves of a model: the embedded ReLU story model with all its neurons, with
those that fire, and with those that predictors name, threshold by threshold.

The model is read as in `bench.quality`, on the same stories; what it is compared with is itself
with all its neurons.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench.quality import DIVERGENCE, ERROR, LOSS, ROWS, SAME, longest, passages, scores
from bench.results import Measurement
from engine import Engine
from engine.embedded import resolve
from engine.observed import Counted
from engine.perplexity import Estimate

MODEL = "story-relu"
ALL, FIRING, PREDICTED = "all neurons", "those that fire", "those predicted"
THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
QUICK = (0.0, 1.0)

BENCH = "sparsity"
SHARE, FIRED, RECALL, PRECISION = "active share", "share that fires", "recall", "precision"
THRESHOLD = "threshold"
ZERO, ONE = Estimate(0.0, 0.0), Estimate(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Of a way to choose neurons (`kind`: ALL, FIRING or PREDICTED, and then the threshold): the
    share that was active and the share that would fire; recall and precision; the perplexity, and
    beside all neurons the KL divergence in nats and the share of same likeliest tokens."""

    kind: str
    threshold: float
    share: float
    fired: float
    recall: float
    precision: float
    perplexity: Estimate
    divergence: Estimate
    same_top: Estimate

    def measurements(self, threads: int) -> Iterator[Measurement]:
        """A row for each figure and for its error."""
        shape = f"{THRESHOLD}={self.threshold:g}" if self.kind == PREDICTED else ""
        about = partial(
            Measurement, BENCH, variant=self.kind, shape=shape, model=resolve(MODEL).name,
            threads=threads,
        )  # fmt: skip
        for test, value in (
            (SHARE, self.share), (FIRED, self.fired), (RECALL, self.recall),
            (PRECISION, self.precision),
        ):  # fmt: skip
            yield about(test, samples=(value,), unit="share")
        for test, estimate, unit in (
            (LOSS, self.perplexity, "perplexity"),
            (DIVERGENCE, self.divergence, "nats"),
            (SAME, self.same_top, "share"),
        ):
            yield about(test, samples=(max(0.0, estimate.value),), unit=unit)
            yield about(test + ERROR, samples=(estimate.error,), unit=unit)


def sparse(told: Sequence[str], thresholds: Sequence[float], threads: int) -> Iterator[Sparse]:
    """All neurons, those that fire, then those predicted at each threshold."""
    path = resolve(MODEL)
    texts = passages(path, told)
    load = partial(Engine.load, path, threads=threads, context=longest(texts), outputs=ROWS)
    with load(sparse="off") as engine:
        base, coded = scores(engine, texts, keep=True)
    ways = [(FIRING, -math.inf), *((PREDICTED, threshold) for threshold in thresholds)]
    for kind, threshold in ways:
        with load(sparse="on", threshold=threshold, count_neurons=True) as engine:
            tally, _ = scores(engine, texts, coded)
            counted = engine.model.counted.values()
        comparison = tally.comparison(exact=base)
        assert comparison is not None
        predicted, fired, hits, pairs = _pairs(counted, sum(len(t.tokens) - 1 for t in texts))
        if kind == FIRING:  # what is predicted is all; the engine skips what does not fire
            yield Sparse(
                ALL, threshold, 1, fired / pairs, 1, fired / pairs,
                base.perplexity().perplexity, ZERO, ONE,
            )  # fmt: skip
            predicted = fired
        yield Sparse(
            kind, threshold, predicted / pairs, fired / pairs, hits / fired,
            hits / predicted if predicted else 1.0, tally.perplexity().perplexity,
            comparison.divergence, comparison.same_top,
        )  # fmt: skip


def _pairs(counted: Iterable[Counted], tokens: int) -> tuple[int, int, int, int]:
    """Pairs of a token and a neuron that were predicted, that fired, that did both; and all."""
    blocks = list(counted)
    return (
        sum(int(block.predicted.sum()) for block in blocks),
        sum(int(block.fired.sum()) for block in blocks),
        sum(int(block.hits.sum()) for block in blocks),
        tokens * sum(len(block.fired) for block in blocks),
    )
