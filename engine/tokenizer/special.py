"""Tokens that are not text: which ones there are, and where a text is split at them.

The rules are llama.cpp's, with one difference: a text is split at the leftmost special token, the
longest one where several start there, as the models' own tokenizers do; llama.cpp searches the
whole text for one token after another. No real vocabulary has tokens for which that matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.tokenizer.vocab import TokenizerError, TokenType, Vocab, read_flag, read_id

# A GGUF names at most one EOS, EOT and EOM, while models end a turn with any of these.
_END_OF_GENERATION_TEXTS = (
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",  # Llama 3
    "<|im_end|>", "<|endoftext|>",  # ChatML, Qwen
    "<|end|>",  # Phi 3
    "</s>",  # Llama 2, Mistral
    "<end_of_turn>", "<eos>",  # Gemma
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
    "<|fim_pad|>", "<|fim_repo|>", "<|repo_name|>", "<|file_sep|>",  # the end of a filled-in middle
)  # fmt: skip
_END_OF_GENERATION_KEYS = (
    "eos_token_id", "eot_token_id", "eom_token_id",
    "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
)  # fmt: skip
# Phi 3 was trained without the whitespace behind its special tokens, these three excepted. No GGUF
# key says so; llama.cpp, too, knows the family by its name.
_PHI3_NAME = re.compile(r"phi-?3", re.IGNORECASE)
_PHI3_KEEPS_SPACE = {"<unk>", "<s>", "<|endoftext|>"}
_SPACES = re.compile(r"[ \t\n\v\f\r]*")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The special tokens of one vocabulary.

    Attributes:
        hidden: control and unknown tokens. They stand for no text: a text is searched for them
            only on request, and decoding leaves them out by default.
        eog_ids: every token after which generation is over.
        rstrip: tokens that swallow the whitespace behind them.
    """

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    hidden: frozenset[int]
    eog_ids: frozenset[int]
    rstrip: frozenset[int]
    _ids: dict[str, int]
    _user_defined: re.Pattern[str] | None
    _all: re.Pattern[str] | None

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        vocab: Vocab,
        *,
        add_bos: bool,
        default_ids: tuple[int | None, int | None] = (None, None),
    ) -> SpecialTokens:
        """Read the special tokens; `add_bos` and `default_ids` (BOS, EOS) are the defaults of
        the vocabulary's kind."""
        bos_id = read_id(metadata, "bos_token_id", vocab, default_ids[0])
        eos_id = read_id(metadata, "eos_token_id", vocab, default_ids[1])
        for unused in ("unknown_token_id", "padding_token_id"):
            read_id(metadata, unused, vocab)  # a wrong one means a broken file
        add_bos = read_flag(metadata, "add_bos_token", add_bos)
        add_eos = read_flag(metadata, "add_eos_token", False)
        for name, wanted, token_id in (("bos", add_bos, bos_id), ("eos", add_eos, eos_id)):
            if wanted and token_id is None:
                raise TokenizerError(
                    f"tokenizer.ggml.add_{name}_token asks for a token, "
                    f"but tokenizer.ggml.{name}_token_id is missing"
                )

        hidden = vocab.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = vocab.of_type(TokenType.USER_DEFINED)
        ids = {vocab.tokens[i]: i for i in (*hidden, *user_defined)}
        named = {read_id(metadata, key, vocab) for key in _END_OF_GENERATION_KEYS} | {eos_id}
        by_text = {
            i
            for text in _END_OF_GENERATION_TEXTS
            if (i := ids.get(text)) is not None and vocab.types[i] != TokenType.UNKNOWN
        }
        is_phi3 = _PHI3_NAME.search(str(metadata.get("general.name", "")))
        rstrip = {i for text, i in ids.items() if is_phi3 and text not in _PHI3_KEEPS_SPACE}
        return cls(
            bos_id=bos_id,
            eos_id=eos_id,
            add_bos=add_bos,
            add_eos=add_eos,
            hidden=frozenset(hidden),
            eog_ids=frozenset(i for i in named | by_text if i is not None),
            rstrip=frozenset(rstrip),
            _ids=ids,
            _user_defined=_any_of(vocab.tokens[i] for i in user_defined),
            _all=_any_of(ids),
        )

    def split(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """The text as pieces of plain text (never empty) and ids of the tokens between them.

        User-defined tokens are always found; control and unknown ones with `parse_special` only.
        """
        pattern = self._all if parse_special else self._user_defined
        start = 0
        for match in pattern.finditer(text) if pattern else ():
            if match.start() < start:  # inside the whitespace that the last token swallowed
                continue
            if start < match.start():
                yield text[start : match.start()]
            token_id = self._ids[match.group()]
            yield token_id
            start = match.end()
            if token_id in self.rstrip:
                spaces = _SPACES.match(text, start)
                assert spaces is not None  # the pattern matches the empty string
                start = spaces.end()
        if start < len(text):
            yield text[start:]


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for the longest of these texts at the leftmost place; None for no texts."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
