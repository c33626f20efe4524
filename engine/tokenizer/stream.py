"""Ids to text while they are still arriving."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tokenizer.tokenizer import Tokenizer


class Detokenizer:
    """Turns a stream of ids into a stream of text that never holds half a character.

    A token may end inside a UTF-8 character; those bytes wait for the token that completes it.
    Bytes that cannot become a character come out as U+FFFD. What `push` returned, joined, and
    `flush` at the end is what `Tokenizer.decode` gives for the same ids.

    Args:
        skip_special: leave control and unknown tokens out.
        at_start: the ids begin a text, so the space that the tokenizer put in front of it (if it
            does so) is taken off again. False for ids that continue one, as a model's output does.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, at_start: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = at_start and tokenizer.add_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes; "" where it completes none."""
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
        """U+FFFD for bytes still waiting; "" where none are. The stream can then go on."""
        return self._decoder.decode(b"", final=True)
