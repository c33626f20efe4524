"""End-of-generation tokens, and special tokens recognized by their names.

A GGUF names at most one EOS, EOT and EOM, while models end a turn with any of several tokens, and
some files declare such tokens as normal ones. As in llama.cpp, names decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from engine.tokenizer.vocab import TokenType, Vocab, read_id

ENDS: Final = (
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",  # Llama 3, Granite
    "<|im_end|>", "<|endoftext|>",  # ChatML, Qwen
    "<|end|>",  # Phi 3
    "<|return|>", "<|call|>",  # gpt-oss
    "<|flush|>", "<|calls|>",  # Solar Open
    "</s>",  # Llama 2, Mistral
    "<end_of_turn>", "<eos>", "<turn|>", "<|tool_response>",  # Gemma
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
    "[e~[",  # MiniMax
)  # fmt: skip
# Fill-in-the-middle tokens that end a text, by key, and their names for files without the key.
MIDDLE_ENDS: Final = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": (
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    ),
    "fim_sep_token_id": ("<|file_sep|>",),
}  # fmt: skip
# Other fill-in-the-middle tokens: control tokens, but not ends. Some files have an older key.
MIDDLES: Final = {
    ("fim_pre_token_id", "prefix_token_id"): (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>",
        "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>",
    ),
    ("fim_suf_token_id", "suffix_token_id"): (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>",
        "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>",
    ),
    ("fim_mid_token_id", "middle_token_id"): (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>",
        "\u2581<MID>", "<|code_middle|>", "<|middle|>",
    ),
}  # fmt: skip
# gpt-oss: control tokens around channels, which are part of the decoded text.
SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# If these end a text, "<|end|>" ends only one of several messages.
NO_END: Final = ({"<|return|>", "<|call|>"}, {"<|call|>", "<|flush|>"}, {"<|calls|>", "<|flush|>"})
# If one of these exists, "</s>" is an HTML tag.
NO_MARK: Final = ("<|tool_response>", "<|plamo:eos|>")


def classify_by_name(
    metadata: Mapping[str, Any], vocab: Vocab, eos_id: int | None
) -> tuple[Vocab, frozenset[int], frozenset[int]]:
    """Returns the vocabulary with token types corrected by name, the end-of-generation tokens, and
    the control tokens that are decoded."""
    control: set[int | None] = set()
    ends: set[int | None] = {eos_id}
    for key in ("eot_token_id", "eom_token_id"):
        ends.add(read_id(metadata, key, vocab))
    for key, names in MIDDLE_ENDS.items():
        given = read_id(metadata, key, vocab)
        found = _first(vocab, names)
        ends.add(found if given is None else given)
        control |= {found} if given is None else set()
    for keys, names in MIDDLES.items():
        if all(read_id(metadata, key, vocab) is None for key in keys):
            control.add(_first(vocab, names))
    named = {vocab.ids[name] for name in ENDS if name in vocab.ids}
    ends, control = ends | named, control | named
    texts = {vocab.tokens[i] for i in ends if i is not None}
    shown = {vocab.ids[name] for name in SHOWN if name in vocab.ids}
    if "<|end|>" in texts and any(several <= texts for several in NO_END):
        ends.discard(vocab.ids["<|end|>"])
        shown.add(vocab.ids["<|end|>"])
    normal = set()
    if "</s>" in texts and any(mark in texts for mark in NO_MARK):
        normal.add(vocab.ids["</s>"])
        ends -= normal
    control |= shown - set(vocab.of_type(TokenType.USER_DEFINED))
    types = list(vocab.types)
    for i in control | normal:
        if i is not None and types[i] != TokenType.UNKNOWN:
            types[i] = int(TokenType.NORMAL if i in normal else TokenType.CONTROL)
    return (
        replace(vocab, types=types),
        frozenset(i for i in ends if i is not None),
        frozenset(shown),
    )


def _first(vocab: Vocab, names: tuple[str, ...]) -> int | None:
    return next((vocab.ids[name] for name in names if name in vocab.ids), None)
