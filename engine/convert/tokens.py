"""Tokens on their way into a GGUF file: texts, types, and scores or merges."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine import gguf_writer as gw
from engine.convert.checkpoint import CheckpointError
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

    def add(self, added: Mapping[int, Added], place: str) -> None:
        """Put added tokens where they belong; ids that nothing has in between stay unused."""
        for token in sorted(added.values(), key=lambda token: token.id):
            self.pad(token.id + 1)
            spaced = token.text.replace("▁", " ") if self.model == "llama" else token.text
            if self.types[token.id] == TokenType.UNKNOWN:
                continue
            self.texts[token.id] = spaced if token.type == TokenType.USER_DEFINED else token.text
            self.types[token.id] = int(token.type)
            if self.scores:
                self.scores[token.id] = ADDED_SCORE
        if len(set(self.texts)) != len(self.texts):
            twice = next(t for i, t in enumerate(self.texts) if t in self.texts[:i])
            raise CheckpointError(f"{place}: {twice!r} is the text of two tokens")

    def pad(self, size: int) -> None:
        """Unused tokens up to so many."""
        for i in range(len(self.texts), size):
            self.texts.append(f"[PAD{i}]")
            self.types.append(int(TokenType.UNUSED))
            if self.scores:
                self.scores.append(UNUSED_SCORE)

    def cut(self, size: int, place: str) -> None:
        """As many tokens as the embedding has rows; only added ones may be too many."""
        if lost := self.texts[size:]:
            if TokenType.NORMAL in self.types[size:]:
                raise CheckpointError(
                    f"{place}: there are {len(self.texts)} tokens, but the model has {size}"
                )
            self.notes.append(
                f"tokens that the model has no embedding for are left out: {', '.join(lost)}"
            )
            del self.texts[size:], self.types[size:], self.scores[size:]
        self.pad(size)

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
