"""The tokenizer: a vocabulary, its special tokens and a subword model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.tokenizer.bpe import ByteLevelBPE, pre_tokenizer
from engine.tokenizer.special import SpecialTokens
from engine.tokenizer.spm import SentencePieceBPE
from engine.tokenizer.stream import Detokenizer
from engine.tokenizer.vocab import (
    TokenizerError,
    TokenType,
    Vocab,
    check_text,
    read_flag,
    read_text,
)


class SubwordModel(Protocol):
    """What `ByteLevelBPE` and `SentencePieceBPE` have in common."""

    def encode(self, text: str) -> list[int]: ...

    def piece_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Text to token ids and back. Immutable: any number of threads may share one."""

    kind: str
    """As `tokenizer.ggml.model` has it: "llama" or "gpt2"."""
    _vocab: Vocab
    _special: SpecialTokens
    _model: SubwordModel
    add_space_prefix: bool
    """A space is put before a text, and before text behind a special token (SentencePiece)."""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build a tokenizer from a GGUF file's metadata: llama.cpp's keys, plain Python values.

        Read are `tokenizer.ggml.*` and `general.name`, which is all that tells Phi 3 from Llama 2.

        Raises:
            TokenizerError: a kind of vocabulary that is not supported, or a malformed one; one
                line that names the key, what it holds and what it should hold.
        """
        kind = read_text(metadata, "model", "")
        if kind == "llama":
            vocab = Vocab.from_metadata(metadata)
            special = SpecialTokens.from_metadata(metadata, vocab, add_bos=True, default_ids=(1, 2))
            space = read_flag(metadata, "add_space_prefix", True)
            return cls(kind, vocab, special, SentencePieceBPE(metadata, vocab), space)
        if kind == "gpt2":
            pre = pre_tokenizer(metadata)
            vocab = Vocab.from_metadata(metadata)
            special = SpecialTokens.from_metadata(metadata, vocab, add_bos=pre.add_bos)
            model = ByteLevelBPE(metadata, vocab, pre)
            return cls(kind, vocab, special, model, add_space_prefix=False)
        what = f"is {kind!r}, which is not supported" if kind else "is missing"
        raise TokenizerError(
            f"tokenizer.ggml.model {what}; supported are "
            "'llama' (SentencePiece BPE) and 'gpt2' (byte-level BPE)"
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids are 0 to vocab_size - 1."""
        return len(self._vocab)

    @property
    def texts(self) -> Sequence[str]:
        """The tokens' texts as the file has them, by id."""
        return self._vocab.tokens

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        return self._special.bos_id

    @property
    def bos_of_texts(self) -> int | None:
        """The token that begins a text, if the model was trained to have it there."""
        return self._special.bos_id if self._special.add_bos else None

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        return self._special.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends generation: EOS, and the ends of a turn or message."""
        return self._special.eog_ids

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        at_start: bool = True,
    ) -> list[int]:
        """The ids of a text.

        Args:
            add_special: add BOS in front and EOS behind, as the model was trained to have them.
            parse_special: read "<|eot_id|>" and the like as the tokens they name. Leave it off
                for text from outside, which could else end its own turn.
            at_start: the text begins, so a space is put before it if the tokenizer does so. False
                for text that continues another.

        Raises:
            TokenizerError: a lone surrogate in the text, or a character the vocabulary lacks.
        """
        check_text(text)
        special = self._special
        ids: list[int] = []
        if add_special and self.bos_of_texts is not None:
            ids.append(self.bos_of_texts)
        after_special = at_start
        for part in special.split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                prefix = " " if after_special and self.add_space_prefix else ""
                ids += self._model.encode(prefix + part)
            after_special = isinstance(part, int)
        if add_special and special.add_eos and special.eos_id is not None:
            ids.append(special.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of the ids: `decode(encode(text)) == text`.

        Invalid UTF-8 becomes U+FFFD. Nothing is tidied up: llama.cpp drops the space in " ?" and
        the like for some vocabularies, which would lose text here.
        """
        stream = Detokenizer(self, skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.flush()

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; for a special token, those of its name."""
        match self._type(token_id):
            case TokenType.CONTROL | TokenType.UNKNOWN | TokenType.USER_DEFINED:
                return self._vocab.tokens[token_id].encode()
            case TokenType.BYTE:
                return bytes.fromhex(self._vocab.tokens[token_id][3:5])
            case _:
                return self._model.piece_bytes(token_id)

    def piece(self, token_id: int) -> str:
        r"""A token as text to look at; bytes that are no whole character are shown as \xNN."""
        return self.piece_bytes(token_id).decode(errors="backslashreplace")

    def is_special(self, token_id: int) -> bool:
        """Whether the token stands for no text: it is a control token or the unknown one."""
        return token_id in self._special.hidden

    def is_text(self, token_id: int) -> bool:
        """Whether the token comes from the subword model, not from a special token's name."""
        return self._type(token_id) not in (
            TokenType.CONTROL,
            TokenType.UNKNOWN,
            TokenType.USER_DEFINED,
        )

    def _type(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocab):
            raise TokenizerError(
                f"token id {token_id} is outside the vocabulary of {len(self._vocab)} tokens"
            )
        return self._vocab.types[token_id]
