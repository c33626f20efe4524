"""A small model that can be made to output any text: its tokens are bytes and letters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from conformance.support.models.small_models import Small
from engine import Engine, Piece, SamplingParams
from reference.op import Array

BOS, EOS, BYTES, LETTERS = 1, 2, 3, 259
TEXT = "the cat sat"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@dataclass(frozen=True, slots=True)
class Spelling(Small):
    """A small model whose tokens are all bytes, then a space and the letters a to z."""

    vocab: int = LETTERS + 27

    def _vocabulary(self, writer: gguf.GGUFWriter) -> None:
        letters = ["\N{LOWER ONE EIGHTH BLOCK}", *map(chr, range(ord("a"), ord("z") + 1))]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * LETTERS + [-float(i) for i in range(27)])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 27)
        writer.add_bos_token_id(BOS)
        writer.add_eos_token_id(EOS)
        writer.add_unk_token_id(0)
        writer.add_chat_template(TEMPLATE)


def letters(text: str) -> list[int]:
    return [LETTERS + (0 if c == " " else ord(c) - ord("a") + 1) for c in text]


def spelled(data: bytes) -> list[int]:
    return [BYTES + byte for byte in data]


def generate(engine: Engine, prompt: str | Sequence[int] = TEXT, **params: Any) -> list[Piece]:
    return list(engine.stream(prompt, SamplingParams(**{"temperature": 0.0, **params})))


def tokens(pieces: Sequence[Piece], index: int = 0) -> list[int]:
    return [piece.token for piece in pieces if piece.index == index]


def text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def saying(ids: Sequence[int]) -> list[Callable[[list[int], Array], Array]]:
    """Logits processors that force these tokens."""
    left = list(ids)

    def force(history: list[int], logits: Array) -> Array:
        forced = np.full_like(logits, -np.inf)
        forced[left.pop(0)] = 0
        return forced

    return [force]


def say(engine: Engine, ids: Sequence[int], **params: Any) -> list[Piece]:
    params = {"max_tokens": len(ids), **params}
    return generate(engine, logits_processors=saying(ids), **params)
