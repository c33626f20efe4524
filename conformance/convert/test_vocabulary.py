"""`assay convert`: whether the file's tokenizer is the checkpoint's.

Judges are the libraries that define both kinds, and the ids that llama.cpp's own tests expect.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer as Library

from conformance.llama.peers.folder import tokenizer_json, write_json, write_safetensors
from conformance.support.tokenizer.tokenizer_files import (
    EMPTY,
    LEVEL,
    LLAMA3,
    NFC,
    TEMPLATE,
    added,
    byte_level,
    sentencepiece_model,
    small,
    split,
)
from conformance.support.tokenizer.vocabularies import real_cases, real_metadata
from engine.convert.checkpoint import Checkpoint
from engine.convert.json_files import CheckpointError
from engine.convert.vocabulary import TEXTS, vocabulary
from engine.tokenizer import Tokenizer, TokenType
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS

QWEN2 = PRE_TOKENIZERS["qwen2"].patterns[0]
FALCON = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        LEVEL,
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated",
         "invert": False},
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder without a tokenizer."""
    write_json(tmp_path / "config.json", {})
    write_safetensors(tmp_path / "model.safetensors", {"x": ("F32", np.zeros(1, np.float32))})
    return tmp_path


def converted(folder: Path, size: int) -> tuple[dict[str, Any], list[str]]:
    keys, notes = vocabulary(Checkpoint(folder), size)
    return {key: value for key, (_, value) in keys.items()}, notes


def spm_tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of a SentencePiece vocabulary as transformers makes it: all pairs that make a
    token, the likeliest first."""
    texts, types, scores = (
        metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores")
    )
    known = {text for i, text in enumerate(texts) if types[i] == TokenType.NORMAL}
    likeliest = sorted((i for i, t in enumerate(texts) if t in known), key=lambda i: -scores[i])
    merges = [
        (text[:k], text[k:])
        for text in (texts[i] for i in likeliest)
        for k in range(1, len(text))
        if text[:k] in known and text[k:] in known
    ]
    file = tokenizer_json(texts, [], merges)
    return file | {"added_tokens": added(texts, types)}


REAL: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "llama-bpe": (split(LLAMA3), {"ignore_merges": True}, "llama-bpe"),
    "qwen2": (split(QWEN2, "Removed", True), {}, "qwen2"),
    "gpt-2": (LEVEL, {}, "gpt-2"),
}


@pytest.mark.parametrize("name", [*REAL, "llama-spm"])
def test_converted_real_vocabularies_give_the_models_ids(folder, name):
    """A tokenizer.json made of a real vocabulary gives the ids that its model's tokenizer gives."""
    source = real_metadata(name)
    if name in REAL:
        pre, rest, called = REAL[name]
        file = byte_level(source, pre, **rest)
    else:
        file, called = spm_tokenizer_json(source), "default"
    write_json(folder / "tokenizer.json", file)
    found, notes = converted(folder, len(source["tokenizer.ggml.tokens"]))
    tokenizer, library = (
        Tokenizer.from_metadata(found),
        Library.from_file(str(folder / "tokenizer.json")),
    )
    assert (notes, found["tokenizer.ggml.pre"]) == ([], called)
    for text, ids in real_cases(name):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert library.encode(text, add_special_tokens=False).ids == ids, text
    for key in ("tokens", "token_type", "model"):
        assert found[f"tokenizer.ggml.{key}"] == source[f"tokenizer.ggml.{key}"]


def test_gemma_has_no_pre_tokenizer(folder):
    """Gemma replaces spaces by ▁, none at the start, so its pre-tokenizer never splits."""
    texts = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a", "a▁"]
    space = {"pattern": {"String": " "}}
    write_json(folder / "tokenizer.json", {
        **tokenizer_json(texts, ["<unk>"], [("▁", "a"), ("a", "▁")]),
        "normalizer": {"type": "Replace", "content": "▁", **space},
        "pre_tokenizer": {"type": "Split", "behavior": "MergedWithPrevious", "invert": False,
                          **space},
    })  # fmt: skip
    found, notes = converted(folder, len(texts))
    tokenizer = Tokenizer.from_metadata(found)
    library = Library.from_file(str(folder / "tokenizer.json"))
    assert (notes, found["tokenizer.ggml.add_space_prefix"]) == ([], False)
    for text in ("a b", " a a", "b  a", "aba a ", "\n ä", ""):
        ids = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == ids, text


