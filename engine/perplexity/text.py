"""Texts for measuring perplexity: cut into chunks, of which the second half is scored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import EngineError

Tokens = np.ndarray[Any, np.dtype[np.int32]]
LEAST_CONTEXT = 8
LEAST_CHUNKS = 2


class PerplexityError(EngineError):
    """A text or base of which no perplexity can be measured, in one plain line."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens read on their own from position 0; those after `tokens[first]` are scored, each
    predicted from all before it."""

    tokens: Sequence[int]
    first: int = 0

    @property
    def scored_tokens(self) -> Sequence[int]:
        return self.tokens[self.first + 1 :]


@dataclass(frozen=True, slots=True)
class Text:
    """Chunks of a text, int32 [chunks, context], and the token (BOS) that replaces each chunk's
    first, if the model wants one."""

    chunks: Tokens
    bos: int | None

    @property
    def context(self) -> int:
        return int(self.chunks.shape[1])

    @property
    def first(self) -> int:
        """The first token of a chunk whose successor is scored: earlier ones have too little
        context."""
        return self.context // 2

    @property
    def scored(self) -> int:
        """Scored tokens per chunk."""
        return scored_of(self.context)

    def passages(self) -> Iterator[Passage]:
        for chunk in self.chunks.tolist():
            begin = chunk[:1] if self.bos is None else [self.bos]
            yield Passage([*begin, *chunk[1:]], self.first)


def scored_of(context: int) -> int:
    return context - 1 - context // 2


def cut(tokens: Sequence[int], context: int, bos: int | None, most: int | None = None) -> Text:
    """A text's tokens, with BOS in front where the model wants it, in at most `most` chunks of
    `context` tokens; the remainder is ignored. Raises `PerplexityError`."""
    if context < LEAST_CONTEXT:
        raise PerplexityError(f"a chunk has at least {LEAST_CONTEXT} tokens, got {context}")
    if most is not None and most < 1:
        raise PerplexityError(f"chunks must be at least 1, got {most}")
    if len(tokens) < LEAST_CHUNKS * context:
        raise PerplexityError(
            f"the text has {len(tokens)} tokens: want at least {LEAST_CHUNKS * context},"
            f" which is {LEAST_CHUNKS} chunks of {context}"
        )
    count = min(len(tokens) // context, most or len(tokens))
    chunks = np.array(tokens[: count * context], np.int32).reshape(count, context)
    return Text(chunks, bos)
