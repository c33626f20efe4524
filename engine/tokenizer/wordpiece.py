"""WordPiece (BERT), with llama.cpp's normalization.

A text is lowercased and stripped of accents, if the file says so, and split into words at spaces;
punctuation marks and Chinese characters are words of their own. A word with ▁ before it is split
into tokens, longest match first; if that fails, it is the unknown token.

Hugging Face's BertNormalizer decomposes characters completely; here, as in llama.cpp, only the
first part of each is kept: Hangul syllables are reduced to their first letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.tokenizer.matches import Matches
from engine.tokenizer.pre_tokenizers import AFTER_UNICODE_15, code_points
from engine.tokenizer.spm import SPACE
from engine.tokenizer.vocab import Vocab, read_value, require_id

UNKNOWN_ID: Final = 100  # default
_NO_SPACES: Final = "\x1c\x1d\x1e\x1f"  # spaces in Python only
_CHINESE: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # Unicode: from 2B820 on; all implementations use 2B920
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

# llama.cpp's tables are of Unicode 15.1. Corrections for Python's: characters added since version
# 14 (the oldest supported Python), and those added after 15.1.
_KINDS: Final = dict.fromkeys(code_points(AFTER_UNICODE_15), "Cn") | {
    char: kind
    for kind, ranges in {
        "Mn": "CF3 ECE 10EFD-10EFF 11241 11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 13440"
        " 13447-13455 1E08F 1E4EC-1E4EF",
        "Po": "11B00-11B09 11F43-11F4F",
        "Cf": "13439-1343F",
    }.items()
    for char in code_points(ranges)
}


def lowered(char: str) -> str:
    """The first character of its lower case."""
    return char.lower()[0]


def is_space(char: str) -> bool:
    return char.isspace() and char not in _NO_SPACES


class WordPiece:
    """Ordinary text to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab) -> None:
        self._unknown = require_id(metadata, "unknown_token_id", vocab, UNKNOWN_ID)
        self._tokens = vocab.tokens
        self._matches = Matches(vocab.ids)
        self._lower = read_value(metadata, "normalizer.lowercase", True)
        self._strip = read_value(metadata, "normalizer.strip_accents", self._lower)

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:  # noqa: ARG002
        """The ids of a text; every word gets a ▁."""
        ids: list[int] = []
        for word in self._words(text):
            ids += self._pieces(SPACE + word) or [self._unknown]
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokens[token_id].replace(SPACE, " ").encode()

    def _pieces(self, word: str) -> list[int]:
        """Split greedily into the longest tokens; empty if that fails."""
        ids, at = [], 0
        while at < len(word):
            match = next(self._matches.starting_at(word, at), None)
            if match is None:
                return []
            at += match[0]
            ids.append(match[1])
        return ids

    def _words(self, text: str) -> Iterator[str]:
        word = ""
        for char in text:
            char = unicodedata.normalize("NFD", char)[0] if self._strip else char
            kind = _KINDS.get(char) or unicodedata.category(char)
            if is_space(char):
                yield from filter(None, [word])
                word = ""
            elif kind in ("Cc", "Cf", "Co") or char == "\ufffd" or (self._strip and kind[0] == "M"):
                continue
            elif kind[0] == "P" or (kind[0] == "S" and char < "\x7f") or _is_chinese(char):
                yield from filter(None, [word, lowered(char) if self._lower else char])
                word = ""
            else:
                word += lowered(char) if self._lower else char
        yield from filter(None, [word])


def _is_chinese(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CHINESE)
