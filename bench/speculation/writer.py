"""Writers in races of speculative decoding: texts to start from and to be forced to, a synthetic
drafter of set accuracy, and timed writing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from bench import quality
from engine import Engine, SamplingParams
from engine.speculation.drafter import Draft, Drafter, Verification
from engine.speculation.speculate import Speculation

Array = np.ndarray[Any, np.dtype[np.float32]]
GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)


def opening(engine: Engine, length: int, number: int = 0) -> list[int]:
    """So many tokens to continue from; another number, another opening."""
    path, vocab = engine.model.file.path, engine.tokenizer.vocab_size
    return quality.opening(path, vocab, length, number)


class Held:
    """A logits processor that leaves only the next token of this text: the target computes as
    usual, and then outputs what it is forced to, as under a grammar."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text

    def __call__(self, history: list[int], logits: Array) -> Array:
        left = np.full_like(logits, -np.inf)
        left[self._text[len(history)]] = 0.0
        return left


class Replay:
    """A drafter that predicts `text`, a prompt and its continuation: each token is right with
    probability `alpha`, independently, and costs `seconds()` of spinning.

    Random numbers continue from text to text, so that each time other tokens are wrong.
    """

    def __init__(
        self, text: Sequence[int], vocab: int, alpha: float, seconds: Callable[[], float]
    ) -> None:
        self._text, self._vocab, self._alpha, self._seconds = text, vocab, alpha, seconds
        self._chance = Random(0)

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to do: the text is known."""

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

    def verified(self, step: Verification) -> None:
        """Nothing to do: what was accepted does not matter."""


class TextError(RuntimeError):
    """A text with drafts that differs from the plain one, or that ended too early."""


@dataclass(frozen=True, slots=True)
class Written:
    """An engine's output, the first token included, in so many steps after it; `seconds` are of
    these steps."""

    tokens: tuple[int, ...]
    steps: int
    seconds: float

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / (len(self.tokens) - 1)


def write(engine: Engine, prompt: Sequence[int], params: SamplingParams, length: int) -> Written:
    """Write at least so many tokens in whole steps. The prompt, and the token after it, which costs
    no step, are not timed."""
    pieces = engine.stream(prompt, params)
    first = next(pieces).token
    assert first is not None
    tokens, steps = [first], 0
    started = time.perf_counter()
    try:
        for piece in pieces:
            assert piece.token is not None  # nobody cancels
            tokens.append(piece.token)
            steps += not piece.drafted
            if len(tokens) > length and not piece.drafted:
                return Written(tuple(tokens), steps, time.perf_counter() - started)
    finally:
        pieces.close()
    raise TextError(f"the context was full after {len(tokens)} tokens of {length}")


def chains(engine: Engine, drafter: Drafter, most: int) -> Speculation:
    """Drafts that are chains of a fixed number of tokens."""
    return Speculation(engine.model, drafter, most, branches=1, adaptive=False)


@dataclass(slots=True)
class Writer:
    """Writes a stretch of `length` tokens after one prompt after the other; a contender of a race,
    whose samples are seconds per token.

    `expected` are the texts after the prompts, where drafts must not change them: a different text
    is an error. `tokens` and `steps` are those of all stretches so far, `pace` the last one's.
    """

    engine: Engine
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    length: int
    speculation: Speculation | None = None
    expected: Sequence[Sequence[int]] | None = None
    tokens: int = 0
    steps: int = 0
    pace: float = 0.0
    _turn: int = 0

    def __call__(self) -> float:
        i = self._turn % len(self.prompts)
        self.engine.speculation = self.speculation
        try:
            found = write(self.engine, self.prompts[i], self.params, self.length)
        finally:
            self.engine.speculation = None
        if self.expected:
            self._compare(found.tokens, self.expected[i])
        self._turn += 1
        self.tokens += len(found.tokens) - 1
        self.steps += found.steps
        self.pace = found.pace
        return found.pace

    def _compare(self, tokens: Sequence[int], expected: Sequence[int]) -> None:
        for i, (token, wanted) in enumerate(zip(tokens, expected, strict=False)):
            if token != wanted:
                raise TextError(f"token {i} is {token} with drafts and {wanted} without")

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps

    def steps_of(self, c: float) -> Callable[[], float]:
        """Seconds of `c` steps of one token, as last measured; for the writer without drafts."""
        return lambda: c * self.pace


def texts(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, length: int
) -> list[tuple[int, ...]]:
    """The engine's continuations of each without drafts."""
    return [write(engine, prompt, params, length).tokens for prompt in prompts]
