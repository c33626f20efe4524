"""Small vocabularies of the kinds without merges, for `texts` of words.py, and a charsmap."""

import hashlib
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

from conformance.support.tokenizer.vocabularies import (
    BYTE,
    BYTES,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    gguf,
)
from conformance.support.tokenizer.words import digest, texts, vocabulary
from engine.tokenizer import Tokenizer
from engine.tokenizer.spm import SPACE

REPLACED = {
    "ﬁ": "fi", "\u00e9": "e", "e\u0301": "\u00e9", "\u00c9": "E", "ß": "ss", "\u3000": " ",
    "\u00a0": " ", "\u2003": " ", "\u0308": "", "カ": "か", "日本": "nihon", "\t": " ",
}  # fmt: skip
ENDS = (
    "<|im_end|>", "</s>", "<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|fim_prefix|>",
    "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<eos>",
)  # fmt: skip
NAMES = (*ENDS, "<one>", "<two>", "<user>", "[CLS]", "[MASK]", "<s>", "<unk>")


def charsmap(replaced: Mapping[str, str]) -> list[int]:
    """The bytes of `precompiled_charsmap`, with its trie laid out first fit: no unit belongs to two
    nodes, and no base is shared, or a child of one would be the other's."""
    trie: dict[int, Any] = {}
    end = b""
    for key, value in replaced.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(end)
        end += value.encode() + b"\0"
    units, used, waiting = [0] * 4096, {0}, [(trie, 0)]
    bases = list(range(1, 4096))
    for node, at in waiting:
        base = next(base for base in bases if not used & {base ^ byte for byte in node})
        bases.remove(base)
        units[at] |= (base ^ at) << 10 | (0 in node) << 8
        for byte, child in node.items():
            used.add(base ^ byte)
            units[base ^ byte] = byte or child | 1 << 31
            waiting += [(child, base ^ byte)] if byte else []
    return list(struct.pack("<I4096I", 4 * 4096, *units) + end)


def told(
    size: int,
    encode: Callable[[str, bool], list[int]],
    piece: Callable[[int, bool], bytes],
    ends: Callable[[int], bool],
) -> dict[str, Any]:
    """A tokenizer's results for a vocabulary of `size` tokens: digests of the ids of texts, without
    and with special tokens, and of the tokens' pieces, and the ids that end a text.

    `encode` and `piece` are called without and with special tokens.
    """
    pieces = repr([(piece(token, True), piece(token, False)) for token in range(size)])
    return {
        "texts": digest(lambda text: encode(text, False)),
        "named": digest(lambda text: encode(text, True), named_texts()),
        "pieces": hashlib.sha256(pieces.encode()).hexdigest(),
        "ends": [token for token in range(size) if ends(token)],
    }


