r"""RWKV's World tokenizer: at each byte of a text the longest token that begins there.

Tokens are bytes, written with escapes: \n, \x80, \\. There is no pre-tokenization and no merging.
"""

from __future__ import annotations

import re
from typing import Final

from engine.tokenizer.matches import Matches
from engine.tokenizer.vocab import TokenizerError, TokenType, Vocab

_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-f]{2})|([^x]))", re.DOTALL)
_NAMED: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


class World:
    """Ordinary text to ids, and the bytes of an ordinary token.

    Control tokens are not found in a text, although llama.cpp finds their names.
    """

    def __init__(self, vocab: Vocab) -> None:
        self._bytes = [_unescaped(text, i) for i, text in enumerate(vocab.tokens)]
        control = set(vocab.of_type(TokenType.CONTROL))
        ids = {data: i for i, data in enumerate(self._bytes) if i not in control}
        missing = [byte for byte in range(256) if bytes([byte]) not in ids]
        if missing:
            raise TokenizerError(f"tokenizer.ggml.tokens: no token for byte 0x{missing[0]:02X}")
        self._matches = Matches(ids)

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:  # noqa: ARG002
        """The ids of a text; no space is added before it."""
        data, at = text.encode(), 0
        ids = []
        while at < len(data):
            length, token_id = next(self._matches.starting_at(data, at))
            ids.append(token_id)
            at += length
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._bytes[token_id]


def _unescaped(text: str, i: int) -> bytes:
    data = text.encode()
    found = _ESCAPE.sub(
        lambda match: (
            bytes.fromhex(match[1].decode()) if match[1] else _NAMED.get(match[2], match[2])
        ),
        data,
    )
    if re.sub(rb"\\(?:x[0-9a-f]{2}|[^x])", b"", data).count(b"\\"):
        raise TokenizerError(f"tokenizer.ggml.tokens[{i}]: {text!r} ends inside an escape")
    return found
