"""A GGUF vocabulary, read and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from engine.errors import EngineError

_T = TypeVar("_T")
_F32_MAX = 3.4028234663852886e38
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenizerError(EngineError):
    """An invalid vocabulary, or a text that cannot be encoded; the message is one line."""


class TokenType(IntEnum):
    """Token types, with GGUF's numbers."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_BYTE = int(TokenType.BYTE)


@dataclass(frozen=True, slots=True)
class Vocab:
    """The tokens of a model: `tokens[i]` is the text and `types[i]` the `TokenType` of id i.

    Texts are as stored: spaces are `▁` (SentencePiece) or `Ġ` (byte-level).
    """

    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocab:
        """Read tokens and types; raises `TokenizerError` if they are inconsistent."""
        tokens = read_list(metadata, "tokens", str)
        if not tokens:
            raise TokenizerError("tokenizer.ggml.tokens is empty")
        # As in llama.cpp, an empty text gets a name, so that texts are unique.
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        _check_unicode(tokens)
        ids = {text: i for i, text in enumerate(tokens)}
        if len(ids) != len(tokens):
            i, text = next((i, text) for i, text in enumerate(tokens) if ids[text] != i)
            raise TokenizerError(
                f"tokenizer.ggml.tokens: {text!r} is listed twice, as ids {i} and {ids[text]}"
            )
        return cls(tokens, _read_types(metadata, tokens), ids)

    def __len__(self) -> int:
        return len(self.tokens)

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids of these types, ascending."""
        wanted = set(types)
        return [i for i, kind in enumerate(self.types) if kind in wanted]


def read_list(
    metadata: Mapping[str, Any], name: str, *kinds: type[_T], length: int | None = None
) -> list[_T]:
    """The list at `tokenizer.ggml.<name>`, which is required, with these element types."""
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        raise TokenizerError(f"{key} is missing")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TokenizerError(f"{key} must be a list, got {type(value).__name__}")
    expected = " or ".join(kind.__name__ for kind in kinds)
    # type(), not isinstance(): a bool is an int, but not a token type. A set of types keeps the
    # check fast for 150,000 elements.
    if not set(map(type, value)) <= set(kinds):
        i, bad = next((i, bad) for i, bad in enumerate(value) if type(bad) not in kinds)
        raise TokenizerError(f"{key}[{i}] must be {expected}, got {type(bad).__name__}")
    if length is not None and len(value) != length:
        raise TokenizerError(f"{key} has {len(value)} elements for {length} tokens")
    return list(value)


def read_value(metadata: Mapping[str, Any], name: str, default: _T) -> _T:
    """The value at `tokenizer.ggml.<name>`, of the default's type, or the default."""
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, type(default)):
        wanted, got = type(default).__name__, type(value).__name__
        raise TokenizerError(f"tokenizer.ggml.{name} must be {wanted}, got {got}")
    return value


def read_id(
    metadata: Mapping[str, Any], name: str, vocab: Vocab, default: int | None = None
) -> int | None:
    """The token id at `tokenizer.ggml.<name>`, or the default if it is a token, or None."""
    key = f"tokenizer.ggml.{name}"
    if key not in metadata:
        return default if default is not None and default < len(vocab) else None
    value = metadata[key]
    if type(value) is not int:
        raise TokenizerError(f"{key} must be int, got {type(value).__name__}")
    if not 0 <= value < len(vocab):
        raise TokenizerError(f"{key} is {value}, outside the vocabulary of {len(vocab)} tokens")
    return value


def require_id(metadata: Mapping[str, Any], name: str, vocab: Vocab, default: int) -> int:
    """Like `read_id`, but raises `TokenizerError` instead of returning None."""
    token_id = read_id(metadata, name, vocab, default)
    if token_id is None:
        raise TokenizerError(f"tokenizer.ggml.{name} is missing, and there is no token {default}")
    return token_id


def read_scores(metadata: Mapping[str, Any], vocab: Vocab) -> list[float]:
    """The tokens' scores, within float32; the pair with the highest score is merged first."""
    scores = read_list(metadata, "scores", float, int, length=len(vocab))
    if not all(-_F32_MAX <= score <= _F32_MAX for score in scores):
        i = next(i for i, score in enumerate(scores) if not -_F32_MAX <= score <= _F32_MAX)
        raise TokenizerError(f"tokenizer.ggml.scores[{i}] is not a finite float32")
    return scores


def check_text(text: str) -> None:
    """Raise for a text that is not valid Unicode, with the position of the first bad character."""
    if not isinstance(text, str):
        raise TokenizerError(f"the text must be str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} "
            f"at position {error.start}, which is no character"
        ) from None


def _check_unicode(tokens: list[str]) -> None:
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        i = next(i for i, text in enumerate(tokens) if not _is_unicode(text))
        raise TokenizerError(f"tokenizer.ggml.tokens[{i}] is not valid UTF-8") from None


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _read_types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    """The declared types; by default byte tokens are recognized by text, all others are normal."""
    if "tokenizer.ggml.token_type" not in metadata:
        return [_BYTE if _BYTE_TOKEN.fullmatch(text) else int(TokenType.NORMAL) for text in tokens]
    types = read_list(metadata, "token_type", int, length=len(tokens))
    if not set(types) <= set(TokenType):
        i = next(i for i, kind in enumerate(types) if kind not in set(TokenType))
        raise TokenizerError(f"tokenizer.ggml.token_type[{i}] must be 0 to 6, got {types[i]}")
    for i in (i for i, kind in enumerate(types) if kind == _BYTE):
        if not _BYTE_TOKEN.fullmatch(tokens[i]):
            raise TokenizerError(
                f"tokenizer.ggml.tokens[{i}] is a byte token and must look like <0x0A>, "
                f"got {tokens[i]!r}"
            )
    return types
