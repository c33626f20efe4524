"""Where the time went, in the figures that the field prints."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Span:
    """Seconds spent on so many tokens."""

    seconds: float = 0.0
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @contextmanager
    def measure(self, tokens: int) -> Iterator[None]:
        """Add the time of the block, and its tokens if it ends well."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
        self.tokens += tokens


@dataclass(slots=True)
class Timings:
    """Loading once; prompt tokens, generated tokens and samplings of the last generation."""

    load: Span
    prompt: Span
    eval: Span
    sample: Span

    @classmethod
    def empty(cls) -> "Timings":
        return cls(Span(), Span(), Span(), Span())

    def start(self) -> None:
        """Begin a new generation."""
        self.prompt, self.eval, self.sample = Span(), Span(), Span()

    @property
    def total(self) -> Span:
        """Prompt, generation and sampling together."""
        spans = (self.prompt, self.eval, self.sample)
        return Span(sum(s.seconds for s in spans), self.prompt.tokens + self.eval.tokens)
