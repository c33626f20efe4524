"""A prompt on its way: what was asked, what has come of it, and its completions that run; or a text
that is only read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.generation.completion import Completion, Piece
from engine.generation.reading import Reading
from engine.generation.results import RequestOutput, RequestTimings, completions_of
from engine.sampling.params import SamplingParams
from engine.tokenizer import Tokenizer

Order = tuple[int, int, int]  # priority, arrival, index of a request


@dataclass(slots=True, eq=False)
class Request:
    """A prompt (text, or token ids), its parameters in tokens, and the pieces that have come.

    Of two that wait, the one of the smaller `priority` goes first (as in vLLM), or else the one
    that came first. `error` is why nothing came of it. With a `reading` nothing is drawn: it gets
    the rows that it wants, and `read` says that it has them all.
    """

    id: str
    prompt: str | Sequence[int]
    params: SamplingParams
    priority: int = 0
    arrived: float = field(default_factory=time.perf_counter)
    arrival: int = 0  # among the scheduler's
    tokens: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    ended: int = 0
    cancelled: bool = False
    error: Exception | None = None
    begun: float = 0.0
    first: float = 0.0
    over: float = 0.0
    cached: int = 0
    reading: Reading | None = None
    read: bool = False

    @classmethod
    def of(cls, name: str, reading: Reading, priority: int = 0) -> "Request":
        """One for a text that is only read."""
        text = list(reading.tokens)
        return cls(name, text, SamplingParams(), priority, tokens=text, reading=reading)

    @property
    def finished(self) -> bool:
        """Whether nothing will come any more."""
        return self.error is not None or self.read or self.ended == self.params.n

    def ends_with(self, piece: Piece | None) -> bool:
        """Whether this, or None of one without a further piece, is the last that came of it."""
        last = None if self.error or self.read else self.pieces[-1] if self.pieces else None
        return self.finished and piece is last

    def says(self, piece: Piece) -> None:
        """A piece has come."""
        now = time.perf_counter()
        self.first = self.first or now
        self.pieces.append(piece)
        self.ended += piece.finish_reason is not None
        self.over = now

    def is_read(self) -> None:
        """Its reading has all rows."""
        self.read, self.over = True, time.perf_counter()

    def fails(self, error: Exception) -> None:
        """Nothing more will come of it."""
        self.error, self.over = error, time.perf_counter()

    def result(self, tokenizer: Tokenizer) -> RequestOutput:
        """All that came of it, once it is finished."""
        text = self.prompt if isinstance(self.prompt, str) else None
        asked = self.params.logprobs is not None
        outputs = completions_of(self.pieces, self.params.n, tokenizer, asked)
        scores = (p.prompt_logprobs for p in self.pieces if p.prompt_logprobs is not None)
        return RequestOutput(
            self.id,
            text,
            tuple(self.tokens),
            outputs,
            timings=self._timings(),
            prompt_logprobs=next(scores, None),
            error=None if self.error is None else str(self.error),
        )

    def _timings(self) -> RequestTimings:
        def since(moment: float) -> float:
            return max(0.0, moment - self.arrived)

        drawn = sum(piece.token is not None for piece in self.pieces)
        times = since(self.begun), since(self.first), since(self.over)
        return RequestTimings(*times, len(self.tokens), self.cached, drawn)


@dataclass(slots=True, eq=False)
class Run:
    """A completion of a request, or none where it is only read, whose cells are those of sequence
    `slot`, `held` of its tokens so far. A `reading` has the prompt's rows until it is read."""

    request: Request
    completion: Completion | None
    order: Order  # who is put back last
    reading: Reading | None = None
    slot: int = -1
    held: int = 0

    @property
    def drawn(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.completion.tokens if self.completion else []

    @property
    def length(self) -> int:
        """Tokens of the prompt and what was drawn behind it."""
        return len(self.request.tokens) + len(self.drawn)

    @property
    def first(self) -> int:
        """The first token behind which something is wanted."""
        return self.reading.first if self.reading else self.length - 1

    @property
    def decodes(self) -> bool:
        """Whether the token drawn last is all that is not evaluated."""
        return bool(self.drawn) and self.held == self.length - 1

    def part(self, count: int) -> list[int]:
        """The next so many tokens that are not evaluated."""
        prompt, drawn = self.request.tokens, self.drawn
        beyond = len(prompt)
        end = self.held + count
        return prompt[self.held : end] + drawn[max(0, self.held - beyond) : max(0, end - beyond)]
