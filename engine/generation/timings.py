"""Where the time went, in the figures that the field prints."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


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
    """Loading once; prompt tokens, generated tokens and samplings of the last generation, its
    `speculation`, if tokens were drafted, and the bytes of its keys and values in the `cache`."""

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
        """Begin a new generation."""
        self.prompt, self.eval, self.sample = Span(), Span(), Span()
        self.speculation = None

    @property
    def total(self) -> Span:
        """Prompt, generation and sampling together."""
        spans = (self.prompt, self.eval, self.sample)
        return Span(sum(s.seconds for s in spans), self.prompt.tokens + self.eval.tokens)


@dataclass(slots=True)
class Drafting:
    """What drafts did for a generation: time for drafting and for the target's steps, tokens that
    were drafted and of these accepted, also by position in the draft."""

    draft: Span = field(default_factory=Span)
    verify: Span = field(default_factory=Span)
    steps: int = 0
    tokens: int = 0  # of the text, that these steps gave
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, depth: int, drafted: int, accepted: int, tokens: int) -> None:
        """A step with a draft of so many tokens, the longest branch of which has `depth`, and of
        which so many were accepted; it gave the text so many."""
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
        """Of the drafted tokens, the share that was accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_at(self) -> list[float]:
        """The same by position, where a draft reached it."""
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step of the target gave, its own among them."""
        return self.tokens / self.steps if self.steps else 0.0
