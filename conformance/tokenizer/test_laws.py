"""Laws of every vocabulary: texts round-trip, streams return whole characters, names of special
tokens are text; and properties of single kinds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.support.tokenizer.small_vocabularies import SMALL
from conformance.support.tokenizer.vocabularies import (
    BPE,
    NORMAL,
    SPM,
    UNKNOWN,
    bpe_metadata,
    gguf,
    spm_metadata,
)
from conformance.support.tokenizer.words import vocabulary
from engine.tokenizer import Detokenizer, Tokenizer, TokenizerError

quick = settings(deadline=None, max_examples=150, derandomize=True)
EVERY = {"spm": SPM, "bpe": BPE} | {n: Tokenizer.from_metadata(m) for n, m in SMALL.items()}
every = pytest.mark.parametrize("tokenizer", EVERY.values(), ids=EVERY)
PLAIN = ("spm", "bpe", "world", "plamo2", "gemma4", "ends")  # which normalise nothing
both = pytest.mark.parametrize("tokenizer", [SPM, BPE], ids=["spm", "bpe"])
# SentencePiece writes a space as ▁, so a ▁ in the text comes back as a space; PLaMo drops a byte
# order mark; what is shown in place of half a character is no text here.
texts = st.text() | st.text(alphabet="ab <s>\té我😀\n  e\u0301中🚀 z")
texts = texts.filter(lambda text: not set(text) & set("▁\ufeff\ufffd"))


@pytest.mark.parametrize("tokenizer", [EVERY[name] for name in PLAIN], ids=PLAIN)
@quick
@given(text=texts)
def test_texts_round_trip(tokenizer, text):
    """A text is decoded whole, with BOS or not, and token by token in whole characters."""
    bare = tokenizer.encode(text, add_special=False)
    ids = bare if tokenizer.kind == "gemma4" else tokenizer.encode(text)  # BOS is a tab of its own
    assert tokenizer.decode(ids) == tokenizer.decode(bare) == text
    stream, so_far = Detokenizer(tokenizer), ""
    for token in ids:
        so_far += stream.push(token)
        assert text.startswith(so_far)
    assert stream.flush() == ""
    assert so_far == text


@every
@quick
@given(data=st.data())
def test_streams_equal_decoding(tokenizer, data):
    """Any ids, even ones that are no valid UTF-8, stream to the text of their bytes."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    shown = [i for i in ids if not tokenizer.is_special(i)]
    expected = b"".join(map(tokenizer.piece_bytes, shown)).decode(errors="replace")
    stream = Detokenizer(tokenizer, at_start=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == expected
    if shown and tokenizer.add_space_prefix and tokenizer.is_text(shown[0]):
        expected = expected.removeprefix(" ")
    assert tokenizer.decode(ids) == expected


def test_unfinished_character_is_flushed_as_a_replacement():
    """A stream that ends inside a character returns U+FFFD, and only at the end."""
    stream = Detokenizer(SPM)
    assert [stream.push(SPM.encode("我")[i]) for i in (2, 3)] == ["", ""]
    assert (stream.flush(), stream.flush()) == ("\ufffd", "")


def test_world_streams_a_character_when_it_is_whole():
    """A character in two tokens is returned with the second one."""
    tokenizer = EVERY["world"]
    halves = [
        next(i for i in range(tokenizer.vocab_size) if tokenizer.piece_bytes(i) == b)
        for b in (b"\xc3", b"\xa9")
    ]
    stream = Detokenizer(tokenizer)
    assert [stream.push(i) for i in halves] == ["", "\u00e9"]


@every
def test_name_of_a_control_token_is_text(tokenizer):
    """A control token's name in a text is that token on request only."""
    for token in filter(tokenizer.is_special, range(tokenizer.vocab_size)):
        name = tokenizer.texts[token]
        assert token in tokenizer.encode(f"a{name}b", parse_special=True)
        unknown = name in ("<unk>", "[UNK]")  # it stands for what is no token
        assert unknown or token not in tokenizer.encode(f"a{name}b", add_special=False)


@both
def test_special_tokens_are_shown_only_on_request(tokenizer):
    """User-defined ones are always tokens, and shown."""
    name = tokenizer.piece(tokenizer.eos_id)
    ids = tokenizer.encode(f"a{name}", parse_special=True)
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special=False).endswith(name)
    assert "<user>" in [tokenizer.piece(i) for i in tokenizer.encode("a<user>b")]


