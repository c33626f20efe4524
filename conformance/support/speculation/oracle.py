"""A drafter that knows the text, with a given error rate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from engine.speculation.drafter import TEXT, Draft, Verification


@dataclass(slots=True)
class Oracle:
    """Predicts `text` (a prompt and its continuation), with a wrong token instead of the right one
    at a rate of `errors`. Each token of its chain has `siblings` wrong ones. After the text's end
    it drafts arbitrary tokens.

    Its calls are recorded in `begun` and `told`.
    """

    text: Sequence[int]
    vocab: int
    errors: float = 0.0
    siblings: int = 0
    chance: Random = field(default_factory=lambda: Random(0))
    begun: list[list[int]] = field(default_factory=list)
    told: list[tuple[int, ...]] = field(default_factory=list)

    def begin(self, prompt: Sequence[int]) -> None:
        self.begun.append(list(prompt))
        self.told.append(())

    def draft(self, text: Sequence[int], most: int) -> Draft:
        assert list(text) == self.begun[-1] + list(self.told[-1])
        tokens: list[int] = []
        parents: list[int] = []
        last, at = TEXT, len(text)
        while len(tokens) < most:
            right = self._right_token(at)
            chosen = self._wrong(right) if self.chance.random() < self.errors else right
            beside = [chosen]
            while len(beside) <= self.siblings and len(tokens) + len(beside) < most:
                beside.append(self._wrong(*beside, right))
            where = self.chance.randrange(len(beside))
            beside[0], beside[where] = beside[where], beside[0]
            parents += [last] * len(beside)
            last = len(tokens) + where
            tokens += beside
            at += 1
        return Draft(tuple(tokens), tuple(parents))

    def verified(self, step: Verification) -> None:
        assert step.tokens
        assert 0 <= step.argmax(TEXT) < self.vocab
        self.told[-1] += step.tokens

    def _right_token(self, at: int) -> int:
        return self.text[at] if at < len(self.text) else self.chance.randrange(self.vocab)

    def _wrong(self, *tokens: int) -> int:
        while (token := self.chance.randrange(self.vocab)) in tokens:
            pass
        return token
