"""What is written: texts to begin from, texts that a target is held to, and a drafter that knows
what comes next as well as it is told to."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from bench.quality import passages, stories
from engine import Engine
from engine.embedded import embedded_models
from engine.speculation.drafter import Draft, Verified

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


class Replay:
    """A drafter that foretells `text`, a prompt and what follows: each token is right with
    probability `alpha`, whatever the others are, and takes `seconds()` of spinning.

    Random numbers go on from text to text, so that each time other tokens are wrong.
    """

    def __init__(
        self, text: Sequence[int], vocab: int, alpha: float, seconds: Callable[[], float]
    ) -> None:
        self._text, self._vocab, self._alpha, self._seconds = text, vocab, alpha, seconds
        self._chance = Random(0)

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing: the text is known."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        started = time.perf_counter()
        right = self._text[len(text) : len(text) + most]
        draft = Draft.chain([self._told(token) for token in right])
        until = started + len(draft) * self._seconds()
        while time.perf_counter() < until:
            pass
        return draft

    def _told(self, token: int) -> int:
        if self._chance.random() < self._alpha:
            return token
        return (token + self._chance.randrange(1, self._vocab)) % self._vocab

    def verified(self, step: Verified) -> None:
        """Nothing: what was accepted is no matter."""
