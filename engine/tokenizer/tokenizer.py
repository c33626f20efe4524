"""The tokenizer: a vocabulary, its special tokens and a subword model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.tokenizer.kinds import KINDS, SubwordModel
from engine.tokenizer.special import SpecialTokens
from engine.tokenizer.stream import Detokenizer
from engine.tokenizer.vocab import (
    TokenizerError,
    TokenType,
    Vocab,
    check_text,
    read_value,
)

# Types of tokens that decode to their names, if at all.
NAMED = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Text to token ids and back. Immutable and thread-safe.

    `kind` is one of `KINDS` (`tokenizer.ggml.model`). With `add_space_prefix` a space is added
    before a text, and before text after a special token (SentencePiece).
    """

    kind: str
    _vocab: Vocab
    _special: SpecialTokens
    _model: SubwordModel
    add_space_prefix: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build a tokenizer from a GGUF file's metadata: llama.cpp's keys, plain Python values.

        Reads `tokenizer.ggml.*`, and `general.name` and `general.architecture`, by which Phi 3
        differs from Llama 2. Raises `TokenizerError` for an invalid or unsupported vocabulary.
        """
        kind = read_value(metadata, "model", "")
        if kind not in KINDS:
            what = f"is {kind!r}, which is not supported" if kind else "is missing"
            names = ", ".join(f"{name!r} ({says})" for name, (says, _) in KINDS.items())
            raise TokenizerError(f"tokenizer.ggml.model {what}; supported are {names}")
        vocab = Vocab.from_metadata(metadata)
        parts = KINDS[kind][1](metadata, vocab)
        return cls(kind, vocab, parts.special, parts.model, parts.space)

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids are 0 to vocab_size - 1."""
        return len(self._vocab)

    @property
    def texts(self) -> Sequence[str]:
        """The tokens' texts as stored in the file, by id."""
        return self._vocab.tokens

    @property
    def bos_id(self) -> int | None:
        """The BOS token."""
        return self._special.bos_id

    @property
    def added_bos(self) -> int | None:
        """The BOS token, if it is added to texts."""
        return self._special.bos_id if self._special.add_bos else None

    @property
    def eos_id(self) -> int | None:
        """The EOS token."""
        return self._special.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """All end-of-generation tokens: EOS, and the ends of a turn or message."""
        return self._special.eog_ids

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        at_start: bool = True,
    ) -> list[int]:
        """Encode a text.

        `add_special` adds BOS, and EOS or a separator, as the model was trained with. With
        `parse_special` texts like "<|eot_id|>" are parsed as special tokens: leave it off for
        untrusted text, which could otherwise end its own turn. A text `at_start` gets a space
        before it if the tokenizer adds one; False for text that continues another. Raises
        `TokenizerError` for a lone surrogate, and for a character that the vocabulary lacks.
        """
        check_text(text)
        special = self._special
        ids: list[int] = []
        if add_special and self.added_bos is not None:
            ids.append(self.added_bos)
        after_special = at_start
        for part in special.split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                prefix = after_special and self.add_space_prefix
                ids += self._model.encode(part, prefix=prefix)
            after_special = isinstance(part, int)
        if add_special and special.closing is not None:
            ids.append(special.closing)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decode ids: `decode(encode(text)) == text` if the kind does not normalize.

        Invalid UTF-8 becomes U+FFFD. Spaces are not cleaned up: for some vocabularies llama.cpp
        drops the space in " ?" and the like, which loses text.
        """
        stream = Detokenizer(self, skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.flush()

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token: a special token's name, nothing for an unused one."""
        kind, text = self._type(token_id), self._vocab.tokens[token_id]
        if kind in NAMED:
            return text.encode()
        if kind == TokenType.UNUSED:
            return b""
        if kind == TokenType.BYTE:
            return bytes.fromhex(text[3:5])
        return self._model.piece_bytes(token_id)

    def piece(self, token_id: int) -> str:
        r"""A token as displayable text; incomplete characters are shown as \xNN."""
        return self.piece_bytes(token_id).decode(errors="backslashreplace")

    def is_special(self, token_id: int) -> bool:
        """Whether decoding leaves it out: a control token (except `ends.SHOWN`), or the unknown."""
        return token_id in self._special.hidden

    def is_text(self, token_id: int) -> bool:
        """Whether the token belongs to the subword model, not to the special tokens."""
        return self._type(token_id) not in NAMED

    def _type(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocab):
            raise TokenizerError(
                f"token id {token_id} is outside the vocabulary of {len(self._vocab)} tokens"
            )
        return self._special.types[token_id]