def ours(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's results for a vocabulary."""
    tokenizer = Tokenizer.from_metadata(metadata)

    def piece(token: int, special: bool) -> bytes:
        hidden = tokenizer.is_special(token) and not special
        return b"" if hidden else tokenizer.piece_bytes(token)

    return told(
        tokenizer.vocab_size,
        lambda text, named: tokenizer.encode(text, add_special=named, parse_special=named),
        piece,
        lambda token: token in tokenizer.eog_ids,
    )


def named_texts() -> list[str]:
    """Texts with names of special tokens in some places."""
    rng = random.Random(1)
    breaks = ("\n" * rng.randint(0, 6) for _ in range(200))
    return [
        "".join((text, *rng.choices(NAMES, k=2), text[::2], lines, " "))
        for text, lines in zip(texts()[:200], breaks, strict=True)
    ]


def pieces(prefix: str = "", count: int = 1500) -> list[str]:
    """Most characters of the texts, and pieces of two to six of them; words begin with `prefix`."""
    rng = random.Random(0)
    whole = "".join(texts())
    found = dict.fromkeys(sorted(set(whole) - {" ", "🚀", "語", "z"}))
    for _ in range(count):
        at = rng.randrange(len(whole) - 6)
        piece = whole[at : at + rng.randint(2, 6)]
        found[piece.replace(" ", SPACE)] = None
    words = {prefix + piece for piece in found if prefix and rng.random() < 0.7}
    return sorted({*found, *words} - {"", SPACE})


def scores(count: int) -> list[float]:
    """A few distinct float32 values, so that there are ties."""
    rng = random.Random(2)
    return [-rng.randint(4, 40) / 4 for _ in range(count)]


def unigram(*, spaces: bool) -> dict[str, Any]:
    """T5's kind: with a charsmap, with tokens of every type, with spaces merged or kept."""
    first = [("<pad>", CONTROL), ("</s>", CONTROL), ("<unk>", UNKNOWN)]
    own = [("<user>", USER_DEFINED), ("ab c", USER_DEFINED), ("unused", UNUSED)]
    tokens = [*first, *own, (SPACE, NORMAL), *((piece, NORMAL) for piece in pieces(SPACE))]
    return gguf(
        "t5", tokens, scores=[0.0] * 6 + scores(len(tokens) - 6), eos_token_id=1,
        unknown_token_id=2, padding_token_id=0, add_space_prefix=spaces,
        remove_extra_whitespaces=spaces, precompiled_charsmap=charsmap(REPLACED),
    )  # fmt: skip


def wordpiece(**keys: Any) -> dict[str, Any]:
    """BERT's kind, lowercase."""
    special = [(name, CONTROL) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    small = sorted({SPACE.join(p.lower().split()) for p in pieces(SPACE)} - {"", SPACE})
    ids = {"unknown": 1, "bos": 2, "seperator": 3, "mask": 4, "padding": 0}
    keys |= {f"{name}_token_id": i for name, i in ids.items()}
    return gguf("bert", [*special, *((piece, NORMAL) for piece in small)], **keys)


def world() -> dict[str, Any]:
    """RWKV's kind: every byte, and byte strings that need not be whole characters."""
    data = "".join(texts()).encode()
    rng = random.Random(0)
    found = {bytes([byte]) for byte in range(256)}
    for _ in range(1500):
        at = rng.randrange(len(data) - 9)
        found.add(data[at : at + rng.randint(2, 9)])
    names = [repr(piece)[2:-1] for piece in sorted(found)]
    return gguf("rwkv", [("<s>", CONTROL), *((name, NORMAL) for name in names)], eos_token_id=0)


def plamo2() -> dict[str, Any]:
    """PLaMo 2's kind: bytes, and pieces with plain spaces."""
    first = [(f"<|plamo:{name}|>", CONTROL) for name in ("unk", "bos", "eos", "pad")]
    found = sorted({piece.replace(SPACE, " ") for piece in pieces()} | {" "})
    tokens = [*first, *((byte, BYTE) for byte in BYTES), *((piece, NORMAL) for piece in found)]
    return gguf("plamo2", tokens, scores=[0.0] * 260 + scores(len(found)))


def gemma4() -> dict[str, Any]:
    """Gemma 4's kind, with tokens for runs of line breaks that no merge produces."""
    return _more(vocabulary("gemma4") | {"tokenizer.ggml.model": "gemma4"}, ["\n" * 3, "\n" * 4])


def ends() -> dict[str, Any]:
    """Byte-level, with normal tokens named like end-of-text tokens or not."""
    return _more(vocabulary("gpt-2") | {"tokenizer.ggml.eos_token_id": 1}, ENDS)


def _more(keys: Mapping[str, Any], names: Any) -> dict[str, Any]:
    tokens, types = (keys[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    return {
        **keys,
        "tokenizer.ggml.tokens": [*tokens, *names],
        "tokenizer.ggml.token_type": [*types, *[NORMAL] * len(names)],
    }


SMALL = {
    "unigram": unigram(spaces=True),
    "unigram-plain": unigram(spaces=False),
    "wordpiece": wordpiece(),
    "wordpiece-cased": wordpiece(**{"normalizer.lowercase": False}),
    "world": world(),
    "plamo2": plamo2(),
    "gemma4": gemma4(),
    "ends": ends(),
}
