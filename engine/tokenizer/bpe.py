"""Byte-level BPE, as GPT-2, Llama 3 and Qwen have it, on Hugging Face's `tokenizers`.

A text is cut into words by the model's regular expressions, each word is written in an alphabet of
256 printable characters that stand for bytes, and the pairs of the merge list are joined, earliest
in the list first. Since every byte is a token, every text has a tokenization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.tokenizer.vocab import TokenizerError, Vocab, read_list, read_text


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a text is cut into words before merging.

    Attributes:
        patterns: regular expressions (Oniguruma), each applied to the pieces the last one left;
            a match and a gap between matches are both a piece.
        ignore_merges: a word that is a token is taken whole, even where no merges lead to it.
        add_bos: BOS is put in front unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Llama 3 and Qwen 2 have one pattern, but for how many digits make a word.
_CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3: Final = _CL100K.replace("DIGITS", "{1,3}")
_QWEN2: Final = _CL100K.replace("DIGITS", "")

PUNCTUATION: Final = r"[\p{P}$+<=>^~|`]+"  # Unicode's, and the symbols among ASCII's

# Names of `tokenizer.ggml.pre`, grouped as llama.cpp groups them.
_FAMILIES: Final[tuple[tuple[PreTokenizer, str], ...]] = (
    (
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 lfm2 midm-2.0 pixtral",
    ),
    (PreTokenizer((_LLAMA3,)), "dbrx smaug-bpe"),
    (PreTokenizer((_QWEN2,)), "qwen2 deepseek-r1-qwen hunyuan megrez stablelm2"),
    (PreTokenizer((_GPT2,)), "gpt-2 exaone4 granite-docling jais mpt olmo phi-2 trillion"),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "smollm codeshell command-r exaone minerva-7b refact starcoder",
    ),
    (PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
    (PreTokenizer((PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
)
PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = {
    name: family for family, names in _FAMILIES for name in names.split()
}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 is itself, the rest is U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF: Final = _byte_alphabet()


def pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    """The pre-tokenizer named by `tokenizer.ggml.pre`; files from before that key get `default`."""
    name = read_text(metadata, "pre", "default") or "default"
    if name not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, which is not supported; supported are "
            + ", ".join(PRE_TOKENIZERS)
        )
    return PRE_TOKENIZERS[name]


class ByteLevelBPE:
    """Text without special tokens to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab, pre: PreTokenizer) -> None:
        # Here, not above: a program that loads no such model does not pay for the import.
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        merges = read_list(metadata, "merges", str)
        try:
            pairs = [(first, second) for first, second in (merge.split(" ") for merge in merges)]
            model = models.BPE(vocab.ids, pairs, ignore_merges=pre.ignore_merges)
        except Exception as error:  # the library has no error type of its own
            raise TokenizerError(_wrong_merge(merges, vocab) or _one_line(error)) from None
        self._library = Tokenizer(model)
        words = [pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._library.pre_tokenizer = pre_tokenizers.Sequence([*words, to_bytes])
        self._tokens = vocab.tokens
        self._has_all_bytes = all(char in vocab.ids for char in _BYTE_OF)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; raises `TokenizerError` for a byte that the vocabulary lacks."""
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if not self._has_all_bytes:
            self._check_complete(text, ids)
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """What the token stands for."""
        text = self._tokens[token_id]
        try:
            return bytes([_BYTE_OF[char] for char in text])
        except KeyError:  # an added token, stored as the text it is
            return text.encode()

    def _check_complete(self, text: str, ids: list[int]) -> None:
        """Refuse what the library leaves out in silence: bytes that no token stands for."""
        expected = text.encode()
        got = b"".join(map(self.piece_bytes, ids))
        if got != expected:
            pairs = zip(got, expected, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(got))
            position = len(expected[:at].decode(errors="ignore"))
            raise TokenizerError(
                f"no token for byte 0x{expected[at]:02X}, "
                f"in {text[position]!r} at position {position} of the text"
            )


def _wrong_merge(merges: list[str], vocab: Vocab) -> str | None:
    """What is wrong with the first wrong merge. For the error's path only: it is slow."""
    for merge in merges:
        parts = merge.split(" ")
        if len(parts) != 2 or not all(parts):
            return f"tokenizer.ggml.merges: {merge!r} is not two tokens with a space between them"
        for text in (*parts, "".join(parts)):
            if text not in vocab.ids:
                return f"tokenizer.ggml.merges: {merge!r} needs {text!r}, which is not a token"
    return None


def _one_line(error: Exception) -> str:
    return "tokenizer.ggml.merges: " + " ".join(str(error).split())