def test_bos_and_eos_follow_the_file():
    """BOS and EOS are added as the file says, and only to a whole text."""
    metadata = spm_metadata() | {"tokenizer.ggml.add_eos_token": True}
    assert Tokenizer.from_metadata(metadata).encode("") == [1, 2]
    metadata |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    assert Tokenizer.from_metadata(metadata).encode("") == []
    assert SPM.encode("", add_special=False) == []


@both
def test_lone_surrogate_is_refused(tokenizer):
    """A text that is not valid Unicode is refused with the position of the fault."""
    with pytest.raises(TokenizerError, match=r"U\+D800 at position 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_id_outside_the_vocabulary_is_refused(token_id):
    """Decoding refuses unknown ids; -1 is not the last token."""
    with pytest.raises(TokenizerError, match=f"token id {token_id} is outside"):
        SPM.decode([token_id])


def test_character_without_a_token_is_refused():
    """Without byte tokens a text is never shortened silently: the character is named."""
    tokens = [("▁", NORMAL), ("a", NORMAL), ("?", UNKNOWN)]
    spm = gguf("llama", tokens[:2], scores=[0.0, 0.0], add_bos_token=False)
    lossy = gguf("llama", tokens, scores=[0.0, 0.0, 0.0], add_bos_token=False)
    bpe = gguf("gpt2", [("a", NORMAL), ("Ã", NORMAL)], merges=[], pre="gpt-2")
    with pytest.raises(TokenizerError, match="byte 0x62, in 'b' at position 1"):
        Tokenizer.from_metadata(bpe).encode("ab")
    with pytest.raises(TokenizerError, match="byte 0xA9, in 'é' at position 1"):
        Tokenizer.from_metadata(bpe).encode("aé")
    with pytest.raises(TokenizerError, match="no token for 'b'"):
        Tokenizer.from_metadata(spm).encode("ab")
    assert Tokenizer.from_metadata(lossy).encode("ab") == [0, 1, 2]


def test_special_tokens_around_a_text():
    """BERT adds [CLS] before and [SEP] after a text whatever the file says, Gemma 4 BOS, RWKV and
    PLaMo nothing, as in llama.cpp."""
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    asked = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    made = {name: Tokenizer.from_metadata(SMALL[name] | flags).encode("") for name in SMALL}
    assert made["wordpiece"] == [2, 3]
    assert made["gemma4"] == [0]
    assert made["unigram"] == made["ends"] == []
    assert Tokenizer.from_metadata(SMALL["unigram"]).encode("") == [1]
    for name in ("world", "plamo2"):
        assert Tokenizer.from_metadata(SMALL[name] | asked).encode("") == []


def test_whitespace_and_lowercasing():
    """Whitespace of any kind is not text; capitals are lowercased if the file says so."""
    metadata = vocabulary("whitespace")
    lower = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.normalizer.lowercase": True})
    as_is = Tokenizer.from_metadata(metadata)
    assert as_is.encode("a b") == as_is.encode(" a\n\u3000b ")
    assert as_is.decode(as_is.encode("Ab cÉ")) == "AbcÉ"
    assert lower.encode("Xaä") == as_is.encode("xaä")


def test_llama3_ignores_merges_for_whole_words():
    """Under llama-bpe a word in the vocabulary is one token, under gpt-2 only if merges make it."""
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"][-1] = "bbb"
    metadata["tokenizer.ggml.token_type"][-1] = NORMAL
    assert len(Tokenizer.from_metadata(metadata).encode("bbb")) == 3
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert Tokenizer.from_metadata(metadata).encode("bbb") == [264, 266]


def test_the_first_of_duplicate_merges_counts():
    """llama.cpp uses the first; the library would use the last."""
    metadata = bpe_metadata()
    merges = metadata["tokenizer.ggml.merges"]
    twice = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.merges": [*merges, merges[0]]})
    assert all(twice.encode(text) == BPE.encode(text) for text in ("bab", "abba", "babab"))
