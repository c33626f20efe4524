"""Special tokens, and splitting a text at them.

The rules are llama.cpp's, with two differences. A text is split at the leftmost special token (the
longest of several), as the models' own tokenizers do; llama.cpp searches the whole text for one
token after another. This matters for no real vocabulary. And gpt-oss's channel tokens are parsed on
request only, though they are decoded: to llama.cpp they are user-defined, so that any text may open
a channel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.tokenizer.ends import classify_by_name
from engine.tokenizer.vocab import TokenType, Vocab, read_id

# Which tokens strip adjacent whitespace is in no GGUF key; as in llama.cpp, model names decide.
# Phi 3 strips whitespace after its special tokens, except for three; these encoders strip it before
# their mask.
_PHI3_NAME = re.compile(r"phi-?3", re.IGNORECASE)
_PHI3_KEEPS_SPACE = {"<unk>", "<s>", "<|endoftext|>"}
_MASKED = {
    "tokenizer.ggml.pre": ("<mask>", r"jina-v2-(de|es|code)"),
    "general.architecture": ("<mask>", r"nomic-bert-moe|jina-bert-v3"),
    "general.name": ("[MASK]", r"(?i:modern-bert)"),
}
_ASCII_SPACES = " \t\n\v\f\r"
_SPACES = re.compile(r"[ \t\n\v\f\r]*")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of a vocabulary.

    add_bos   whether BOS is added before a text
    closing   the token that is added after a text, if any
    hidden    control and unknown tokens, which decoding leaves out by default
    eog_ids   end-of-generation tokens
    lstrip    tokens that strip whitespace before them
    rstrip    tokens that strip whitespace after them
    """

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    closing: int | None
    hidden: frozenset[int]
    eog_ids: frozenset[int]
    lstrip: frozenset[int]
    rstrip: frozenset[int]
    types: tuple[int, ...]
    _ids: dict[str, int]
    _user_defined: re.Pattern[str] | None
    _all: re.Pattern[str] | None

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        vocab: Vocab,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        add_bos: bool = False,
        closing: int | None = None,
    ) -> SpecialTokens:
        """Collect the special tokens, by type and by name."""
        for unused in ("unknown_token_id", "padding_token_id", "mask_token_id"):
            read_id(metadata, unused, vocab)  # validates the id
        vocab, eog_ids, shown = classify_by_name(metadata, vocab, eos_id)
        special = vocab.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = vocab.of_type(TokenType.USER_DEFINED)
        ids = {vocab.tokens[i]: i for i in (*special, *user_defined)}
        is_phi3 = _PHI3_NAME.search(str(metadata.get("general.name", "")))
        masks = (
            mask
            for key, (mask, names) in _MASKED.items()
            if re.search(names, str(metadata.get(key, "")))
        )
        return cls(
            bos_id=bos_id,
            eos_id=eos_id,
            add_bos=add_bos,
            closing=closing,
            hidden=frozenset(special) - shown,
            eog_ids=eog_ids,
            lstrip=frozenset(ids[mask] for mask in masks if mask in ids),
            rstrip=frozenset(
                i for text, i in ids.items() if is_phi3 and text not in _PHI3_KEEPS_SPACE
            ),
            types=tuple(vocab.types),
            _ids=ids,
            _user_defined=_any_of(vocab.tokens[i] for i in user_defined),
            _all=_any_of(ids),
        )

    def split(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """Split a text into plain text (never empty) and the ids of special tokens.

        User-defined tokens are always parsed; control and unknown ones with `parse_special` only.
        """
        pattern = self._all if parse_special else self._user_defined
        start = 0
        for match in pattern.finditer(text) if pattern else ():
            if match.start() < start:  # inside whitespace stripped by the last token
                continue
            token_id = self._ids[match.group()]
            before = text[start : match.start()]
            if token_id in self.lstrip:
                before = before.rstrip(_ASCII_SPACES)
            if before:
                yield before
            yield token_id
            start = match.end()
            if token_id in self.rstrip:
                spaces = _SPACES.match(text, start)
                assert spaces is not None  # the pattern matches the empty string
                start = spaces.end()
        if start < len(text):
            yield text[start:]


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for the longest of these texts at the leftmost position; None for no texts."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
