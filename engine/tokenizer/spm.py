"""SentencePiece BPE (Llama 2, Mistral, Phi 3), by Google's `sentencepiece`.

Starting from characters, the adjacent pair whose token has the highest score is merged, leftmost
first, until no pair is a token. A character that is not a token is encoded as byte tokens. The
library needs a serialized model, which is built from the GGUF's tokens and scores.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

from engine.tokenizer.vocab import (
    TokenizerError,
    TokenType,
    Vocab,
    read_id,
    read_scores,
    read_value,
)

SPACE: Final = "\u2581"
# The library requires exactly one unknown token, while files have none, one or many. It gets an
# additional one, after the last id, with a text (a noncharacter) that no vocabulary has.
_UNKNOWN_TEXT: Final = "\uffffunknown"


class SentencePieceBPE:
    """Ordinary text to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab) -> None:
        # Imported here, since only some models need it.
        from sentencepiece import SentencePieceProcessor

        model = _model_proto(vocab, read_scores(metadata, vocab))
        try:
            self._library = SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError) as error:
            line = " ".join(str(error).split())
            raise TokenizerError(f"tokenizer.ggml.tokens: {line}") from None
        self._tokens = vocab.tokens
        self._unknown = len(vocab)
        declared = next(iter(vocab.of_type(TokenType.UNKNOWN)), None)
        self._unk_id = read_id(metadata, "unknown_token_id", vocab, default=declared)
        self._one_space = read_value(metadata, "remove_extra_whitespaces", False)

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:
        """The ids of a text, with a space before it if `prefix`.

        Raises `TokenizerError` for a character that is not a token, if the vocabulary has neither
        byte tokens nor an unknown token.
        """
        text = " " + text if prefix else text
        if self._one_space:
            text = re.sub(" +", " ", text).rstrip(" ")
        ids: list[int] = self._library.encode(text)
        if self._unknown in ids:
            if self._unk_id is None:
                raise TokenizerError(self._no_token(text))
            ids = [self._unk_id if i == self._unknown else i for i in ids]
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokens[token_id].replace(SPACE, " ").encode()

    def _no_token(self, text: str) -> str:
        char = next(c for c in text if self._unknown in self._library.encode(c))
        return f"no token for {char!r}, and the vocabulary has no byte tokens and no unknown token"


def _model_proto(vocab: Vocab, scores: list[float]) -> bytes:
    """A `sentencepiece.ModelProto`, in the wire format of Protocol Buffers.

    Special tokens have been split off before, so the library must not find them in a text: they
    are all declared as control tokens. Field numbers are those of sentencepiece_model.proto.
    """
    n_bytes = vocab.types.count(TokenType.BYTE)
    if n_bytes not in (0, 256):
        raise TokenizerError(
            f"tokenizer.ggml.token_type has {n_bytes} byte tokens; there must be 256 or none"
        )
    types = dict.fromkeys(map(int, TokenType), TokenType.CONTROL)
    types |= {kind: kind for kind in (TokenType.NORMAL, TokenType.UNUSED, TokenType.BYTE)}
    types[TokenType.UNDEFINED] = TokenType.NORMAL
    parts = []
    for text, score, kind in zip(vocab.tokens, scores, vocab.types, strict=True):
        rest = struct.pack("<BfBB", 0x15, score, 0x18, types[kind])  # 2: score; 3: type
        parts.append(_field(1, _field(1, text.encode()) + rest))
    parts.append(_field(1, _field(1, _UNKNOWN_TEXT.encode()) + b"\x18\x02"))
    trainer = b"\x18\x02" + b"\x98\x02" + bytes([n_bytes == 256])  # 3: BPE; 35: byte_fallback
    # 3: no dummy prefix, which depends on the text before; 4: keep all spaces; 5: replace spaces
    # by SPACE.
    normalizer = b"\x18\x00" + b"\x20\x00" + b"\x28\x01"
    return b"".join([*parts, _field(2, trainer), _field(3, normalizer)])


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    low = []
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low, value])
