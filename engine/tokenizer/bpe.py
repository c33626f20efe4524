"""BPE with a list of merges, by Hugging Face's `tokenizers`: of bytes, or of characters.

A text is split into words by the model's regular expressions, and adjacent tokens are merged in the
order of the merge list. Byte-level BPE (GPT-2, Llama 3, Qwen) writes words in an alphabet of 256
printable characters that represent bytes; since every byte is a token, every text has a
tokenization. Character BPE (Gemma 4) merges characters of whole lines, with ▁ for spaces; a
character that is not a token is encoded as byte tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, with_llama_cpp_classes
from engine.tokenizer.spm import SPACE
from engine.tokenizer.vocab import TokenizerError, Vocab, read_list, read_value
from engine.tokenizer.wordpiece import is_space, lowered


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 maps to itself, the rest to U+0100
    onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()
_LINES: Final = re.compile(r"(\n+)")


def pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    """The pre-tokenizer named by `tokenizer.ggml.pre`; `default` for old files without the key."""
    name = read_value(metadata, "pre", "default") or "default"
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, which is not supported; supported are "
            + ", ".join(PRE_TOKENIZERS)
        )
    return PRE_TOKENIZERS[name]


class ByteLevelBPE:
    """Byte-level BPE: ordinary text to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab, pre: PreTokenizer) -> None:
        self._library = _library(metadata, vocab, pre)
        self._tokens = vocab.tokens
        self._has_all_bytes = all(char in vocab.ids for char in _BYTE_OF)

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:  # noqa: ARG002
        """The ids of a text; raises `TokenizerError` for a byte that the vocabulary lacks."""
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if not self._has_all_bytes:
            _check_complete(text, b"".join(map(self.piece_bytes, ids)))
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        text = self._tokens[token_id]
        try:
            return bytes([_BYTE_OF[char] for char in text])
        except KeyError:  # an added token, stored as plain text
            return text.encode()


class CharacterBPE:
    """Character BPE: ordinary text to ids, and the bytes of an ordinary token.

    With `words` spaces separate words and are dropped; with `lower` text is lowercased.
    """

    def __init__(
        self,
        metadata: Mapping[str, Any],
        vocab: Vocab,
        pre: PreTokenizer,
        *,
        words: bool = False,
        lower: bool = False,
    ) -> None:
        self._library = _library(metadata, vocab, pre)
        self._vocab, self._pre, self._words, self._lower = vocab, pre, words, lower
        self._bytes = {vocab.ids[b]: i for i in range(256) if (b := f"<0x{i:02X}>") in vocab.ids}

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:  # noqa: ARG002
        """The ids of a text; raises `TokenizerError` for a byte that the vocabulary lacks."""
        if self._words:
            text = "".join(" " if is_space(char) else char for char in text)
            text = "".join(map(lowered, text)) if self._lower else text
            return [i for word in text.split(" ") for i in self._ids(word)]
        text = text.replace(" ", SPACE) if self._pre.spaces else text
        if not self._pre.line_breaks:
            return self._ids(text)
        found: list[int] = []
        for line in _LINES.split(text):
            whole = self._vocab.ids.get(line) if line.startswith("\n") else None
            found += self._ids(line) if whole is None else [whole]
        return found

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        text = self._vocab.tokens[token_id]
        return (text.replace(SPACE, " ") if self._pre.spaces else text).encode()

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if len(self._bytes) < 256:
            _check_complete(text, b"".join(map(self._token_bytes, ids)))
        return ids

    def _token_bytes(self, token_id: int) -> bytes:
        byte = self._bytes.get(token_id)
        return self._vocab.tokens[token_id].encode() if byte is None else bytes([byte])


def _library(metadata: Mapping[str, Any], vocab: Vocab, pre: PreTokenizer) -> Any:
    # Imported here, since only some models need it.
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    merges = read_list(metadata, "merges", str)
    try:
        pairs = [(a, b) for a, b in (merge.split(" ") for merge in dict.fromkeys(merges))]
        model = models.BPE(
            vocab.ids, pairs, ignore_merges=pre.ignore_merges, byte_fallback=pre.characters
        )
    except Exception as error:  # the library raises bare Exceptions
        raise TokenizerError(_wrong_merge(merges, vocab) or _one_line(error)) from None
    library = Tokenizer(model)
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(with_llama_cpp_classes(pattern)), "isolated")
        for pattern in pre.patterns
    ]
    if not pre.characters:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return library


def _check_complete(text: str, got: bytes) -> None:
    """Raise for bytes without a token, which the library drops silently."""
    expected = text.encode()
    if got != expected:
        pairs = zip(got, expected, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(got))
        position = len(expected[:at].decode(errors="ignore"))
        raise TokenizerError(
            f"no token for byte 0x{expected[at]:02X}, "
            f"in {text[position]!r} at position {position} of the text"
        )


def _wrong_merge(merges: list[str], vocab: Vocab) -> str | None:
    """The fault of the first invalid merge; slow, for error messages only."""
    for merge in merges:
        parts = merge.split(" ")
        if len(parts) != 2 or not all(parts):
            return f"tokenizer.ggml.merges: {merge!r} is not two tokens separated by a space"
        for text in (*parts, "".join(parts)):
            if text not in vocab.ids:
                return f"tokenizer.ggml.merges: {merge!r} needs {text!r}, which is not a token"
    return None


def _one_line(error: Exception) -> str:
    return "tokenizer.ggml.merges: " + " ".join(str(error).split())
