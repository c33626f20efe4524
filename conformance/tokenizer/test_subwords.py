"""The subword models that know no merges, against their textbook rules and their own libraries."""

import io
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from conformance.support.small_vocabularies import REPLACED, SMALL, charsmap
from conformance.support.vocabularies import NORMAL, UNKNOWN, gguf
from conformance.support.words import texts
from engine.convert.sentencepiece_model import _fields
from engine.convert.vocabulary import TEXTS
from engine.tokenizer import Tokenizer, TokenizerError
from engine.tokenizer.charsmap import Charsmap
from engine.tokenizer.spm import SPACE

quick = settings(deadline=None, max_examples=150, derandomize=True)
words = st.text(alphabet="ab c\n", max_size=8)


def ways(text: str, pieces: Callable[[str], bool]) -> Iterator[tuple[str, ...]]:
    """All ways to write a text in pieces."""
    for cuts in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        cut = itertools.pairwise([0, *ends, len(text)])
        parts = tuple(text[a:b] for a, b in cut if a < b)
        if all(map(pieces, parts)):
            yield parts


@quick
@given(text=words)
def test_unigram_takes_the_best_sum(text):
    """Of all ways to write the text none has a higher sum of scores; a character that is no token
    costs 10 more than the worst."""
    scored = {SPACE: -2.0, "a": -1.0, "b": -1.5, "ab": -2.25, "aa": -2.5, "bab": -3.0, "b▁": -2.0}
    tokens = [("<unk>", UNKNOWN), *((piece, NORMAL) for piece in scored)]
    metadata = gguf("t5", tokens, scores=[0.0, *scored.values()], unknown_token_id=0)
    metadata |= {"tokenizer.ggml.add_eos_token": False}
    tokenizer = Tokenizer.from_metadata(metadata)
    told = tokenizer.encode(text)
    written = text.replace(" ", SPACE)
    costs = scored | dict.fromkeys("c\n", min(scored.values()) - 10)
    best = max(sum(map(costs.__getitem__, way)) for way in ways(written, costs.__contains__))
    known = [tokenizer.texts[i] for i in told if i]
    missing = sum(char in "c\n" for char in text)
    assert "".join(known) == written.translate({ord("c"): None, ord("\n"): None})
    assert sum(map(scored.__getitem__, known)) + missing * costs["c"] == pytest.approx(best)


def test_unigram_is_sentencepieces():
    """A model that the library trained, its map (NFKC) and all: the ids are the library's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in TEXTS for line in text.split("\n")] * 3),
        model_writer=model, model_type="unigram", vocab_size=150, hard_vocab_limit=False,
        num_threads=1, minloglevel=2, user_defined_symbols=["<user>"],
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(library.get_piece_size())
    normalizer = dict(_fields(dict(_fields(model.getvalue()))[3]))
    kinds = [
        2 if library.is_unknown(i) else 3 if library.is_control(i) else 4 if i == 3 else 1
        for i in ids
    ]
    metadata = gguf(
        "t5", [(library.id_to_piece(i), kind) for i, kind in zip(ids, kinds, strict=True)],
        scores=[library.get_score(i) for i in ids], unknown_token_id=library.unk_id(),
        add_space_prefix=True, remove_extra_whitespaces=True, add_eos_token=False,
        precompiled_charsmap=list(normalizer[2]),
    )  # fmt: skip
    tokenizer = Tokenizer.from_metadata(metadata)
    assert library.id_to_piece(3) == "<user>"
    for text in [*TEXTS, *texts()]:
        assert tokenizer.encode(text) == library.encode(text), text


def test_charsmap_replaces_the_longest():
    """A map of ours, read back: at every place the longest key, and nothing where there is none."""
    read = Charsmap({"tokenizer.ggml.precompiled_charsmap": charsmap(REPLACED)})
    for key, value in REPLACED.items():
        assert read.longest(f"x{key}y", 1) == (1 + len(key), value)
    assert read.longest("日月", 0) is None
    assert read.longest("e\u0301\u0301", 0) == (2, "\u00e9")
    assert Charsmap({}).longest("é", 0) is None


def word_piece(lower: bool) -> Library:
    """BERT's own, of the same vocabulary."""
    metadata = SMALL["wordpiece" if lower else "wordpiece-cased"]
    vocab = {}
    for i, (text, kind) in enumerate(
        zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    ):
        name = text.removeprefix(SPACE) if text.startswith(SPACE) else f"##{text}"
        vocab[text if kind != NORMAL else name] = i
    library = Library(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=1000))
    library.normalizer = normalizers.BertNormalizer(lowercase=lower)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


