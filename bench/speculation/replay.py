"""A synthetic drafter: it knows the text, errs as often as it is told to and takes as long."""

import time
from collections.abc import Callable, Sequence
from random import Random

from engine.speculation.drafter import Draft, Verified


class Replay:
    """Foretells `text`, a prompt and what follows: each token is right with probability `alpha`,
    whatever the others are, and takes `seconds()` of spinning.

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
