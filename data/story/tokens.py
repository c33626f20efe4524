"""The byte-level BPE vocabulary of the story models, and their endless training text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data.story.grammar import sample

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1
SIZE = 1024
VOCABULARY_SEED, VOCABULARY_STORIES = 11, 30_000
IGNORE = -1  # a target without loss


def vocabulary(file: Path, texts: Iterable[str] | None = None) -> Tokenizer:
    """The tokenizer in `file`, trained first if there is none: on these texts, or on sampled
    stories."""
    if file.exists():
        return Tokenizer.from_file(str(file))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[BEGIN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rng = np.random.default_rng(VOCABULARY_SEED)
    stories = (sample(rng).text for _ in range(VOCABULARY_STORIES))
    tokenizer.train_from_iterator(stories if texts is None else texts, trainer)
    assert tokenizer.get_vocab_size() == SIZE
    tokenizer.save(str(file))
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """A whole story as ids, from BEGIN to END."""
    return [BEGIN_ID, *tokenizer.encode(text, add_special_tokens=False).ids, END_ID]


def alone(
    tokenizer: Tokenizer, rng: np.random.Generator, rows: int, batches: int = 4
) -> Iterator[np.ndarray]:
    """Endless samples: ids (rows, longest story), one story a row, IGNORE after its end."""
    while True:
        stories = [encode(tokenizer, sample(rng).text) for _ in range(rows * batches)]
        stories.sort(key=len)  # similar lengths in a batch
        for first in rng.permutation(batches) * rows:
            chosen = stories[first : first + rows]
            batch = np.full((rows, len(chosen[-1])), IGNORE, dtype=np.int64)
            for row, story in zip(batch, chosen, strict=True):
                row[: len(story)] = story
            yield batch


def packed(
    tokenizer: Tokenizer, rng: np.random.Generator, rows: int, tokens: int
) -> Iterator[np.ndarray]:
    """Endless samples: ids (rows, tokens + 1), full of stories, each row begins with one."""
    while True:
        batch = np.empty((rows, tokens + 1), dtype=np.int64)
        for row in batch:
            ids: list[int] = []
            while len(ids) < len(row):
                ids += encode(tokenizer, sample(rng).text)
            row[:] = ids[: len(row)]
        yield batch


def targets(ids: np.ndarray) -> np.ndarray:
    """The target of each id but the last; the start of a next story is none."""
    return np.where(ids[:, 1:] == BEGIN_ID, IGNORE, ids[:, 1:])
