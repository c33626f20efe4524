"""Tokens on their way into a GGUF file: texts, types, and scores or merges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.convert.json_files import CheckpointError
from engine.gguf import writer as gw
from engine.tokenizer import TokenType

ADDED_SCORE = -1000.0  # of tokens that are found before any are joined
UNUSED_SCORE = -10000.0


@dataclass(frozen=True, slots=True)
class Added:
    """A token that was added to a vocabulary, or stands out in it; `special` ones are no text."""

    id: int
    text: str
    special: bool

    @property
    def type(self) -> TokenType:
        """Control where it is special or looks so, as llama.cpp has it."""
        looks = self.text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
            self.text.startswith(first) and self.text.endswith(last)
            for first, last in (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))
        )
        return TokenType.CONTROL if self.special or looks else TokenType.USER_DEFINED


def added(entries: Any, place: Path) -> dict[int, Added]:
    """Added tokens, of objects that have an id, a text as content, and may be special."""
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
    `named` are the ids of bos, eos, unk and pad, if its own file tells.
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
        """Put added tokens where they belong; as many tokens as the embedding has rows.

        What has no row is left out, and said so; a row that has no token gets an unused one.
        """
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
