"""SentencePiece's unigram model (T5, XLM-RoBERTa).

A text is normalized: characters are replaced by a map, spaces become ▁. The tokenization with the
highest sum of scores (log-probabilities) is found by Viterbi's algorithm. A character without a
token is the unknown token, with a score 10 below the lowest one.

Hugging Face's `tokenizers` has this model, but applies the map to graphemes, and takes the lowest
score of all tokens; here, as in llama.cpp, it is that of the normal ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from engine.tokenizer.charsmap import Charsmap
from engine.tokenizer.matches import Matches
from engine.tokenizer.spm import SPACE
from engine.tokenizer.vocab import TokenType, Vocab, read_scores, read_value, require_id

UNKNOWN_ID: Final = 2  # default
PENALTY: Final = np.float32(10)  # float32 as in llama.cpp


class Unigram:
    """Ordinary text to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab) -> None:
        scores = [float(np.float32(score)) for score in read_scores(metadata, vocab)]
        self._unknown = require_id(metadata, "unknown_token_id", vocab, UNKNOWN_ID)
        self._tokens = vocab.tokens
        own = vocab.of_type(TokenType.USER_DEFINED)
        for i in own:
            scores[i] = 0.0
        normal = vocab.of_type(TokenType.NORMAL)
        lowest = min((scores[i] for i in normal), default=float(np.finfo(np.float32).max))
        self._unknown_score = float(np.float32(lowest) - PENALTY)
        found = (*normal, *own, *vocab.of_type(TokenType.UNUSED))
        self._matches = Matches({vocab.tokens[i]: (i, scores[i]) for i in sorted(found)})
        self._charsmap = Charsmap(metadata)
        self._kept = _prefixes(vocab.tokens[i] for i in own)
        self._one_space = read_value(metadata, "remove_extra_whitespaces", False)

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:
        """The ids of a text; `prefix` adds a space before its first other character."""
        text = self._normalised(text, prefix)
        best = [0.0] + [-math.inf] * len(text)
        last: list[tuple[int, int]] = [(0, self._unknown)] * (
            len(text) + 1
        )  # its start, and its id
        for start in range(len(text)):
            score, alone = best[start], False
            for length, (token_id, own) in self._matches.starting_at(text, start):
                alone = alone or length == 1
                if score + own > best[start + length]:
                    best[start + length], last[start + length] = score + own, (start, token_id)
            if not alone and score + self._unknown_score > best[start + 1]:
                best[start + 1], last[start + 1] = (
                    score + self._unknown_score,
                    (start, self._unknown),
                )
        ids: list[int] = []
        end = len(text)
        while end:
            end, token_id = last[end]
            if token_id != self._unknown or ids[-1:] != [token_id]:  # merge unknown ones
                ids.append(token_id)
        return ids[::-1]

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokens[token_id].replace(SPACE, " ").encode()

    def _normalised(self, text: str, prefix: bool) -> str:
        written: list[str] = []
        in_word = False
        for char in self._replacements(text):
            if char == " ":
                in_word = False
                if not self._one_space:
                    written.append(SPACE)
                continue
            if not in_word:
                in_word = True
                if prefix or self._one_space:
                    prefix = False
                    written.append(SPACE)
            written.append(char)
        return "".join(written)

    def _replacements(self, text: str) -> Iterator[str]:
        """The characters after normalization; user-defined tokens are left unchanged."""
        at = 0
        while at < len(text):
            end = at + 1
            if text[at:end] in self._kept:
                while text[at : end + 1] in self._kept and end < len(text):
                    end += 1
                yield from text[at:end]
            elif match := self._charsmap.longest(text, at):
                end, replacement = match
                yield from replacement
            else:
                yield text[at]
            at = end


def _prefixes(texts: Iterator[str]) -> set[str]:
    return {text[:end] for text in texts for end in range(1, len(text) + 1)}
