"""Timings of loading, prefill, decode, sampling and speculative decoding."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Span:
    """Time spent on a number of tokens."""

    seconds: float = 0.0
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @contextmanager
    def measure(self, tokens: int) -> Iterator[None]:
        """Add the duration of the block, and its tokens unless it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started
        self.tokens += tokens


@dataclass(slots=True)
class Timings:
    """Timings of loading, and of the last generation: prompt tokens, decoded tokens, sampling;
    statistics of its `speculation`, if used, and the bytes of the KV `cache`."""

    load: Span
    prompt: Span
    eval: Span
    sample: Span
    speculation: "Drafting | None" = None
    cache: int = 0

    @classmethod
    def empty(cls) -> "Timings":
        return cls(Span(), Span(), Span(), Span())

    def start(self) -> None:
        """Reset for a new generation."""
        self.prompt, self.eval, self.sample = Span(), Span(), Span()
        self.speculation = None

    @property
    def total(self) -> Span:
        """Sum of prefill, decode and sampling."""
        spans = (self.prompt, self.eval, self.sample)
        return Span(sum(s.seconds for s in spans), self.prompt.tokens + self.eval.tokens)


@dataclass(slots=True)
class Drafting:
    """Statistics of speculative decoding: time for drafting and verification, drafted and accepted
    tokens, also by position in the draft."""

    draft: Span = field(default_factory=Span)
    verify: Span = field(default_factory=Span)
    steps: int = 0
    tokens: int = 0  # tokens of the text from these steps
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, depth: int, drafted: int, accepted: int, tokens: int) -> None:
        """Count a step: a draft of `drafted` tokens whose longest branch has `depth`, `accepted` of
        them, and the `tokens` that the text gained."""
        self.steps += 1
        self.tokens += tokens
        self.drafted += drafted
        self.accepted += accepted
        grown = depth - len(self.drafted_at)
        self.drafted_at += [0] * grown
        self.accepted_at += [0] * grown
        for i in range(depth):
            self.drafted_at[i] += 1
            self.accepted_at[i] += i < accepted

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_at(self) -> list[float]:
        """Acceptance by position in the draft, over the drafts that reach it."""
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens per step of the target, its own token included."""
        return self.tokens / self.steps if self.steps else 0.0
