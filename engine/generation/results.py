"""Results of a generation, under vLLM's names."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.generation.completion import Piece
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural log-probability under the model, and its `rank` from 1, if it is among the
    most likely tokens requested."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion: its text and tokens, and why it ended.

    - `finish_reason`: "stop", "length", "cancelled", or "error" if one of many prompts failed.
    - `stop_reason`: the stop string or the token of `stop_token_ids` that ended it.
    - `logprobs`: for each token, by id, the most likely tokens and the sampled one; None if not
      requested. `cumulative_logprob` is the sum over the sampled tokens.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float
    logprobs: tuple[Mapping[int, Logprob], ...] | None
    finish_reason: str
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Seconds from a prompt's arrival until prefill began (`queued`), to its first token, and in
    all; its `prompt_tokens`, the `cached_tokens` among them, and the generated `tokens`."""

    queued: float = 0.0
    first_token: float = 0.0
    total: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Generated tokens per second after the first token."""
        seconds = self.total - self.first_token
        return self.tokens / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt's completions; `outputs[0].text` is the first one's text.

    `prompt` is None for token ids. `error` is the reason if one of many prompts failed.
    `prompt_logprobs` are those of its tokens, if requested, None for the first.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool = True
    timings: RequestTimings = field(default_factory=RequestTimings, compare=False)
    prompt_logprobs: tuple[float | None, ...] | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The first completion's text."""
        return self.outputs[0].text


def completion_of(
    index: int, pieces: Sequence[Piece], tokenizer: Tokenizer, with_logprobs: bool
) -> CompletionOutput:
    """A completion from its pieces; it has failed if its last piece is missing."""
    drawn = [piece for piece in pieces if piece.token is not None]
    return CompletionOutput(
        index,
        "".join(piece.text for piece in pieces),
        tuple(piece.token for piece in drawn if piece.token is not None),
        math.fsum(piece.logprob for piece in drawn),
        tuple(_logprobs(piece, tokenizer) for piece in drawn) if with_logprobs else None,
        (pieces[-1].finish_reason if pieces else None) or "error",
        pieces[-1].stop_reason if pieces else None,
    )


def completions_of(
    pieces: Iterable[Piece], count: int, tokenizer: Tokenizer, with_logprobs: bool
) -> tuple[CompletionOutput, ...]:
    """The completions of one prompt from their interleaved pieces."""
    sorted_: list[list[Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        sorted_[piece.index].append(piece)
    return tuple(
        completion_of(index, own, tokenizer, with_logprobs) for index, own in enumerate(sorted_)
    )


def _logprobs(piece: Piece, tokenizer: Tokenizer) -> dict[int, Logprob]:
    assert piece.token is not None
    found = {
        token: Logprob(logprob, rank, tokenizer.piece(token))
        for rank, (token, logprob) in enumerate(piece.top_logprobs, start=1)
    }
    drawn = Logprob(piece.logprob, None, tokenizer.piece(piece.token))
    return found | ({} if piece.token in found else {piece.token: drawn})
