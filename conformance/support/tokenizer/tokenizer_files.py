"""tokenizer.json and SentencePiece files, of small and real vocabularies."""

import io
import json
from collections.abc import Sequence
from typing import Any

import sentencepiece
from tokenizers import Tokenizer as Library

from engine.convert.vocabulary import TEXTS
from engine.tokenizer import TokenType
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
NFC = {"type": "NFC"}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [258], "tokens": ["<|begin|>"]}},
}
ADDED = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
LLAMA3 = PRE_TOKENIZERS["llama-bpe"].patterns[0]
EMPTY = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": LEVEL}


def sentencepiece_model() -> bytes:
    """A SentencePiece model, trained on the texts of the vocabulary tests."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in TEXTS for line in text.split("\n")] * 3),
        model_writer=model, model_type="bpe", vocab_size=420, byte_fallback=True,
        hard_vocab_limit=False, normalization_rule_name="identity",
        remove_extra_whitespaces=False, user_defined_symbols=["<user>"], num_threads=1,
        minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def small() -> dict[str, Any]:
    """A byte-level vocabulary of Llama 3's kind: all bytes, two merges, two special tokens."""
    bytes_ = sorted(Library.from_str(json.dumps(EMPTY)).pre_tokenizer.alphabet())
    texts = [*bytes_, "he", "hel", "<|begin|>", "<|stop|>"]
    metadata = {
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * 258 + [3, 3],
        "tokenizer.ggml.merges": ["h e", "he l"],
    }
    return byte_level(metadata, split(LLAMA3), ignore_merges=True)


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    words = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [words, LEVEL | {"use_regex": False}]}


def byte_level(metadata: dict[str, Any], pre: dict[str, Any], **rest: Any) -> dict[str, Any]:
    """tokenizer.json of a byte-level vocabulary from a GGUF file."""
    texts, types = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    ignore = rest.pop("ignore_merges", False)
    return rest | {
        "added_tokens": added(texts, types),
        "pre_tokenizer": pre,
        "model": {
            "type": "BPE",
            "ignore_merges": ignore,
            "vocab": {t: i for i, t in enumerate(texts) if types[i] not in ADDED},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }


def added(texts: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
    return [
        {"id": i, "content": text, "special": types[i] != TokenType.USER_DEFINED} | flags
        for i, text in enumerate(texts)
        if types[i] in ADDED
    ]
