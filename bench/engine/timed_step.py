"""Times a step and undoes it, so that the next one begins at the same state."""

import time
from collections.abc import Sequence

from engine.model import Model


def timed_step(
    model: Model, tokens: Sequence[int], depth: int, outputs: Sequence[int] = (0,)
) -> float:
    """Seconds of a step of these tokens of sequence 0, which has `depth` before them; logits are
    computed for the tokens at these indices."""
    places = range(depth, depth + len(tokens))
    started = time.perf_counter()
    model.step(tokens, places, [(0,)] * len(tokens), outputs)
    seconds = time.perf_counter() - started
    model.cells.remove(0, begin=depth)
    return seconds
