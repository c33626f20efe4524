"""Texts as vectors: the last norm's result for their tokens, pooled."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.checks import PromptError, check_prompt
from reference.op import Array

if TYPE_CHECKING:
    from engine.engine import Engine

POOLING = ("mean", "last", "cls", "none")


def check_pooling(pooling: str) -> None:
    if pooling not in POOLING:
        raise PromptError(f"pooling is {pooling!r}: want one of {', '.join(POOLING)}")


def texts_of(engine: "Engine", texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Their tokens. Raises PromptError before anything is evaluated."""
    found = []
    for number, text in enumerate(texts):
        found.append(engine.encode(text))
        try:
            check_prompt(found[-1], engine.tokenizer.vocab_size, engine.model.cells.capacity)
        except PromptError as error:
            where = f"text {number}: " if len(texts) > 1 else ""
            raise PromptError(f"{where}{error}") from None
    return found


def embeddings(
    engine: "Engine", texts: Sequence[Sequence[int]], pooling: str, normalize: bool
) -> Iterator[Array]:
    """Each text's vector float32 [hidden], or its tokens' [tokens, hidden] with pooling "none".

    A text is pooled as a whole, so that nothing depends on how it was cut. With `normalize` the
    length of each vector is 1, unless it is 0.
    """
    held = engine.reading()
    for text in texts:
        tokens = text[:1] if pooling == "cls" else text  # the first token sees no other
        first = len(tokens) - 1 if pooling == "last" else 0
        parts = held.rows(tokens, first, engine.timings.prompt, hidden=True)
        rows = np.concatenate([part.copy() for part in parts])
        pooled = rows if pooling == "none" else rows.mean(axis=0, dtype=np.float64)
        yield _normalized(pooled) if normalize else pooled.astype(np.float32)


def _normalized(vectors: Array) -> Array:
    wide = vectors.astype(np.float64)
    length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    return np.asarray(wide / np.where(length == 0, 1, length)).astype(np.float32)
