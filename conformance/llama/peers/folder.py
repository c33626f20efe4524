"""Checkpoints as the folders that Hugging Face's libraries keep, and their files of any kind."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance.llama.peers.checkpoint import SPECIAL, Checkpoint
from reference.formats import FORMATS
from reference.op import Array

ARCHITECTURE = "LlamaForCausalLM"


def write_folder(
    checkpoint: Checkpoint,
    folder: Path,
    dtype: str = "F32",
    shards: int = 1,
    index: bool = True,
    architecture: str = ARCHITECTURE,
    **fields: Any,
) -> Path:
    """The checkpoint with its weights in `dtype`; `fields` are added to its config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in asdict(checkpoint).items() if name != "seed"}
    write_json(folder / "config.json", config | {"architectures": [architecture]} | fields)
    write_weights(folder, checkpoint.weights(), dtype, shards, index)
    write_json(folder / "tokenizer.json", words(checkpoint.vocab_size))
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_weights(
    folder: Path,
    weights: Mapping[str, Array],
    dtype: str = "F32",
    shards: int = 1,
    index: bool = True,
) -> None:
    """One file, or several with or without an index."""
    names = list(weights)
    files = ["model.safetensors"]
    if shards > 1:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    parts = [names[i::shards] for i in range(shards)]
    for file, part in zip(files, parts, strict=True):
        write_safetensors(folder / file, {name: (dtype, weights[name]) for name in part})
    if shards > 1 and index:
        shard_of = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        write_json(
            folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": shard_of}
        )


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Array]]) -> None:
    """Tensors float32, each stored in a type of its own; the package has no bfloat16 for NumPy."""
    header, data = {}, b""
    for name, (dtype, tensor) in tensors.items():
        begin = len(data)
        data += FORMATS[dtype].quantise(tensor).tobytes()
        header[name] = {
            "dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, len(data)]
        }  # fmt: skip
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def words(size: int) -> dict[str, Any]:
    """tokenizer.json of words that mean nothing, as SentencePiece spells them."""
    special = ["<unk>", "<s>", "</s>"]
    return tokenizer_json(special + [f"▁w{i}" for i in range(SPECIAL, size)], special)


def tokenizer_json(
    texts: Sequence[str], special: Sequence[str], merges: Sequence[tuple[str, str]] = ()
) -> dict[str, Any]:
    """tokenizer.json as transformers makes it of a SentencePiece model."""
    return {
        "added_tokens": [
            {"id": texts.index(text), "content": text, "special": True, "normalized": False,
             "single_word": False, "lstrip": False, "rstrip": False}
            for text in special
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate(texts)},
            "merges": [list(pair) for pair in merges],
        },
    }  # fmt: skip
