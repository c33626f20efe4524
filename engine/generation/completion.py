"""The state of one completion: its sampler, its text, and its stop conditions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Argmax, Row, Sampled, Sampler
from engine.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """The output of one token of a completion.

    `text` may be empty: an incomplete character, or the possible beginning of a stop string, is
    held back. `logprob` is the token's log-probability under the model; `top_logprobs` are the most
    likely (token, logprob) pairs, if requested. The last piece of completion `index` has a
    `finish_reason`: "stop", "length" or "cancelled"; a cancelled completion's has only text that
    was held back, and its `token` is None. The first piece has the prompt's log-probabilities, if
    requested, None for its first token. `drafted`: the token was an accepted draft and cost no step
    of its own. `stop_reason`: the stop string, or the token of `stop_token_ids`, that ended the
    completion.
    """

    text: str
    token: int | None
    logprob: float
    index: int = 0
    finish_reason: str | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: tuple[float | None, ...] | None = None
    drafted: bool = False
    stop_reason: str | int | None = None


@dataclass(slots=True)
class StopStrings:
    """Finds the first stop string in a stream of text; holds back what may be the start of one."""

    stops: Sequence[str]
    include: bool = False
    held: str = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Append text; returns the text that is safe to emit, and the stop string found."""
        self.held += text
        found = [(at, stop) for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            return self.held[: at + len(stop) if self.include else at], stop
        keep = max((self._overlap(stop) for stop in self.stops), default=0)
        safe = self.held[: len(self.held) - keep]
        self.held = self.held[len(safe) :]
        return safe, None

    def _overlap(self, stop: str) -> int:
        """Length of the longest prefix of the stop string at the end of the held text."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held


@dataclass(slots=True)
class Completion:
    """The state of completion `index`. Its next piece carries `prompt_logprobs`."""

    index: int
    params: SamplingParams
    sampler: Sampler
    tokenizer: Tokenizer
    eog_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: tuple[float | None, ...] | None = None
    _stop: str | int | None = None  # the stop string or token found
    _text: Detokenizer = field(init=False)
    _stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        skip = self.params.skip_special_tokens
        self._text = Detokenizer(self.tokenizer, skip_special=skip, at_start=False)
        self._stops = StopStrings(self.params.stop, self.params.include_stop_str_in_output)

    def sample(self, row: Row) -> Piece:
        """Sample the next token from logits [vocab], or accept an argmax; returns its piece."""
        if isinstance(row, Argmax):
            return self.append(self.sampler.argmax(row))
        return self.append(self.sampler.sample(row))

    def append(self, sampled: Sampled) -> Piece:
        """Append a sampled token; returns its piece."""
        self.sampler.accept(sampled.token)
        self.tokens.append(sampled.token)
        text, reason = self._advance(sampled)
        self.finished = reason is not None
        prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        return Piece(
            text,
            sampled.token,
            sampled.logprob,
            self.index,
            reason,
            tuple(sampled.top),
            prompt_logprobs,
            stop_reason=self._stop,
        )

    def _advance(self, sampled: Sampled) -> tuple[str, str | None]:
        """The text to emit, and the finish reason, if the completion ends."""
        token = sampled.token
        params = self.params
        stopped = token in params.stop_token_ids or (
            token in self.eog_ids and not params.ignore_eos
        )
        if token in params.stop_token_ids:
            self._stop = token
        if stopped and not params.include_stop_str_in_output:
            return self._flush(), "stop"
        text = self._text.push(token) if params.detokenize else ""
        text, found = self._stops.push(text)
        if found is not None:
            self._stop = found
            return text, "stop"
        if stopped:
            return text + self._flush(), "stop"
        if params.max_tokens is not None and len(self.tokens) >= params.max_tokens:
            return text + self._flush(), "length"
        return text, None

    def _flush(self) -> str:
        text, found = self._stops.push(self._text.flush())
        return text if found is not None else text + self._stops.flush()

    def finish(self, piece: Piece, reason: str) -> Piece:
        """The last piece when generation cannot continue, with the text held back."""
        self.finished = True
        return replace(piece, text=piece.text + self._flush(), finish_reason=reason)

    def cancel(self) -> Piece:
        """A last piece without a token, after the piece of the last token was emitted."""
        return self.finish(Piece("", None, 0.0, self.index), "cancelled")
