"""Vocabularies of every kind, small ones and real ones: what llama.cpp makes of them."""

import random

import pytest

from conformance.llama.peers import goldens
from conformance.support.small_vocabularies import SMALL, ours
from conformance.support.vocabularies import (
    BPE,
    PREFIX,
    VOCABS,
    bpe_metadata,
    real_metadata,
    write_vocabulary,
)
from conformance.support.words import SAYINGS, fuzzed, vocabulary
from engine.tokenizer import Detokenizer, Tokenizer
from engine.tokenizer.kinds import KINDS

TOLD = goldens.read_json("vocabularies", goldens.FOLDER)
REAL = [name for name in TOLD if name not in SMALL]
# It shows tokens of Cohere's that no text has by their numbers, [UNK_BYTE_...]; we by their texts.
OTHERWISE = {"command-r": ["pieces"]}


@pytest.mark.parametrize("name", SMALL)
def test_small_vocabulary_is_llama_cpps(name):
    """Ids of 1005 texts, pieces of all tokens and the ends of a text are what it gave once."""
    assert ours(SMALL[name]) == TOLD[name]


@pytest.mark.parametrize("name", REAL)
def test_real_vocabulary_is_llama_cpps(name):
    """The same of the vocabularies in its models/."""
    told = ours(real_metadata(name))
    differ = [key for key, value in TOLD[name].items() if told[key] != value]
    assert differ == OTHERWISE.get(name, [])


@pytest.mark.parametrize("name", SMALL)
def test_llama_cpp_still_makes_that_of_it(name, tmp_path):
    """It is asked anew, and of as many random texts as ASSAY_FUZZ says too."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing: make test-peers")
    from conformance.llama.peers import llama_cpp_python

    path = write_vocabulary(tmp_path / "v.gguf", SMALL[name])
    assert llama_cpp_python.vocabulary(path) == TOLD[name]
    same_ids(Tokenizer.from_metadata(SMALL[name]), llama_cpp_python.words(path))


@pytest.mark.parametrize("name", REAL)
def test_llama_cpp_tokenises_random_texts_so(name):
    """Of the real vocabularies it is asked as many random texts as ASSAY_FUZZ says."""
    tokenizer = Tokenizer.from_metadata(real_metadata(name))
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing: make test-peers")
    from conformance.llama.peers import llama_cpp_python

    same_ids(tokenizer, llama_cpp_python.words(VOCABS / f"{PREFIX}{name}.gguf"))


def same_ids(tokenizer, asked):
    for text in fuzzed():
        assert tokenizer.encode(text, add_special=False) == asked(text), ascii(text)


def test_every_kind_is_among_the_small_vocabularies_or_tried_elsewhere():
    """ "llama" has its tests in test_tokenizer.py, "whitespace" in test_pre_tokenizers.py."""
    kinds = {metadata["tokenizer.ggml.model"] for metadata in SMALL.values()}
    assert {*kinds, "llama", "whitespace"} == set(KINDS)


@pytest.mark.parametrize("name", ["world", "plamo2", "gemma4", "ends"])
def test_text_comes_back(name):
    """Where nothing is normalised, ids give back the text, at once and one by one."""
    tokenizer = Tokenizer.from_metadata(SMALL[name])
    for text in ("Hello,  wörld \n\n\n\n x", "中文🚀 e\u0301 z", "", " a"):
        ids = tokenizer.encode(text, add_special=False)
        stream = Detokenizer(tokenizer)
        assert tokenizer.decode(ids) == text
        assert "".join(map(stream.push, ids)) + stream.flush() == text


@pytest.mark.parametrize("name", SMALL)
def test_name_of_a_control_token_is_text(name):
    """A control token's name in a text is that token on request only."""
    tokenizer = Tokenizer.from_metadata(SMALL[name])
    hidden = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)]
    for token in hidden:
        text = f"a{tokenizer.texts[token]}b"
        assert token in tokenizer.encode(text, parse_special=True)
        unknown = tokenizer.texts[token] in ("<unk>", "[UNK]")  # it stands for what is no token
        assert unknown or token not in tokenizer.encode(text, add_special=False)


def test_around_a_text():
    """BERT's text has [CLS] before it and [SEP] behind it whatever the file says, Gemma 4's BOS,
    RWKV's and PLaMo's nothing, as in llama.cpp."""
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    asked = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    made = {name: Tokenizer.from_metadata(SMALL[name] | flags).encode("") for name in SMALL}
    assert made["wordpiece"] == [2, 3]
    assert made["gemma4"] == [0]
    assert made["unigram"] == made["ends"] == []
    assert Tokenizer.from_metadata(SMALL["unigram"]).encode("") == [1]
    for name in ("world", "plamo2"):
        assert Tokenizer.from_metadata(SMALL[name] | asked).encode("") == []


def test_whitespace_words_are_apart_and_may_be_lowered():
    """Spaces of all sorts are no text; capitals are small if the file says so."""
    metadata = vocabulary("whitespace")
    lower = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.normalizer.lowercase": True})
    as_is = Tokenizer.from_metadata(metadata)
    assert as_is.encode("a b") == as_is.encode(" a\n\u3000b ")
    assert as_is.decode(as_is.encode("Ab cÉ")) == "AbcÉ"
    assert lower.encode("Xaä") == as_is.encode("xaä")


@pytest.mark.parametrize("name", SMALL)
def test_stream_of_any_ids_is_their_decoding(name):
    """Ids in any order, whatever halves of characters they are, stream to the text of their bytes,
    and nothing that was streamed is half a character."""
    tokenizer, rng = Tokenizer.from_metadata(SMALL[name]), random.Random(3)
    texts = (text for text in map(tokenizer.encode, SAYINGS))
    for ids in (*texts, *(rng.choices(range(tokenizer.vocab_size), k=40) for _ in range(60))):
        shown = [i for i in ids if not tokenizer.is_special(i)]
        expected = b"".join(map(tokenizer.piece_bytes, shown)).decode(errors="replace")
        stream = Detokenizer(tokenizer, at_start=False)
        assert "".join(map(stream.push, ids)) + stream.flush() == expected


def test_world_streams_a_character_when_it_is_whole():
    """A character in two tokens comes with the second one."""
    tokenizer = Tokenizer.from_metadata(SMALL["world"])
    halves = [
        next(i for i in range(tokenizer.vocab_size) if tokenizer.piece_bytes(i) == b)
        for b in (b"\xc3", b"\xa9")
    ]
    stream = Detokenizer(tokenizer)
    assert [stream.push(i) for i in halves] == ["", "\u00e9"]


def test_merge_listed_twice_counts_where_it_is_first():
    """As in llama.cpp; the library would take the last."""
    metadata = bpe_metadata()
    merges = metadata["tokenizer.ggml.merges"]
    twice = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.merges": [*merges, merges[0]]})
    assert all(twice.encode(text) == BPE.encode(text) for text in ("bab", "abba", "babab"))
