"""A base run's log-probabilities on disk, in the file that llama.cpp's perplexity tool writes and
reads (`--kl-divergence-base`):

    header   8 bytes `_logits_`, then little-endian i32: tokens of a chunk, vocabulary, chunks
    text     i32 [chunks, context], BOS not put in
    row      for each token that counts: f32 scale, f32 least, u16 [vocab], one more if vocab is odd
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from engine.atomic_write import atomic_write
from engine.closeable import Closeable
from engine.perplexity.scores import Coded
from engine.perplexity.text import LEAST_CONTEXT, PerplexityError, Text, Tokens, scored_of

MAGIC = b"_logits_"
HEADER = struct.Struct("<8s3i")


def row_of(vocab: int) -> np.dtype[np.void]:
    """A row as a NumPy dtype."""
    return np.dtype(
        {
            "names": ["line", "codes"],
            "formats": [("<f4", 2), ("<u2", vocab)],
            "itemsize": 8 + 2 * (vocab + vocab % 2),
        }
    )


@dataclass(frozen=True, slots=True)
class LogitsWriter:
    """Writes the rows of one chunk after another."""

    file: BinaryIO
    row: np.dtype[np.void]

    def add(self, coded: Coded) -> None:
        rows = np.zeros(len(coded.codes), self.row)
        rows["line"], rows["codes"] = coded.lines, coded.codes
        self.file.write(rows.tobytes())


@contextmanager
def writing(path: Path, text: Text, vocab: int) -> Iterator[LogitsWriter]:
    """A file that exists once all chunks of the text were added; after an error nothing remains."""
    with atomic_write(path) as file:
        file.write(HEADER.pack(MAGIC, text.context, vocab, len(text.chunks)))
        file.write(text.chunks.astype("<i4").tobytes())
        yield LogitsWriter(file, row_of(vocab))


class LogitsFile(Closeable):
    """A base run to compare with, read one chunk at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        try:
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> None:
        head = self._file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            raise PerplexityError(f"{self.path}: this is no file of a base's logits")
        _, self.context, self.vocab, self.count = HEADER.unpack(head)
        if self.context < LEAST_CONTEXT or self.vocab < 1 or self.count < 1:
            raise PerplexityError(
                f"{self.path}: {self.count} chunks of {self.context} tokens, a vocabulary of"
                f" {self.vocab}: the file is damaged"
            )
        scored, row = scored_of(self.context), row_of(self.vocab)
        expected = HEADER.size + self.count * (4 * self.context + scored * row.itemsize)
        size = os.fstat(self._file.fileno()).st_size
        if size != expected:
            raise PerplexityError(
                f"{self.path}: {size} bytes, {expected} are wanted for {self.count} chunks of"
                f" {self.context} tokens: cut off while it was written?"
            )
        text = np.frombuffer(self._file.read(4 * self.count * self.context), "<i4")
        self.chunks: Tokens = text.reshape(self.count, self.context)

    def check(self, text: Text, vocab: int) -> None:
        """Raise `PerplexityError` unless the text is the base's, or its beginning."""
        if self.vocab != vocab:
            raise PerplexityError(
                f"{self.path}: the base has a vocabulary of {self.vocab} tokens, the model {vocab}"
            )
        if self.context != text.context:
            raise PerplexityError(
                f"{self.path}: the base read chunks of {self.context} tokens, not {text.context}"
            )
        if len(text.chunks) > self.count:
            raise PerplexityError(
                f"{self.path}: the base read {self.count} chunks, the text has {len(text.chunks)}:"
                " --chunks takes fewer"
            )
        other = (self.chunks[: len(text.chunks)] != text.chunks).any(axis=1)
        if other.any():
            raise PerplexityError(
                f"{self.path}: the base read another text: chunk {int(other.argmax()) + 1} differs"
            )

    def coded(self) -> Iterator[Coded]:
        """The base's log-probabilities of each chunk, in order."""
        return map(self.of_chunk, range(self.count))

    def of_chunk(self, number: int) -> Coded:
        """The base's log-probabilities of one chunk, counted from 0."""
        row, scored = row_of(self.vocab), scored_of(self.context)
        size = scored * row.itemsize
        self._file.seek(HEADER.size + self.chunks.nbytes + number * size)
        data = self._file.read(size)
        if len(data) < size:
            raise PerplexityError(f"{self.path}: chunk {number + 1} was cut off meanwhile")
        rows = np.frombuffer(data, row)
        return Coded(rows["codes"], rows["line"])

    def close(self) -> None:
        self._file.close()
