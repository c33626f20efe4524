"""Vocabularies as GGUF files have them: small ones, and real ones where they are at hand."""

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from engine.tokenizer import Tokenizer

VOCABS = Path(__file__).resolve().parents[3] / "shared" / "vocabs"
SEPARATOR = "\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gguf(model: str, tokens: list[tuple[str, int]], **keys: Any) -> dict[str, Any]:
    """Metadata as a GGUF file has it, from (text, type) pairs."""
    keys |= {"model": model, "tokens": [t for t, _ in tokens], "token_type": [k for _, k in tokens]}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def spm_metadata() -> dict[str, Any]:
    """A small SentencePiece vocabulary with ties between scores, and every type of token."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<user>", USER_DEFINED)]
    words = [*"▁abé<s>", "ab", "ba", "▁a", "▁b", "aa", "▁▁", "abab", "▁aa", "bb", "▁ab"]
    tokens = [*special, *((text, BYTE) for text in BYTES), *((text, NORMAL) for text in words)]
    scores = [0.0] * 260 + [-float(i % 7) for i in range(len(words))]
    return gguf("llama", tokens, scores=scores, bos_token_id=1, eos_token_id=2)


def bpe_metadata() -> dict[str, Any]:
    """A small byte-level vocabulary under GPT-2's pre-tokenizer."""
    merges = ["a b", "b a", "ab a", "Ġ a", "a a", "Ġa b", "Ã ©", "aa aa"]
    tokens = [(char, NORMAL) for char in sorted(ByteLevel.alphabet())]
    tokens += [(merge.replace(" ", ""), NORMAL) for merge in merges]
    tokens += [("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL), ("<user>", USER_DEFINED)]
    return gguf("gpt2", tokens, merges=merges, pre="gpt-2", bos_token_id=264, eos_token_id=264)


SPM = Tokenizer.from_metadata(spm_metadata())
BPE = Tokenizer.from_metadata(bpe_metadata())


@cache
def real_metadata(name: str) -> dict[str, Any]:
    path = VOCABS / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"real vocabularies are not here: {path} is missing")
    if importlib.util.find_spec("engine.gguf_file"):
        return dict(importlib.import_module("engine.gguf_file").GGUFFile(path).metadata)
    from gguf import GGUFReader  # seconds for a large vocabulary

    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def real_cases(name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's texts and their ids; a separator also ends the last text."""
    stem = str(VOCABS / f"ggml-vocab-{name}.gguf")
    if not Path(stem).exists():
        pytest.skip(f"real vocabularies are not here: {stem} is missing")
    inputs = Path(stem + ".inp").read_bytes().decode().split(SEPARATOR)[:-1]
    outputs = Path(stem + ".out").read_text().splitlines()
    ids = [[int(i) for i in line.split()] for line in outputs]
    return list(zip(inputs, ids, strict=True))
