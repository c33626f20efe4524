"""Ids are those of llama.cpp and of the models' own tokenizers: for real vocabularies, for small
ones of every kind, and for every pre-tokenizer."""

from functools import cache

import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from conformance.llama.peers import goldens
from conformance.support.tokenizer.small_vocabularies import SMALL, ours
from conformance.support.tokenizer.vocabularies import (
    PREFIX,
    VOCABS,
    real_cases,
    real_metadata,
    write_vocabulary,
)
from conformance.support.tokenizer.words import digest, fuzzed, vocabulary
from engine.tokenizer import Detokenizer, Tokenizer
from engine.tokenizer.kinds import KINDS
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS, with_llama_cpp_classes

NAMES = (
    "llama-spm", "phi-3", "llama-bpe", "gpt-2", "qwen2", "qwen35", "gemma-4", "deepseek-llm",
    "deepseek-coder", "command-r", "falcon", "mpt", "refact", "starcoder", "bert-bge",
)  # fmt: skip
KEPT = goldens.read_json("vocabularies", goldens.FOLDER)
REAL = [name for name in KEPT if name not in SMALL]
# It shows tokens of Cohere's that no text has by their numbers, [UNK_BYTE_...]; we by their texts.
OTHERWISE = {"command-r": ["pieces"]}
WORDS = goldens.read_json("words", goldens.FOLDER)
GROUPS = {
    names[0]: names
    for pre in dict.fromkeys(PRE_TOKENIZERS.values())
    if (names := [name for name, own in PRE_TOKENIZERS.items() if own == pre])
}


def same_ids(tokenizer, asked):
    """For ASSAY_FUZZ random texts."""
    for text in fuzzed():
        assert tokenizer.encode(text, add_special=False) == asked(text), ascii(text)


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(real_metadata(name))


@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies_give_the_models_ids(name):
    """Every text of llama.cpp's own test gets exactly the ids that the model's tokenizer gives."""
    tokenizer = real_tokenizer(name)
    for text, ids in real_cases(name):
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", NAMES[:-1])  # BERT's spaces are lost
def test_real_vocabularies_round_trip(name):
    """The same ids come back as the text, at once and in a stream, with and without BOS."""
    tokenizer = real_tokenizer(name)
    for text, ids in real_cases(name):
        stream = Detokenizer(tokenizer)
        assert tokenizer.decode(ids) == text
        assert "".join(map(stream.push, ids)) + stream.flush() == text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "bos", "eog"),
    [
        ("llama-spm", [1], {"</s>"}),
        ("phi-3", [1], {"</s>", "<|end|>", "<|endoftext|>"}),
        ("llama-bpe", [128000], {"<|end_of_text|>", "<|eot_id|>"}),
        ("gpt-2", [], {"<|endoftext|>"}),
        ("qwen2", [], {"</s>", "<|endoftext|>", "<|im_end|>"}),  # llama.cpp goes by names
    ],
)
def test_real_vocabularies_have_bos_and_end_tokens(name, bos, eog):
    """BOS is added where the model expects it, and all its end-of-turn tokens are known."""
    tokenizer = real_tokenizer(name)
    assert tokenizer.encode("") == bos
    assert {tokenizer.piece(i) for i in tokenizer.eog_ids} == eog


def test_phi3_strips_after_special_tokens():
    """Phi 3 drops the line break after a turn's end, as it was trained to."""
    tokenizer = real_tokenizer("phi-3")
    ids = tokenizer.encode("<|user|>\nHi<|end|>\n<|assistant|>\n", parse_special=True)
    assert [tokenizer.piece(i) for i in ids] == [
        "<s>",
        "<|user|>",
        " Hi",
        "<|end|>",
        "<|assistant|>",
    ]


@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies_equal_llama_cpps(name):
    """Ids of 1005 texts, all pieces and the end-of-text ids are llama.cpp's stored ones."""
    told = ours(real_metadata(name))
    differ = [key for key, value in KEPT[name].items() if told[key] != value]
    assert differ == OTHERWISE.get(name, [])


@pytest.mark.parametrize("name", REAL)
def test_llama_cpp_agrees_on_random_texts(llama_cpp, name):
    metadata = real_metadata(name)
    asked = llama_cpp.words(VOCABS / f"{PREFIX}{name}.gguf")
    same_ids(Tokenizer.from_metadata(metadata), asked)


@pytest.mark.parametrize("name", SMALL)
def test_small_vocabularies_equal_llama_cpps(name):
    """Small vocabularies of every kind give llama.cpp's ids."""
    assert ours(SMALL[name]) == KEPT[name]


@pytest.mark.parametrize("name", SMALL)
def test_llama_cpp_still_agrees_on_small_vocabularies(llama_cpp, name, tmp_path):
    """llama.cpp is run anew, and gives the stored ids."""
    path = write_vocabulary(tmp_path / "v.gguf", SMALL[name])
    assert llama_cpp.vocabulary(path) == KEPT[name]
    same_ids(Tokenizer.from_metadata(SMALL[name]), llama_cpp.words(path))


def test_every_kind_has_a_small_vocabulary():
    """ "llama" is tested in test_laws.py, "whitespace" with the pre-tokenizers."""
    kinds = {metadata["tokenizer.ggml.model"] for metadata in SMALL.values()}
    assert {*kinds, "llama", "whitespace"} == set(KINDS)


# Words, by every name of `tokenizer.ggml.pre`


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_pre_tokenizers_equal_llama_cpps(names):
    """Ids of 805 texts equal llama.cpp's stored ones."""
    tokenizer = Tokenizer.from_metadata(vocabulary(names[0]))
    found = digest(lambda text: tokenizer.encode(text, add_special=False))
    assert {WORDS[name] for name in names} == {found}


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_llama_cpp_still_agrees_on_pre_tokenizers(llama_cpp, names, tmp_path):
    """llama.cpp is run anew, and gives the stored ids."""
    metadata = vocabulary(names[0])
    asked = llama_cpp.words(write_vocabulary(tmp_path / "words.gguf", metadata))
    assert digest(asked) == WORDS[names[0]]
    same_ids(Tokenizer.from_metadata(metadata), asked)


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_characters_of_unicode_16_are_unassigned(names):
    """Letters, digits, marks and symbols of Unicode 16 are split like unassigned code points."""
    contexts = "a{0}b {0} 1{0}2,{0}! {0}{0}\n{0}Z\u0301{0}"
    for pattern in PRE_TOKENIZERS[names[0]].patterns:
        split = Split(Regex(with_llama_cpp_classes(pattern)), "isolated")
        unknown, *spans = (
            [span for _, span in split.pre_tokenize_str(contexts.format(char))]
            for char in "\U00050000\U00013460\U00010d40\U00010d69\U00010d6e\U0001cc00"
        )
        assert spans == [unknown] * 5
