"""How many neurons a sparse model's blocks need, and how good their predictors are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.profile import check, token_ids
from engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Neurons:
    """Of a block or of more: how often a neuron met a token, `met`; how often it was then
    `predicted`, how often it `fired` and how often it did as predicted, `hits`."""

    block: str
    met: int
    predicted: int
    fired: int
    hits: int

    @property
    def active(self) -> float:
        """The share of neurons that run, those that were predicted."""
        return self.predicted / self.met

    @property
    def recall(self) -> float:
        """Of neurons that fire, the share that was predicted; NaN if none fires."""
        return self.hits / self.fired if self.fired else math.nan

    @property
    def precision(self) -> float:
        """Of neurons that were predicted, the share that fires; NaN if none was."""
        return self.hits / self.predicted if self.predicted else math.nan


def neurons(engine: Engine, tokens: int = 1, depth: int = 128) -> list[Neurons]:
    """Of each sparse block, over the very tokens of a profile's step and those before it.

    The engine was loaded with `count_neurons`. What fires is looked for among all neurons, so this
    is no run to be timed. The engine's cache and counts are emptied.
    """
    model = engine.model
    check(engine, tokens, depth)
    if not model.counted:
        return []
    for counted in model.counted.values():
        counted.clear()
    engine.reset()
    try:
        ids = token_ids(engine, depth + tokens)
        if depth:  # on its own, since the step's tokens share neurons where there is a union
            model.evaluate(ids[:depth], 0)
        model.evaluate(ids[depth:], depth)
    finally:
        engine.reset()
    found = []
    for block, counted in model.counted.items():
        sums = (int(counts.sum()) for counts in (counted.predicted, counted.fired, counted.hits))
        found.append(Neurons(block, len(ids) * len(counted.predicted), *sums))
        counted.clear()
    return found


def together(blocks: Sequence[Neurons]) -> Neurons:
    """Of all blocks."""
    columns = ((b.met, b.predicted, b.fired, b.hits) for b in blocks)
    return Neurons("all", *map(sum, zip(*columns, strict=True)))
