"""The tokenizer against real vocabularies, against the textbook rule, and against bad files."""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.support.vocabularies import (
    BPE,
    NORMAL,
    SPM,
    UNKNOWN,
    bpe_metadata,
    gguf,
    real_cases,
    real_metadata,
    spm_metadata,
)
from engine.tokenizer import Detokenizer, Tokenizer, TokenizerError

NAMES = (
    "llama-spm", "phi-3", "llama-bpe", "gpt-2", "qwen2", "qwen35", "gemma-4", "deepseek-llm",
    "deepseek-coder", "command-r", "falcon", "mpt", "refact", "starcoder", "bert-bge",
)  # fmt: skip
SMALL = pytest.mark.parametrize("tokenizer", [SPM, BPE], ids=["spm", "bpe"])
# SentencePiece writes a space as ▁, so a ▁ in the text comes back as a space.
texts = st.text().filter(lambda text: "▁" not in text)
near_words = st.text(alphabet="ab <s>\té😀\n")
quick = settings(deadline=None, max_examples=150, derandomize=True)


@cache
def real_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_metadata(real_metadata(name))


@pytest.mark.parametrize("name", NAMES)
def test_real_vocabulary_gives_the_models_own_ids(name):
    """Every text of llama.cpp's own test gets exactly the ids that the model's tokenizer gives."""
    tokenizer = real_tokenizer(name)
    for text, ids in real_cases(name):
        assert tokenizer.encode(text, add_special=False) == ids, text


@pytest.mark.parametrize("name", NAMES[:-1])  # BERT's spaces are lost
def test_real_vocabulary_turns_ids_back_into_the_text(name):
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
def test_real_vocabulary_knows_where_a_text_begins_and_ends(name, bos, eog):
    """BOS is added where the model expects it, and all its ends of a turn are known."""
    tokenizer = real_tokenizer(name)
    assert tokenizer.encode("") == bos
    assert {tokenizer.piece(i) for i in tokenizer.eog_ids} == eog


def test_phi3_swallows_the_space_behind_special_tokens():
    """Phi 3 reads a turn's end without the line break behind it, as it was trained to."""
    tokenizer = real_tokenizer("phi-3")
    ids = tokenizer.encode("<|user|>\nHi<|end|>\n<|assistant|>\n", parse_special=True)
    assert [tokenizer.piece(i) for i in ids] == [
        "<s>",
        "<|user|>",
        " Hi",
        "<|end|>",
        "<|assistant|>",
    ]


@SMALL
@quick
@given(text=texts | near_words)
def test_any_text_round_trips(tokenizer, text):
    """Encoding and decoding gives back any text, BOS or not."""
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


def joined_greedily(pieces: list[str], rank: Callable[[str, str], float]) -> list[str]:
    """The textbook rule: join the pair of lowest rank, of equals the leftmost, until no more."""
    while len(pieces) > 1:
        lowest, i = min((rank(a, b), i) for i, (a, b) in enumerate(pairwise(pieces)))
        if lowest == math.inf:
            break
        pieces = [*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :]]
    return pieces


@quick
@given(text=st.text(alphabet="ab é😀", min_size=1))
def test_spm_joins_by_score(text):
    """SentencePiece ids are those of the textbook rule, ties and unknown characters included."""
    metadata = spm_metadata()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ranks = {t: -s for t, s in zip(tokens[260:], scores[260:], strict=True)}
    pieces = list("▁" + text.replace(" ", "▁"))
    expected: list[str] = []
    for piece in joined_greedily(pieces, lambda a, b: ranks.get(a + b, math.inf)):
        expected += [piece] if piece in ranks else [f"<0x{byte:02X}>" for byte in piece.encode()]
    assert [tokens[i] for i in SPM.encode(text, add_special=False)] == expected