def test_sentencepiece_models_keep_their_ids(folder):
    """Scores, types and ids are those of tokenizer.model, whatever tokenizer.json is beside it."""
    trained = sentencepiece_model()
    (folder / "tokenizer.model").write_bytes(trained)
    write_json(folder / "tokenizer.json", {"model": {"type": "Unigram", "vocab": []}})
    library = sentencepiece.SentencePieceProcessor(model_proto=trained)
    size = library.get_piece_size()
    found, notes = converted(folder, size + 5)
    tokenizer = Tokenizer.from_metadata(found)
    assert notes == []
    for text in (*TEXTS, "a b<user>", "unheard of: ꙮ", "", " "):
        assert tokenizer.encode(text, add_special=False) == library.encode(text), text
    assert found["tokenizer.ggml.scores"][:size] == [library.get_score(i) for i in range(size)]
    assert found["tokenizer.ggml.token_type"][:4] == [2, 3, 3, 4]
    assert found["tokenizer.ggml.tokens"][-1] == f"[PAD{size + 4}]"
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.remove_extra_whitespaces"] is False


def test_sentencepiece_unigram_models_are_refused(folder):
    """Only BPE models are supported."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three", "two three four"] * 20), model_writer=model,
        model_type="unigram", vocab_size=20, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    with pytest.raises(CheckpointError, match="a SentencePiece model that is not BPE"):
        converted(folder, 40)


def test_special_tokens_are_found_where_transformers_finds_them(folder):
    """Their names are in tokenizer_config.json, their ids in config.json, and further end tokens in
    generation_config.json."""
    write_json(folder / "tokenizer.json", small() | {"post_processor": TEMPLATE})
    write_json(folder / "config.json", {"bos_token_id": 0, "eos_token_id": 259, "pad_token_id": 7})
    write_json(folder / "generation_config.json", {"eos_token_id": [259, 257, 9]})
    write_json(folder / "tokenizer_config.json", {"bos_token": {"content": "<|begin|>"}})
    found, notes = converted(folder, 260)
    ids = {name: found[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "eot", "eom")}
    assert (ids, notes) == ({"bos": 258, "eos": 259, "eot": 257, "eom": 9}, [])
    assert found["tokenizer.ggml.padding_token_id"] == 7
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert found["tokenizer.ggml.add_eos_token"] is False
    tokenizer = Tokenizer.from_metadata(found)
    assert tokenizer.eog_ids == {259, 257, 9}
    library = Library.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello") == library.encode("hello").ids
    rest = {"add_bos_token": False, "add_eos_token": True, "bos_token": "<|begin|>"}
    write_json(folder / "tokenizer_config.json", rest)
    found, _ = converted(folder, 260)
    assert Tokenizer.from_metadata(found).encode("h")[-1:] == [259]
    assert found["tokenizer.ggml.add_bos_token"] is False


def test_added_tokens_are_read_from_every_file(folder):
    """Tokens that look special become control tokens; unused ids get placeholders, and those beyond
    the vocabulary are cut."""
    write_json(folder / "tokenizer.json", small())
    write_json(folder / "added_tokens.json", {"<tool>": 261})
    decoder = {"262": {"content": "<|tool|>", "special": False}, "263": {"content": "<late>"}}
    write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    found, notes = converted(folder, 263)
    assert found["tokenizer.ggml.tokens"][260:] == ["[PAD260]", "<tool>", "<|tool|>"]
    assert found["tokenizer.ggml.token_type"][260:] == [
        TokenType.UNUSED, TokenType.USER_DEFINED, TokenType.CONTROL
    ]  # fmt: skip
    assert notes == ["'<late>' is left out: the model has no embedding for it"]


@pytest.mark.parametrize("jinja", [True, False])
def test_chat_templates_are_converted(folder, jinja):
    """They come from tokenizer_config.json, one or several by name, or files of their own."""
    write_json(folder / "tokenizer.json", small())
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": named})
    if jinja:
        (folder / "chat_template.jinja").write_text("three\n", encoding="utf-8")
    found, _ = converted(folder, 260)
    assert found["tokenizer.chat_template"] == ("three\n" if jinja else "one")
    assert found.get("tokenizer.chat_template.tool_use") == (None if jinja else "two")
    write_json(folder / "tokenizer_config.json", {"chat_template": "four"})
    assert jinja or converted(folder, 260)[0]["tokenizer.chat_template"] == "four"


def test_falcon_pre_tokenizer(folder):
    """Its steps have a name in GGUF. A backtick is punctuation, as in the library, and of four
    digits three stay together, whatever merges there are."""
    merges = [("!", "`"), ("1", "2"), ("12", "3"), ("3", "4")]
    texts = [*sorted(Library.from_str(json.dumps(EMPTY)).pre_tokenizer.alphabet())]
    texts += ["".join(pair) for pair in merges]
    metadata = {
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * len(texts),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
    }
    write_json(folder / "tokenizer.json", byte_level(metadata, FALCON))
    found, notes = converted(folder, len(texts))
    assert (found["tokenizer.ggml.pre"], notes) == ("falcon", [])
    library = Library.from_file(str(folder / "tokenizer.json"))
    ids = Tokenizer.from_metadata(found).encode("!`1234")
    assert ids == library.encode("!`1234").ids == [texts.index(t) for t in ("!`", "123", "4")]


def test_bloom_pre_tokenizer(folder):
    """A word is what lies between spaces and punctuation, with the space before it; the characters
    between words are one piece."""
    pattern = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
    file = small() | {"pre_tokenizer": split(pattern)}
    file["model"]["ignore_merges"] = False
    write_json(folder / "tokenizer.json", file)
    found, notes = converted(folder, 260)
    assert (found["tokenizer.ggml.pre"], notes) == ("bloom", [])
    library = Library.from_file(str(folder / "tokenizer.json"))
    words = [word for word, _ in library.pre_tokenizer.pre_tokenize_str("a's b1, (c|d)..e")]
    assert words == ["a's", "\u0120b1", ",\u0120(", "c", "|", "d", ")..", "e"]


def test_older_tokenizer_files_give_the_same_vocabulary(folder):
    """vocab.json, merges.txt and special_tokens_map.json give the same file as tokenizer.json."""
    file = small()
    file["model"] |= {"ignore_merges": False}
    write_json(folder / "tokenizer.json", file | {"pre_tokenizer": LEVEL})
    named = {"bos_token": "<|begin|>", "eos_token": {"content": "<|stop|>", "lstrip": False}}
    write_json(folder / "tokenizer_config.json", named | {"add_bos_token": True})
    found, notes = converted(folder, 260)
    (folder / "tokenizer.json").unlink()
    specials = {token["content"]: token["id"] for token in file["added_tokens"]}
    write_json(folder / "vocab.json", file["model"]["vocab"] | specials)
    merges = [
        " ".join(pair) if isinstance(pair, tuple) else pair for pair in file["model"]["merges"]
    ]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    write_json(folder / "special_tokens_map.json", named)
    assert converted(folder, 260) == (found, notes)
    (folder / "merges.txt").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"merges\.txt: cannot be read"):
        converted(folder, 260)


def test_settings_without_a_gguf_key_are_noted(folder):
    """Unicode composition, and texts that would be split differently, have a note."""
    write_json(folder / "tokenizer.json", small() | {"normalizer": NFC})
    _, notes = converted(folder, 260)
    assert len(notes) == 1
    assert "(NFC)" in notes[0]
    # a token that no merge leads to: SentencePiece joins whatever makes one
    texts = ["<unk>", *"▁Helowrd", "lo", "▁w"]
    file = tokenizer_json(texts, ["<unk>"], [("l", "o")])
    write_json(folder / "tokenizer.json", file)
    _, notes = converted(folder, len(texts))
    assert "texts are cut otherwise than by tokenizer.json: 'Hello world' into [" in notes[0]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown words": ({"pre_tokenizer": split(r"\w+|\W+")}, r"no name here .*: \\w\+\|"),
    "a space in front": (
        {"pre_tokenizer": LEVEL | {"add_prefix_space": True}}, "'add_prefix_space': True"
    ),
    "lower case": ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase has no place"),
    "no vocabulary": ({"model": {"type": "BPE"}}, "Missing vocab/merges"),
    "one id twice": ({"model": {"vocab": {"a": 0, "b": 0}, "merges": []}}, "have one id"),
    "ids in words": ({"model": {"vocab": {"a": "0"}}}, "invalid type: string"),
    "a merge of three": (
        {"model": {"vocab": {"a": 0}, "merges": ["a b c"]}}, "Merges text file invalid"
    ),
    "neither kind": ({"pre_tokenizer": None}, "neither bytes nor SentencePiece pieces"),
    "another space": (
        tokenizer_json(["<unk>", "_"], ["<unk>"])
        | {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "_"}},
        "'content': '_'} has no place in GGUF",
    ),
    "added without ids": ({"added_tokens": [{"content": "a"}]}, "missing field `id`"),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "line"), FAULTS.values(), ids=FAULTS)
def test_bad_tokenizers_are_refused(folder, changed, line):
    """One line names the file."""
    file = small()
    if "model" in changed and "vocab" in changed["model"]:
        changed = changed | {"model": file["model"] | changed["model"]}
    write_json(folder / "tokenizer.json", file | changed)
    with pytest.raises(CheckpointError, match=line) as caught:
        converted(folder, 260)
    assert "tokenizer.json: " in str(caught.value)
    assert "\n" not in str(caught.value)
