"""A way to write a text, timed token by token."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine import Engine, SamplingParams
from engine.speculation.drafter import Drafter
from engine.speculation.speculate import Speculation

GREEDY = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)


class TextError(RuntimeError):
    """A text with drafts that is not the one without, or that ended too early."""


@dataclass(frozen=True, slots=True)
class Written:
    """What an engine wrote, the first token included, in so many steps after it; `seconds` are of
    these steps."""

    tokens: tuple[int, ...]
    steps: int
    seconds: float

    @property
    def pace(self) -> float:
        """Seconds a token."""
        return self.seconds / (len(self.tokens) - 1)


def write(engine: Engine, prompt: Sequence[int], params: SamplingParams, length: int) -> Written:
    """Go on by at least so many tokens in whole steps. The prompt, and the token behind it, which
    costs no step, are not timed."""
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


@contextmanager
def drafting(engine: Engine, speculation: Speculation | None) -> Iterator[None]:
    """Within it the engine drafts so."""
    engine.speculation = speculation
    try:
        yield
    finally:
        engine.speculation = None


def chains(engine: Engine, drafter: Drafter, most: int) -> Speculation:
    """Drafts that are chains of always so many tokens."""
    return Speculation(engine.model, drafter, most, branches=1, adaptive=False)


@dataclass(slots=True)
class Writer:
    """Writes a stretch of `length` tokens behind one prompt after the other; a contender of a race,
    whose samples are seconds a token.

    `expected` are the texts behind the prompts, where drafts must not change them: one that is
    another is an error. `tokens` and `steps` are those of all stretches so far, `pace` the last
    one's.
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
        with drafting(self.engine, self.speculation):
            found = write(self.engine, self.prompts[i], self.params, self.length)
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
        """Seconds of `c` steps of one token, as they were last; this writes without drafts."""
        return lambda: c * self.pace


def texts(
    engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams, length: int
) -> list[tuple[int, ...]]:
    """What the engine writes behind each without drafts."""
    return [write(engine, prompt, params, length).tokens for prompt in prompts]
