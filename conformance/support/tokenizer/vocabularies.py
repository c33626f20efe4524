"""Vocabularies as in GGUF files: small ones, and real ones if available."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

from conformance.support.models.small_models import written
from engine.gguf.file import GGUFFile
from engine.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[4] / "shared" / "vocabs"
VOCABS = Path(os.environ.get("ASSAY_VOCABS", SHARED))  # llama.cpp's are in its models/
PREFIX = "ggml-vocab-"
SEPARATOR = "\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def gguf(model: str, tokens: list[tuple[str, int]], **keys: Any) -> dict[str, Any]:
    """GGUF metadata from (text, type) pairs."""
    keys |= {"model": model, "tokens": [t for t, _ in tokens], "token_type": [k for _, k in tokens]}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write the vocabulary to a file with almost nothing else, which llama.cpp can open."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(8)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                is_bytes = key.endswith("precompiled_charsmap")
                writer.add_array(key, bytes(value) if is_bytes else value)
    return written(writer, path)


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


def real_vocabulary(name: str) -> Path:
    """The file of an available vocabulary; otherwise the test is skipped."""
    path = VOCABS / f"{PREFIX}{name}.gguf"
    if not path.exists():
        pytest.skip(f"real vocabularies are not here: {path} is missing")
    return path


@cache
def real_metadata(name: str) -> dict[str, Any]:
    return dict(GGUFFile(real_vocabulary(name)).metadata)


def real_cases(name: str) -> list[tuple[str, list[int]]]:
    """llama.cpp's texts and their ids; in most files a separator also follows the last text."""
    stem = str(real_vocabulary(name))
    inputs = Path(stem + ".inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    outputs = Path(stem + ".out").read_text().splitlines()
    ids = [[int(i) for i in line.split()] for line in outputs]
    return list(zip(inputs, ids, strict=True))