@pytest.mark.parametrize("lower", [True, False])
def test_word_piece_is_hugging_faces(lower):
    """Ids are BertTokenizer's, but for Hangul, whose syllables llama.cpp takes apart."""
    tokenizer = Tokenizer.from_metadata(SMALL["wordpiece" if lower else "wordpiece-cased"])
    library = word_piece(lower)
    kept = [text for text in texts() if not any("\uac00" <= char <= "\ud7a3" for char in text)]
    assert len(kept) > 200
    for text in kept:
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == expected, text


@quick
@given(data=st.binary(max_size=9).map(lambda data: data.decode(errors="ignore")) | words)
def test_world_takes_the_longest(data):
    """At each byte the longest token that begins there."""
    tokenizer = Tokenizer.from_metadata(SMALL["world"])
    known = {tokenizer.piece_bytes(i): i for i in range(1, tokenizer.vocab_size)}
    rest, expected = data.encode(), []
    while rest:
        length = next(n for n in range(len(rest), 0, -1) if rest[:n] in known)
        expected.append(known[rest[:length]])
        rest = rest[length:]
    assert tokenizer.encode(data) == expected


@quick
@given(text=words)
def test_plamo_takes_the_least_cost(text):
    """No way to write the text costs less; a character that is no token costs 1000."""
    metadata = SMALL["plamo2"]
    tokens, scores = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
    scored = dict(zip(tokens[260:], scores[260:], strict=True))
    tokenizer = Tokenizer.from_metadata(metadata)
    told = tokenizer.encode(text)
    missing = {char: -1000.0 for char in text if char not in scored}
    costs = scored | missing
    best = max(sum(map(costs.__getitem__, way)) for way in ways(text, costs.__contains__))
    assert tokenizer.decode(told) == text
    cost = sum(scored.get(tokenizer.texts[i], -1000.0) for i in told)
    assert cost == pytest.approx(best)


def test_plamo_drops_a_byte_order_mark():
    tokenizer = Tokenizer.from_metadata(SMALL["plamo2"])
    assert tokenizer.encode("\ufeffab") == tokenizer.encode("ab")


