"""Quality of sparse inference: the embedded ReLU story model with all its neurons, with those that
fire, and with predicted ones, threshold by threshold.

The model is read as in `bench.quality`, on the same stories, and compared with itself with all its
neurons.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from bench.engine.profile import joined
from bench.quality import ROWS, estimates, figure, longest, passages, scores
from bench.race.results import Measurement
from engine import Engine
from engine.embedded import resolve
from engine.passes.count import Counted, count_neurons, neuron_counts
from engine.perplexity import Estimate

MODEL = "story-relu"
ALL, FIRING, PREDICTED = "all neurons", "those that fire", "those predicted"
THRESHOLDS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
QUICK = (0.0, 1.0)

BENCH = "sparsity"
SHARE, FIRED, RECALL, PRECISION = "active share", "share that fires", "recall", "precision"
THRESHOLD = "threshold"
ZERO, ONE = Estimate(0.0, 0.0), Estimate(1.0, 0.0)


def rows_of(
    kind: str, threshold: float, threads: int, shares: Mapping[str, float], *figures: Estimate
) -> list[Measurement]:
    """Rows of a way to choose neurons (ALL, FIRING, or PREDICTED with its threshold): the active
    share, the share that would fire, recall and precision; then quality.estimates against all
    neurons."""
    shape = f"{THRESHOLD}={threshold:g}" if kind == PREDICTED else ""
    model = resolve(MODEL).name
    row = Measurement(BENCH, "", variant=kind, shape=shape, model=model, threads=threads)
    found = [figure(row, name, share, "share") for name, share in shares.items()]
    return [*found, *estimates(row, *figures)]


def sparse(
    told: Sequence[str], thresholds: Sequence[float], threads: int
) -> Iterator[list[Measurement]]:
    """Rows of all neurons, of those that fire, then of those predicted at each threshold."""
    path = resolve(MODEL)
    texts = passages(path, told)
    load = partial(Engine.load, path, threads=threads, context=longest(texts), outputs=ROWS)
    with load(sparse="off") as engine:
        base, coded = scores(engine, texts, keep=True)
    ways = [(FIRING, -math.inf), *((PREDICTED, threshold) for threshold in thresholds)]
    for kind, threshold in ways:
        with load(sparse="on", threshold=threshold, passes=(count_neurons,)) as engine:
            tally, _ = scores(engine, texts, coded)
            counted = neuron_counts(engine.model.memory).values()
        comparison = tally.comparison(exact=base)
        assert comparison is not None
        predicted, fired, hits, pairs = _pairs(counted, sum(len(t.tokens) - 1 for t in texts))
        shares = {FIRED: fired / pairs}
        if kind == FIRING:  # all are predicted; the engine skips what does not fire
            every = {SHARE: 1.0, RECALL: 1.0, PRECISION: fired / pairs} | shares
            yield rows_of(ALL, threshold, threads, every, base.perplexity().perplexity, ZERO, ONE)
            predicted = fired
        shares |= {SHARE: predicted / pairs, RECALL: hits / fired}
        shares[PRECISION] = hits / predicted if predicted else 1.0
        loss = tally.perplexity().perplexity
        yield rows_of(
            kind, threshold, threads, shares, loss, comparison.divergence, comparison.same_top
        )


def _pairs(counted: Iterable[Counted], tokens: int) -> tuple[int, int, int, int]:
    """Counts of (token, neuron) pairs: predicted, firing, both, and all."""
    blocks = joined(counted)
    predicted, fired, hits = (int(c.sum()) for c in (blocks.predicted, blocks.fired, blocks.hits))
    return predicted, fired, hits, tokens * len(blocks.fired)
