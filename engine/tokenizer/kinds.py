"""Kinds of vocabulary, by `tokenizer.ggml.model`, with the special tokens they add to a text.

Names and defaults are llama.cpp's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from engine.tokenizer.bpe import ByteLevelBPE, CharacterBPE, pre_tokenizer
from engine.tokenizer.plamo2 import Plamo2
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from engine.tokenizer.rwkv import World
from engine.tokenizer.special import SpecialTokens
from engine.tokenizer.spm import SentencePieceBPE
from engine.tokenizer.unigram import Unigram
from engine.tokenizer.vocab import TokenizerError, Vocab, read_id, read_value, require_id
from engine.tokenizer.wordpiece import WordPiece

Metadata = Mapping[str, Any]


class SubwordModel(Protocol):
    """The interface of subword models. `prefix` adds a space before a text, if the model does
    so."""

    def encode(self, text: str, *, prefix: bool = False) -> list[int]: ...

    def piece_bytes(self, token_id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """A vocabulary's special tokens and subword model, and whether it adds a `space` before a text
    and before text after a special token."""

    special: SpecialTokens
    model: SubwordModel
    space: bool = False


def _llama(metadata: Metadata, vocab: Vocab) -> Parts:
    special = _special(metadata, vocab, bos=1, eos=2, add_bos=True)
    space = read_value(metadata, "add_space_prefix", True)
    return Parts(special, SentencePieceBPE(metadata, vocab), space)


def _gpt2(metadata: Metadata, vocab: Vocab) -> Parts:
    return _bpe(metadata, vocab, pre_tokenizer(metadata))


def _gemma4(metadata: Metadata, vocab: Vocab) -> Parts:
    return _bpe(metadata, vocab, PRE_TOKENIZERS["gemma4"])


def _whitespace(metadata: Metadata, vocab: Vocab) -> Parts:
    pre = pre_tokenizer(metadata)
    if not pre.characters:
        name = metadata.get("tokenizer.ggml.pre")
        raise TokenizerError(f"tokenizer.ggml.pre is {name!r}, which 'whitespace' does not support")
    lower = read_value(metadata, "normalizer.lowercase", False)
    return _bpe(metadata, vocab, pre, words=True, lower=lower)


def _bpe(metadata: Metadata, vocab: Vocab, pre: PreTokenizer, **words: bool) -> Parts:
    special = _special(metadata, vocab, add_bos=pre.add_bos, insists=pre.line_breaks)
    if pre.characters:
        return Parts(special, CharacterBPE(metadata, vocab, pre, **words))
    return Parts(special, ByteLevelBPE(metadata, vocab, pre))


def _t5(metadata: Metadata, vocab: Vocab) -> Parts:
    special = _special(metadata, vocab, eos=1, add_eos=True)
    space = read_value(metadata, "add_space_prefix", False)
    return Parts(special, Unigram(metadata, vocab), space)


def _bert(metadata: Metadata, vocab: Vocab) -> Parts:
    """Always adds BOS at the start and the separator at the end."""
    bos_id = require_id(metadata, "bos_token_id", vocab, 101)
    closing = require_id(metadata, "seperator_token_id", vocab, 102)
    eos_id = read_id(metadata, "eos_token_id", vocab)
    special = SpecialTokens.from_metadata(
        metadata, vocab, bos_id=bos_id, eos_id=eos_id, add_bos=True, closing=closing
    )
    return Parts(special, WordPiece(metadata, vocab), space=True)


def _rwkv(metadata: Metadata, vocab: Vocab) -> Parts:
    return Parts(_without_special(metadata, vocab, None, None), World(vocab))


def _plamo2(metadata: Metadata, vocab: Vocab) -> Parts:
    return Parts(_without_special(metadata, vocab, 1, 2), Plamo2(metadata, vocab))


KINDS: Final[Mapping[str, tuple[str, Callable[[Metadata, Vocab], Parts]]]] = {
    "llama": ("SentencePiece BPE", _llama),
    "gpt2": ("byte-level BPE", _gpt2),
    "gemma4": ("BPE of characters", _gemma4),
    "whitespace": ("BPE of words without spaces", _whitespace),
    "t5": ("SentencePiece Unigram", _t5),
    "bert": ("WordPiece", _bert),
    "rwkv": ("RWKV World", _rwkv),
    "plamo2": ("PLaMo 2", _plamo2),
}


def _special(
    metadata: Metadata,
    vocab: Vocab,
    *,
    bos: int | None = None,
    eos: int | None = None,
    add_bos: bool = False,
    add_eos: bool = False,
    insists: bool = False,
) -> SpecialTokens:
    """Special tokens with the kind's defaults; `insists` adds BOS even if the file does not."""
    bos_id = read_id(metadata, "bos_token_id", vocab, bos)
    eos_id = read_id(metadata, "eos_token_id", vocab, eos)
    add_bos = read_value(metadata, "add_bos_token", add_bos) or insists
    add_eos = read_value(metadata, "add_eos_token", add_eos)
    for name, wanted, token_id in (("bos", add_bos, bos_id), ("eos", add_eos, eos_id)):
        if wanted and token_id is None:
            raise TokenizerError(
                f"tokenizer.ggml.add_{name}_token asks for a token, "
                f"but tokenizer.ggml.{name}_token_id is missing"
            )
    return SpecialTokens.from_metadata(
        metadata,
        vocab,
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=add_bos,
        closing=eos_id if add_eos else None,
    )


def _without_special(
    metadata: Metadata, vocab: Vocab, bos: int | None, eos: int | None
) -> SpecialTokens:
    """Special tokens that are never added; llama.cpp ignores the file's keys here."""
    return SpecialTokens.from_metadata(
        metadata,
        vocab,
        bos_id=read_id(metadata, "bos_token_id", vocab, bos),
        eos_id=read_id(metadata, "eos_token_id", vocab, eos),
    )
