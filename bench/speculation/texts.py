"""What is written: texts to begin from, and texts that a target is held to."""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bench.quality import passages, stories
from engine import Engine
from engine.embedded import embedded_models

Array = np.ndarray[Any, np.dtype[np.float32]]


def opening(engine: Engine, length: int, number: int = 0) -> list[int]:
    """So many tokens to go on from: for an embedded model of held-out stories, from the beginning
    of one on, else random ones. Another number, another opening."""
    path = engine.model.file.path
    if path in embedded_models().values():
        told = _stories(path)
        number %= len(told)
        return list(chain(*told[number:], *told[:number]))[:length]
    tokens = np.random.default_rng(number).integers(0, engine.tokenizer.vocab_size, length)
    return [int(token) for token in tokens]


@cache
def _stories(path: Path) -> list[tuple[int, ...]]:
    return [tuple(passage.tokens) for passage in passages(path, stories())]


class Held:
    """A logits processor that leaves one token, the next of this text: the target computes all that
    it would, and then says what it is held to, as under a grammar."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text

    def __call__(self, history: list[int], logits: Array) -> Array:
        left = np.full_like(logits, -np.inf)
        left[self._text[len(history)]] = 0.0
        return left