@quick
@given(word=st.text(alphabet="ab", min_size=1))
def test_bpe_joins_by_merge_order(word):
    """Byte-level ids of a word are those of the textbook rule."""
    metadata = bpe_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    ranks = {merge: i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    expected = joined_greedily(list(word), lambda a, b: ranks.get(f"{a} {b}", math.inf))
    assert [tokens[i] for i in BPE.encode(word, add_special=False)] == expected


def test_llama3_takes_a_whole_word_that_no_merge_reaches():
    """Under llama-bpe a word in the vocabulary is one token, under gpt-2 only if merges make it."""
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"][-1] = "bbb"
    metadata["tokenizer.ggml.token_type"][-1] = NORMAL
    assert len(Tokenizer.from_metadata(metadata).encode("bbb")) == 3
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert Tokenizer.from_metadata(metadata).encode("bbb") == [264, 266]


@SMALL
@quick
@given(data=st.data())
def test_stream_of_any_ids_is_their_decoding(tokenizer, data):
    """Any ids, even ones that are no valid UTF-8, stream to the text of their bytes."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    shown = [i for i in ids if not tokenizer.is_special(i)]
    expected = b"".join(map(tokenizer.piece_bytes, shown)).decode(errors="replace")
    stream = Detokenizer(tokenizer, at_start=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == expected
    if shown and tokenizer.add_space_prefix and tokenizer.is_text(shown[0]):
        expected = expected.removeprefix(" ")
    assert tokenizer.decode(ids) == expected


@SMALL
@quick
@given(text=st.text(alphabet="aé我😀 ").filter(lambda text: "\ufffd" not in text))
def test_stream_never_holds_half_a_character(tokenizer, text):
    """Whatever has been streamed so far is a beginning of the text, whole characters only."""
    stream, so_far = Detokenizer(tokenizer), ""
    for token_id in tokenizer.encode(text):
        so_far += stream.push(token_id)
        assert text.startswith(so_far)
    assert stream.flush() == ""
    assert so_far == text


def test_unfinished_character_is_flushed_as_a_replacement():
    """A stream that ends inside a character says so with U+FFFD, and only at the end."""
    stream = Detokenizer(SPM)
    assert [stream.push(SPM.encode("我")[i]) for i in (2, 3)] == ["", ""]
    assert (stream.flush(), stream.flush()) == ("\ufffd", "")


@SMALL
def test_special_tokens_are_read_only_on_request(tokenizer):
    """A control token's name in a text is text unless asked for; a user-defined one is a token."""
    name = tokenizer.piece(tokenizer.eos_id or 0)
    assert tokenizer.eos_id not in tokenizer.encode(f"a{name}b")
    assert tokenizer.decode(tokenizer.encode(f"a{name}b")) == f"a{name}b"
    ids = tokenizer.encode(f"a{name}", parse_special=True)
    assert ids[-1] == tokenizer.eos_id
    assert (tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)[-len(name) :]) == (
        "a",
        name,
    )
    assert "<user>" in [tokenizer.piece(i) for i in tokenizer.encode("a<user>b")]


def test_bos_and_eos_follow_the_file():
    """BOS and EOS are added as the file says, and only to a whole text."""
    metadata = spm_metadata() | {"tokenizer.ggml.add_eos_token": True}
    assert Tokenizer.from_metadata(metadata).encode("") == [1, 2]
    metadata |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": False}
    assert Tokenizer.from_metadata(metadata).encode("") == []
    assert SPM.encode("", add_special=False) == []


