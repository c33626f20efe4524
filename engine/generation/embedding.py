"""Text embeddings: pooled hidden states."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.checks import PromptError, check_prompt
from engine.sampling.sampler import Row
from reference.op import Array

if TYPE_CHECKING:
    from engine.engine import Engine

POOLING = ("mean", "last", "cls", "none")


def check_pooling(pooling: str) -> None:
    if pooling not in POOLING:
        raise PromptError(f"pooling is {pooling!r}: want one of {', '.join(POOLING)}")


def encode_texts(engine: "Engine", texts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Encode the texts. Raises `PromptError` before anything is evaluated."""
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
    """Yields each text's embedding float32 [hidden], or [tokens, hidden] with pooling "none"."""
    held = engine.begin_reading()
    for text in texts:
        vectors = Vectors(text, pooling, normalize)
        held.collect(vectors, engine.timings.prompt)
        yield vectors.pooled()


class Vectors:
    """Collects the hidden states of a text's tokens that its pooling needs."""

    hidden = True

    def __init__(self, text: Sequence[int], pooling: str, normalize: bool) -> None:
        self.tokens = text[:1] if pooling == "cls" else text  # it attends only to itself
        self.first = len(text) - 1 if pooling == "last" else 0
        self._pooling, self._normalize = pooling, normalize
        self.reset()

    def reset(self) -> None:
        self._parts: list[Array] = []

    def receive(self, rows: Array | Sequence[Row]) -> None:
        self._parts.append(np.array(rows))

    def pooled(self) -> Array:
        """The embedding, once the text is read. Pooling is done at the end, so that results do not
        depend on chunking. With `normalize` vectors have length 1, unless they are 0."""
        rows = np.concatenate(self._parts)
        pooled = rows if self._pooling == "none" else rows.mean(axis=0, dtype=np.float64)
        return _normalized(pooled) if self._normalize else pooled.astype(np.float32)


def stack_embeddings(found: Sequence[Array], pooling: str, hidden: int) -> Any:
    """Embeddings of many texts: float32 [texts, hidden], or a list with pooling "none"."""
    if pooling == "none":
        return list(found)
    return np.stack(found) if found else np.empty((0, hidden), np.float32)


def _normalized(vectors: Array) -> Array:
    wide = vectors.astype(np.float64)
    length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    return np.asarray(wide / np.where(length == 0, 1, length)).astype(np.float32)
