"""Reads tokenizer.model: SentencePiece's own file, a serialised `sentencepiece.ModelProto`.

The library validates the file; the few fields needed are read here, since its Python interface
gives neither the kind of a model nor its normalisation.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.convert.json_files import CheckpointError
from engine.convert.tokens import Tokens
from engine.tokenizer import TokenType

BPE = 2  # trainer_spec.model_type
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # of ModelProto
_TEXT, _SCORE, _TYPE = 1, 2, 3  # of a piece
_MODEL_TYPE = 3  # of the trainer
_CHARSMAP, _DUMMY_PREFIX, _ONE_SPACE = 2, 3, 4  # of the normalizer
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def is_sentencepiece(path: Path) -> bool:
    """Whether the library accepts the file; other tokenizers are called tokenizer.model, too."""
    try:
        _library(path)
    except (RuntimeError, OSError, ValueError):
        return False
    return True


def read(path: Path) -> Tokens:
    """The vocabulary of a file that `is_sentencepiece`."""
    texts, types, scores = [], [], []
    kind, charsmap, prefix, one_space = 1, b"", True, True  # defaults of the format
    for number, value in _fields(path.read_bytes()):
        if number == _PIECES:
            piece = dict(_fields(value))
            texts.append(piece[_TEXT].decode())
            scores.append(struct.unpack("<f", piece[_SCORE])[0] if _SCORE in piece else 0.0)
            types.append(piece.get(_TYPE, int(TokenType.NORMAL)))
        elif number == _TRAINER:
            kind = dict(_fields(value)).get(_MODEL_TYPE, kind)
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
            charsmap = normalizer.get(_CHARSMAP, charsmap)
            prefix = bool(normalizer.get(_DUMMY_PREFIX, prefix))
            one_space = bool(normalizer.get(_ONE_SPACE, one_space))
    if kind != BPE:
        raise CheckpointError(f"{path}: a SentencePiece model that is not BPE, which is all we run")
    library = _library(path)
    named = {"bos": library.bos_id(), "eos": library.eos_id(), "unk": library.unk_id()}
    flags = {"add_space_prefix": prefix, "remove_extra_whitespaces": one_space}
    tokens = Tokens("llama", "default", texts, types, scores, flags=flags)
    tokens.named |= {name: i for name, i in named.items() if i >= 0}  # -1: there is none
    if charsmap:
        tokens.notes.append(
            f"{path.name} replaces characters before it cuts a text (NFKC or the like), which GGUF"
            " has no key for: such texts are cut otherwise"
        )
    return tokens


def encoder(path: Path) -> Callable[[str], list[int]]:
    """The library's own encoder."""
    library = _library(path)
    return lambda text: list(library.encode(text))


def _library(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(path))


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message, in Protocol Buffers' wire format."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[wire]
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A varint, seven bits per byte, and its end."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
