"""A text as perplexity is measured on it: cut into chunks, of which the second half counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import EngineError

Tokens = np.ndarray[Any, np.dtype[np.int32]]
LEAST_CONTEXT = 8
LEAST_CHUNKS = 2


class PerplexityError(EngineError):
    """A text or base of which no perplexity can be measured: one line that says why."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens to be read on their own, from position 0; those behind `tokens[first]` are foretold,
    each from all before it."""

    tokens: Sequence[int]
    first: int = 0

    @property
    def foretold(self) -> Sequence[int]:
        return self.tokens[self.first + 1 :]


@dataclass(frozen=True, slots=True)
class Text:
    """Chunks of a text, int32 [chunks, context], and the token that takes the place of the first
    one of each, if the model wants a text to begin with one."""

    chunks: Tokens
    bos: int | None

    @property
    def context(self) -> int:
        return int(self.chunks.shape[1])

    @property
    def first(self) -> int:
        """The first token of a chunk whose successor counts: those before have seen too little."""
        return self.context // 2

    @property
    def scored(self) -> int:
        """Tokens of a chunk that count."""
        return scored_of(self.context)

    def passages(self) -> Iterator[Passage]:
        for chunk in self.chunks.tolist():
            begin = chunk[:1] if self.bos is None else [self.bos]
            yield Passage([*begin, *chunk[1:]], self.first)


def scored_of(context: int) -> int:
    return context - 1 - context // 2


def cut(tokens: Sequence[int], context: int, bos: int | None, most: int | None = None) -> Text:
    """A text's tokens, BOS in front where the model wants it, in at most `most` chunks of `context`
    tokens; what is left over counts for nothing. Raises `PerplexityError`."""
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
