"""Pre-tokenization, made visible by the ids of a vocabulary that merges any two bytes, or any two
characters."""

import hashlib
import os
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from engine.tokenizer.bpe import _byte_alphabet
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from engine.tokenizer.spm import SPACE

COUNT = 500  # texts
ANY = 300  # texts of any characters
POOLS = (
    "abcdeXYZ  '", "0123456789 ", "\r\n\t  ", "!?.,;:/()[]{}<>-_\"#$%^&*+=~`|@\\", "äöüßÉÑç",
    "абвГДЕ", "中文字日本", "ひらカタ", "한국어", "\u0301\u0308é", "١٢٣", "🙂🚀", "\u01c5\u0294",
    "\u00a0\u2003\u3000",
)  # fmt: skip
NONE = ("Cn", "Cs", "Cc")
SAYINGS = (
    "I'll don't WE'VE x's y'all 'tis", "12345678 1 23 4567", "a  b\n\n c\r\n\r\n  end   ",
    "éCOLE École ÉCOLE aÉb XMLHttpRequest", "foo_bar() { return 3.14159; }",
)  # fmt: skip


def texts() -> list[str]:
    """Some sayings, and random letters, digits, marks and spaces of many scripts."""
    rng = random.Random(0)
    found = [
        "".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randint(1, 24)))
        for _ in range(COUNT)
    ]
    return [*SAYINGS, *found]


def anything(count: int = ANY, seed: int = 0) -> list[str]:
    """Random texts of any characters of Unicode 3.2, which all tables of Unicode have, except
    controls and planes from 3 on: some real vocabularies lack their bytes."""
    rng = random.Random(seed)
    old = [chr(i) for i in range(0x30000) if unicodedata.ucd_3_2_0.category(chr(i))[:2] not in NONE]

    def char() -> str:
        if rng.random() < 0.4:
            return rng.choice(rng.choice(POOLS))
        few = rng.random() < 0.5  # most scripts, or East Asia's
        return old[rng.randrange(0x3000 if few else len(old))]

    return ["".join(char() for _ in range(rng.randint(1, 20))) for _ in range(count)]


def fuzzed() -> list[str]:
    """ASSAY_FUZZ further texts, for a peer that is run anew."""
    return anything(int(os.environ.get("ASSAY_FUZZ", ANY)), seed=1)


def vocabulary(pre: str) -> dict[str, Any]:
    """GGUF keys of a vocabulary with this name's pre-tokenizer: bytes and all pairs of bytes, or
    most characters of the texts, all pairs of them and bytes for the rest."""
    letters, rest = list(_byte_alphabet()), []
    if PRE_TOKENIZERS[pre].characters:
        letters = sorted({SPACE, *"".join(texts())} - {" ", "🚀", "語"})
        rest = [f"<0x{byte:02X}>" for byte in range(256)]
    pairs = [(a, b) for a in letters for b in letters]
    random.Random(0).shuffle(pairs)
    tokens = [*letters, *(a + b for a, b in pairs)]
    return {
        "tokenizer.ggml.model": "whitespace" if pre == "whitespace" else "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *rest],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [6] * len(rest),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in pairs],
    }


def digest(encode: Callable[[str], Sequence[int]], told: Sequence[str] = ()) -> str:
    """sha256 of the ids of all texts and of random characters, or of other texts."""
    ids = [list(encode(text)) for text in told or [*texts(), *anything()]]
    return hashlib.sha256(repr(ids).encode()).hexdigest()
