"""Incremental decoding of token ids."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Decodes a stream of ids into text without incomplete characters.

    A token may end inside a UTF-8 character; its bytes are held back until the character is
    complete. Invalid bytes become U+FFFD. The concatenated output of `push`, and of `flush` at the
    end, equals `Tokenizer.decode` of the same ids.

    Args:
        skip_special: leave out control and unknown tokens.
        at_start: the ids begin a text, so a space added by the tokenizer is removed. False for ids
            that continue a text, such as a model's output.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, at_start: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = at_start and tokenizer.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Decode a token; returns the characters that are complete, possibly none."""
        tokenizer = self._tokenizer
        piece = tokenizer.piece_bytes(token_id)
        if self._skip_special and tokenizer.is_special(token_id):
            return ""
        if self._strip_space:
            self._strip_space = False
            if tokenizer.is_text(token_id):
                piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """U+FFFD for incomplete bytes, or "". The stream can continue afterwards."""
        return self._decoder.decode(b"", final=True)
