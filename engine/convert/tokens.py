"""Tokens for a GGUF file: texts, types, and scores or merges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.convert.json_files import CheckpointError
from engine.gguf import writer as gw
from engine.tokenizer import TokenType

ADDED_SCORE = -1000.0  # type of tokens that are matched before any merges
UNUSED_SCORE = -10000.0


@dataclass(frozen=True, slots=True)
class Added:
    """A token added to a vocabulary, or special in it; `special` ones are never text."""

    id: int
    text: str
    special: bool

    @property
    def type(self) -> TokenType:
        """Control if it is special or looks so, as in llama.cpp."""
        looks = self.text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
            self.text.startswith(first) and self.text.endswith(last)
            for first, last in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
        )
        return TokenType.CONTROL if self.special or looks else TokenType.USER_DEFINED


def added(entries: Any, place: Path) -> dict[int, Added]:
    """Added tokens, from objects with an id, a text as content, and perhaps a special flag."""
    found = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        match entry:
            case {"id": int(i), "content": str(text)} if i >= 0:
                found[i] = Added(i, text, bool(entry.get("special")))
            case _:
                raise CheckpointError(f"{place}: {entry!r} is no token with its id")
    return found


@dataclass(slots=True)
class Tokens:
    """A vocabulary: `model` and `pre` are tokenizer.ggml's, ids are indices.

    `scores` are for "llama" vocabularies, `merges` for "gpt2" ones; `flags` are further keys.
    `named` are the ids of bos, eos, unk and pad, if the vocabulary's file has them.
    """

    model: str
    pre: str
    texts: list[str]
    types: list[int]
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    flags: dict[str, bool] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fit(self, size: int, added: Mapping[int, Added], place: str) -> None:
        """Insert added tokens, and match the number of the embedding's rows: tokens without a row
        are dropped, with a note, and rows without a token get an unused one."""
        if len(self.texts) > size:
            raise CheckpointError(
                f"{place}: there are {len(self.texts)} tokens, but the model has {size}"
            )
        for i in range(len(self.texts), size):
            self.texts.append(f"[PAD{i}]")
            self.types.append(int(TokenType.UNUSED))
            if self.scores:
                self.scores.append(UNUSED_SCORE)
        for token in added.values():
            if token.id >= size:
                self.notes.append(f"{token.text!r} is left out: the model has no embedding for it")
            elif self.types[token.id] != TokenType.UNKNOWN:
                self._put(token)
        seen: set[str] = set()
        for text in self.texts:
            if text in seen:
                raise CheckpointError(f"{place}: {text!r} is the text of two tokens")
            seen.add(text)

    def _put(self, token: Added) -> None:
        plain = self.model == "llama" and token.type == TokenType.USER_DEFINED
        self.texts[token.id] = token.text.replace("▁", " ") if plain else token.text
        self.types[token.id] = int(token.type)
        if self.scores:
            self.scores[token.id] = ADDED_SCORE

    def keys(self) -> gw.Keys:
        found = {
            "model": gw.text(self.model),
            "pre": gw.text(self.pre),
            "tokens": gw.texts(self.texts),
            "token_type": gw.i32s(self.types),
        }
        if self.model == "llama":
            found["scores"] = gw.f32s(self.scores)
        else:
            found["merges"] = gw.texts(self.merges)
        found |= {key: gw.boolean(value) for key, value in self.flags.items()}
        return {f"tokenizer.ggml.{key}": value for key, value in found.items()}