@SMALL
def test_lone_surrogate_is_refused(tokenizer):
    """A text that is not valid Unicode is refused with the position of the fault."""
    with pytest.raises(TokenizerError, match=r"U\+D800 at position 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_id_outside_the_vocabulary_is_refused(token_id):
    """Decoding refuses an id that no token has; -1 is not the last token."""
    with pytest.raises(TokenizerError, match=f"token id {token_id} is outside"):
        SPM.decode([token_id])


def test_character_without_a_token_is_refused():
    """Without byte tokens a text is never shortened in silence: the character is named."""
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


BAD = [
    ("spm", "model", None, "tokenizer.ggml.model is missing; supported are 'llama'"),
    ("spm", "model", "plamo", "tokenizer.ggml.model is 'plamo', which is not supported"),
    ("spm", "model", 1, "tokenizer.ggml.model must be str, got int"),
    ("bpe", "pre", "klingon", "tokenizer.ggml.pre is 'klingon', .* supported are .*llama-bpe"),
    ("bpe", "merges", None, "tokenizer.ggml.merges is missing"),
    ("bpe", "merges", "a b", "tokenizer.ggml.merges must be a list, got str"),
    ("bpe", "merges", ["a b", 3], r"tokenizer.ggml.merges\[1\] must be str, got int"),
    ("bpe", "merges", ["ab"], "'ab' is not two tokens"),
    ("bpe", "merges", ["a zz"], "'a zz' needs 'zz', which is not a token"),
    ("bpe", "merges", ["a \ud800"], "which is not a token"),
    ("spm", "tokens", None, "tokenizer.ggml.tokens is missing"),
    ("spm", "tokens", [], "tokenizer.ggml.tokens is empty"),
    ("spm", "tokens", ["a", "b", "a"], "'a' is listed twice, as ids 0 and 2"),
    ("spm", "tokens", ["a", b"b"], r"tokenizer.ggml.tokens\[1\] must be str, got bytes"),
    ("spm", "tokens", ["a", "\ud800"], r"tokenizer.ggml.tokens\[1\] is not valid UTF-8"),
    ("spm", "scores", None, "tokenizer.ggml.scores is missing"),
    ("spm", "scores", [0.0], "tokenizer.ggml.scores has 1 elements for 277 tokens"),
    ("spm", "scores", [float("nan")] * 277, r"scores\[0\] is not a finite float32"),
    ("spm", "token_type", [1], "tokenizer.ggml.token_type has 1 elements for 277 tokens"),
    ("spm", "token_type", [9] * 277, r"token_type\[0\] must be 0 to 6, got 9"),
    ("spm", "token_type", [True] * 277, r"token_type\[0\] must be int, got bool"),
    ("spm", "token_type", [6] * 277, r"tokens\[0\] is a byte token .* got '<unk>'"),
    ("spm", "token_type", [1] * 276 + [5], None),
    ("spm", "token_type", [1] * 4 + [6] * 255 + [1] * 18, "255 byte tokens; there must be 256"),
    ("spm", "bos_token_id", 277, "bos_token_id is 277, outside the vocabulary of 277 tokens"),
    ("spm", "eot_token_id", -1, "eot_token_id is -1, outside the vocabulary"),
    ("bpe", "eos_token_id", "2", "tokenizer.ggml.eos_token_id must be int, got str"),
    ("spm", "add_bos_token", 1, "tokenizer.ggml.add_bos_token must be bool, got int"),
]


@pytest.mark.parametrize(("kind", "key", "value", "message"), BAD)
def test_bad_vocabulary_gets_one_plain_line(kind, key, value, message):
    """A malformed vocabulary is refused with one line that names the key and the fault."""
    metadata = (spm_metadata() if kind == "spm" else bpe_metadata()) | {
        f"tokenizer.ggml.{key}": value
    }
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    if message is None:
        Tokenizer.from_metadata(metadata)
        return
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary()


@settings(quick, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), metadata=st.sampled_from([spm_metadata(), bpe_metadata()]))
def test_any_damage_is_refused_or_harmless(data, metadata):
    """With any one value of the metadata damaged, building works or ends in one plain line."""
    key = data.draw(st.sampled_from(sorted(metadata)))
    value = metadata[key]
    if isinstance(value, list) and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(value) - 1))
        value = [*value[:at], data.draw(junk), *value[at + 1 :]]
    else:
        value = data.draw(junk | st.lists(junk, max_size=3))
    message = ""
    try:
        Tokenizer.from_metadata(metadata | {key: value}).encode("a b é")
    except TokenizerError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1
