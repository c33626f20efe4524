"""How many neurons a sparse model's blocks need, and how good their predictors are."""

from collections.abc import Iterable

import numpy as np

from bench.profile import check, token_ids
from engine.engine import Engine
from engine.passes.count import Counted, neuron_counts


def neurons(engine: Engine, tokens: int = 1, depth: int = 128) -> dict[str, Counted]:
    """Of each sparse block, over the very tokens of a profile's step and those before it.

    The engine was loaded with the pass `count_neurons`. What fires is looked for among all neurons,
    so this is no run to be timed. The engine's cache and counts are emptied.
    """
    model = engine.model
    check(engine, tokens, depth)
    blocks = neuron_counts(model.memory)
    if not blocks:
        return {}
    for counted in blocks.values():
        counted.clear()
    engine.reset()
    try:
        ids = token_ids(engine, depth + tokens)
        if depth:  # on its own, since the step's tokens share neurons where there is a union
            model.evaluate(ids[:depth], 0)
        model.evaluate(ids[depth:], depth)
        return {block: together([counted]) for block, counted in blocks.items()}
    finally:
        engine.reset()
        for counted in blocks.values():
            counted.clear()


def together(blocks: Iterable[Counted]) -> Counted:
    """The neurons of all blocks, with counts of their own."""
    columns = zip(*((b.predicted, b.fired, b.hits) for b in blocks), strict=True)
    return Counted(*map(np.concatenate, columns))
