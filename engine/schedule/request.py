"""Requests: what was asked, the output so far, and running completions; or a scoring request."""

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
    """A prompt (text, or token ids), its parameters, and the pieces so far.

    Waiting requests are admitted by `priority`, smallest first (as in vLLM), then by arrival.
    `error` is set if the request failed. A scoring request has a `reading` that receives rows, and
    `read` is set at its end.
    """

    id: str
    prompt: str | Sequence[int]
    params: SamplingParams
    priority: int = 0
    arrived: float = field(default_factory=time.perf_counter)
    arrival: int = 0  # number of the request in its scheduler
    tokens: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    ended: int = 0
    cancelled: bool = False
    error: Exception | None = None
    started: float = 0.0
    first: float = 0.0
    finished_at: float = 0.0
    cached: int = 0
    reading: Reading | None = None
    read: bool = False

    @classmethod
    def of(cls, name: str, reading: Reading, priority: int = 0) -> "Request":
        """A scoring request."""
        text = list(reading.tokens)
        return cls(name, text, SamplingParams(), priority, tokens=text, reading=reading)

    @property
    def finished(self) -> bool:
        """Whether no more output will come."""
        return self.error is not None or self.read or self.ended == self.params.n

    def is_last_output(self, piece: Piece | None) -> bool:
        """Whether `piece` (None: no piece) is the request's last output."""
        last = None if self.error or self.read else self.pieces[-1] if self.pieces else None
        return self.finished and piece is last

    def add_piece(self, piece: Piece) -> None:
        """Record a piece."""
        now = time.perf_counter()
        self.first = self.first or now
        self.pieces.append(piece)
        self.ended += piece.finish_reason is not None
        self.finished_at = now

    def finish_reading(self) -> None:
        """Record that the reading is complete."""
        self.read, self.finished_at = True, time.perf_counter()

    def fail(self, error: Exception) -> None:
        """Record the request's failure."""
        self.error, self.finished_at = error, time.perf_counter()

    def result(self, tokenizer: Tokenizer) -> RequestOutput:
        """The complete result of a finished request."""
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
        times = since(self.started), since(self.first), since(self.finished_at)
        return RequestTimings(*times, len(self.tokens), self.cached, drawn)


@dataclass(slots=True, eq=False)
class Run:
    """A running completion (None for a scoring request). Its KV cache is sequence `slot`, with
    `held` tokens so far. `reading` receives the prompt's rows during prefill."""

    request: Request
    completion: Completion | None
    order: Order  # the largest is preempted first
    reading: Reading | None = None
    slot: int = -1
    held: int = 0

    @property
    def drawn(self) -> list[int]:
        """The generated tokens."""
        return self.completion.tokens if self.completion else []

    @property
    def length(self) -> int:
        """Number of tokens of the prompt and generated so far."""
        return len(self.request.tokens) + len(self.drawn)

    @property
    def first(self) -> int:
        """Index of the first token whose row is needed."""
        return self.reading.first if self.reading else self.length - 1

    @property
    def is_decoding(self) -> bool:
        """Whether only the last sampled token is left to evaluate."""
        return bool(self.drawn) and self.held == self.length - 1

    def next_tokens(self, count: int) -> list[int]:
        """The next `count` tokens to evaluate."""
        prompt, drawn = self.request.tokens, self.drawn
        beyond = len(prompt)
        end = self.held + count
        return prompt[self.held : end] + drawn[max(0, self.held - beyond) : max(0, end - beyond)]
