"""One completion in the making: its sampler, its text, and when it stops."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Argmax, Row, Sampled, Sampler
from engine.tokenizer import Detokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to a completion; each token has one piece.

    `text` may be empty (half a character, or the possible beginning of a stop string, is held
    back). `logprob` is the token's log-probability under the model; `top_logprobs` the likeliest
    (token, logprob) pairs when asked for. The last piece of completion `index` has a
    `finish_reason`: "stop", "length" or "cancelled"; that of a cancelled one says no more than what
    was held back, and its `token` is None. The first piece carries the prompt's
    log-probabilities when asked for, one a token, None for the first. `drafted`: the token was
    foretold by a draft, and cost no step of its own. `stop_reason`: the stop string, or the token
    of `stop_token_ids`, by which a completion ended.
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
    """Finds the first stop string in a stream, holding back what may be the beginning of one."""

    stops: Sequence[str]
    include: bool = False
    held: str = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is safe to show, and the stop string that it completes."""
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
        """How many characters at the end may begin this stop string."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held


@dataclass(slots=True)
class Completion:
    """The state of completion `index`, in the cache's sequence of the same number. Its next piece
    carries `prompt_logprobs`."""

    index: int
    params: SamplingParams
    sampler: Sampler
    tokenizer: Tokenizer
    eog_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: tuple[float | None, ...] | None = None
    _stop: str | int | None = None  # what ended it
    _text: Detokenizer = field(init=False)
    _stops: StopStrings = field(init=False)

    def __post_init__(self) -> None:
        skip = self.params.skip_special_tokens
        self._text = Detokenizer(self.tokenizer, skip_special=skip, at_start=False)
        self._stops = StopStrings(self.params.stop, self.params.include_stop_str_in_output)

    def sample(self, row: Row) -> Piece:
        """Draw the next token from logits [vocab], or take what was found, and say what it adds."""
        if isinstance(row, Argmax):
            return self.take(self.sampler.argmax(row))
        return self.take(self.sampler.sample(row))

    def take(self, sampled: Sampled) -> Piece:
        """Go on with a token that the sampler gave and say what it adds."""
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
        """The text to show, and why the completion ends, if it does."""
        token = sampled.token
        params = self.params
        stopped = token in params.stop_token_ids or (
            token in self.eog_ids and not params.ignore_eos
        )
        if token in params.stop_token_ids:
            self._stop = token
        if stopped and not params.include_stop_str_in_output:
            return self._rest(), "stop"
        text = self._text.push(token) if params.detokenize else ""
        text, found = self._stops.push(text)
        if found is not None:
            self._stop = found
            return text, "stop"
        if stopped:
            return text + self._rest(), "stop"
        if params.max_tokens is not None and len(self.tokens) >= params.max_tokens:
            return text + self._rest(), "length"
        return text, None

    def _rest(self) -> str:
        text, found = self._stops.push(self._text.flush())
        return text if found is not None else text + self._stops.flush()

    def ended(self, piece: Piece, reason: str) -> Piece:
        """Its last piece as it is when no further one can come, with what was held back."""
        self.finished = True
        return replace(piece, text=piece.text + self._rest(), finish_reason=reason)

    def cancelled(self) -> Piece:
        """A last piece without a token, since that of its last token was said."""
        return self.ended(Piece("", None, 0.0, self.index), "cancelled")