# A tuple's value is that of each token.
BAD: list[tuple[str, str, Any, str]] = [
    ("unigram", "scores", None, "tokenizer.ggml.scores is missing"),
    ("unigram", "scores", [0.0], r"tokenizer.ggml.scores has 1 elements for \d+ tokens"),
    ("unigram", "unknown_token_id", 10**6, "unknown_token_id is 1000000, outside"),
    ("unigram", "precompiled_charsmap", [1, 2], "precompiled_charsmap: its 2 bytes do not hold"),
    ("unigram", "precompiled_charsmap", [4, 0, 0, 0, 9, 9, 9, 9], "its 8 bytes do not hold"),
    ("unigram", "precompiled_charsmap", [300], "precompiled_charsmap: its elements are not bytes"),
    ("unigram", "precompiled_charsmap", ["a"], r"precompiled_charsmap\[0\] must be int, got str"),
    ("unigram", "precompiled_charsmap", [4, *[0] * 7, 65], "its last replacement has no end"),
    ("unigram", "precompiled_charsmap", [4, *[0] * 7, 0xFF, 0], "is not valid UTF-8"),
    ("unigram", "precompiled_charsmap", [4, *[0] * 4, 1, 0, 0, 0], "unit 0 ends a key that has no"),
    ("unigram", "precompiled_charsmap", [4, *[0] * 3, 9, 0, 0, 128, 0], "unit 0 points at no text"),
    ("wordpiece", "seperator_token_id", 10**6, "seperator_token_id is 1000000, outside"),
    ("wordpiece", "tokens", ["a"], "bos_token_id is 2, outside the vocabulary of 1 tokens"),
    ("wordpiece", "normalizer.lowercase", 1, "normalizer.lowercase must be bool, got int"),
    ("world", "tokens", ["a", "b"], "tokenizer.ggml.tokens: no token for byte 0x00"),
    ("world", "tokens", ["a\\"], r"tokenizer.ggml.tokens\[0\]: .* ends inside an escape"),
    ("plamo2", "scores", None, "tokenizer.ggml.scores is missing"),
    ("plamo2", "scores", (3e8,), r"tokenizer.ggml.scores\[260\] is beyond what a cost may be"),
    ("plamo2", "token_type", (1,), "has 0 byte tokens; there must be 256"),
    ("gemma4", "merges", None, "tokenizer.ggml.merges is missing"),
    ("gemma4", "merges", ["a zz"], "'a zz' needs 'zz', which is not a token"),
    ("gemma4", "bos_token_id", None, "tokenizer.ggml.bos_token_id is missing"),
]


@pytest.mark.parametrize(("name", "key", "value", "message"), BAD)
def test_bad_vocabulary_gets_one_plain_line(name, key, value, message):
    """A malformed vocabulary is refused with one line that names the key and the fault."""
    metadata, key = dict(SMALL[name]), f"tokenizer.ggml.{key}"
    if value is None:
        del metadata[key]
    elif key.endswith("tokens"):
        metadata |= {key: value, "tokenizer.ggml.token_type": [NORMAL] * len(value)}
    else:
        each = isinstance(value, tuple)
        metadata[key] = list(value) * len(metadata[key]) if each else value
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)


@settings(quick, max_examples=300)
@given(data=st.data())
def test_damaged_charsmap_is_refused_or_harmless(data):
    """With any bytes of the map damaged, a text is tokenised or the map is refused in one line."""
    blob = list(SMALL["unigram"]["tokenizer.ggml.precompiled_charsmap"])
    for at in data.draw(st.lists(st.integers(0, len(blob) - 1), min_size=1, max_size=40)):
        blob[at] = data.draw(st.integers(0, 255))
    blob = blob[: data.draw(st.integers(0, len(blob)))] if data.draw(st.booleans()) else blob
    text, message = "éﬁ日本 e\u0301カ\u3000", ""
    try:
        read = Charsmap({"tokenizer.ggml.precompiled_charsmap": blob})
        for at in range(len(text)):
            read.longest(text, at)
    except TokenizerError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


def test_charsmap_in_a_circle_is_refused():
    """A map whose keys never end would be walked through a whole text from each of its places."""
    units = [0] * 256
    units[0] = 1 << 10  # its children are about unit 1
    units[1 ^ ord("a")] = (1 ^ 1 ^ ord("a")) << 10 | ord("a")  # and so are its own
    blob = [*np.array([4 * 256, *units], "<u4").tobytes(), 0]
    with pytest.raises(TokenizerError, match="unit 96 is reached from itself"):
        Charsmap({"tokenizer.ggml.precompiled_charsmap": blob})


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "1" * 100_000, "\u0301" * 50_000])
def test_long_run_takes_seconds(name, text):
    """100 kB of one letter cost no more a letter than 10 kB: no word is gone through again for each
    of its letters. Five times as much is for caches and for others on the machine."""
    tokenizer = Tokenizer.from_metadata(SMALL[name])
    tokenizer.encode(text[:100])
    spent = []
    for part in (text[: len(text) // 10], text):
        begun = time.process_time()
        tokenizer.encode(part)
        spent.append(time.process_time() - begun)
    assert spent[1] < 50 * spent[0] + 0.5
