"""The subword models, compared with their textbook rules and their own libraries."""

import io
import itertools
import math
import time
from collections.abc import Callable, Iterator

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from conformance.support.tokenizer import vocabularies
from conformance.support.tokenizer.small_vocabularies import REPLACED, SMALL, charsmap
from conformance.support.tokenizer.words import texts
from engine.convert.sentencepiece_model import _fields
from engine.convert.vocabulary import TEXTS
from engine.tokenizer import Tokenizer
from engine.tokenizer.charsmap import Charsmap
from engine.tokenizer.spm import SPACE

quick = settings(deadline=None, max_examples=150, derandomize=True)
words = st.text(alphabet="ab c\n", max_size=8)


def ways(text: str, pieces: Callable[[str], bool]) -> Iterator[tuple[str, ...]]:
    """All segmentations of a text into pieces."""
    for cuts in itertools.product([False, True], repeat=max(len(text) - 1, 0)):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut]
        cut = itertools.pairwise([0, *ends, len(text)])
        parts = tuple(text[a:b] for a, b in cut if a < b)
        if all(map(pieces, parts)):
            yield parts


@quick
@given(text=words)
def test_unigram_maximises_the_score(text):
    """No segmentation scores higher; an unknown character costs 10 more than the worst."""
    scored = {SPACE: -2.0, "a": -1.0, "b": -1.5, "ab": -2.25, "aa": -2.5, "bab": -3.0, "b▁": -2.0}
    tokens = [("<unk>", vocabularies.UNKNOWN), *((piece, vocabularies.NORMAL) for piece in scored)]
    metadata = vocabularies.gguf("t5", tokens, scores=[0.0, *scored.values()], unknown_token_id=0)
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


def test_unigram_equals_sentencepiece():
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
    metadata = vocabularies.gguf(
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
    """Our map, read back, has the longest key at every position, and nothing elsewhere."""
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
        vocab[text if kind != vocabularies.NORMAL else name] = i
    library = Library(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=1000))
    library.normalizer = normalizers.BertNormalizer(lowercase=lower)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


@pytest.mark.parametrize("lower", [True, False])
def test_word_piece_equals_hugging_face(lower):
    """Ids are BertTokenizer's, except for Hangul, whose syllables llama.cpp decomposes."""
    tokenizer = Tokenizer.from_metadata(SMALL["wordpiece" if lower else "wordpiece-cased"])
    library = word_piece(lower)
    kept = [text for text in texts() if not any("\uac00" <= char <= "\ud7a3" for char in text)]
    assert len(kept) > 200
    for text in kept:
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == expected, text


def test_word_piece_has_llama_cpps_unicode():
    """Marks and accents of Unicode 15.1 count, whatever Python's version is."""
    tokenizer = Tokenizer.from_metadata(SMALL["wordpiece"])

    def encode(text):
        return tokenizer.encode(text, add_special=False)

    (unknown,), letter = encode("\u4e01"), encode("a")
    assert encode("a\U00011f43a") == [*letter, unknown, *letter]
    assert encode("a\u0ecea") == encode("aa") != [unknown]
    assert encode("a\u0897a") == encode("a\u1b4ea") == [unknown]


@quick
@given(data=st.binary(max_size=9).map(lambda data: data.decode(errors="ignore")) | words)
def test_world_is_longest_match(data):
    """At each byte the longest token that starts there is taken."""
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
def test_plamo_minimises_the_cost(text):
    """No segmentation costs less; an unknown character costs 1000."""
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


def merged_by_rank(pieces: list[str], rank: Callable[[str, str], float]) -> list[str]:
    """The textbook rule: join the leftmost pair of lowest rank until none is left."""
    while len(pieces) > 1:
        lowest, i = min((rank(a, b), i) for i, (a, b) in enumerate(itertools.pairwise(pieces)))
        if lowest == math.inf:
            break
        pieces = [*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :]]
    return pieces


@quick
@given(text=st.text(alphabet="ab é😀", min_size=1))
def test_spm_merges_by_score(text):
    """SentencePiece ids are those of the textbook rule, ties and unknown characters included."""
    metadata = vocabularies.spm_metadata()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ranks = {t: -s for t, s in zip(tokens[260:], scores[260:], strict=True)}
    pieces = list("▁" + text.replace(" ", "▁"))
    expected: list[str] = []
    for piece in merged_by_rank(pieces, lambda a, b: ranks.get(a + b, math.inf)):
        expected += [piece] if piece in ranks else [f"<0x{byte:02X}>" for byte in piece.encode()]
    assert [tokens[i] for i in vocabularies.SPM.encode(text, add_special=False)] == expected


@quick
@given(word=st.text(alphabet="ab", min_size=1))
def test_bpe_merges_by_rank(word):
    """Byte-level ids of a word are those of the textbook rule."""
    metadata = vocabularies.bpe_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    ranks = {merge: i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    expected = merged_by_rank(list(word), lambda a, b: ranks.get(f"{a} {b}", math.inf))
    assert [tokens[i] for i in vocabularies.BPE.encode(word, add_special=False)] == expected


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "1" * 100_000, "\u0301" * 50_000])
def test_long_runs_take_linear_time(name, text):
    """100 kB of one letter cost no more a letter than 10 kB: no quadratic algorithm. A factor of
    five allows for caches and other load."""
    tokenizer = Tokenizer.from_metadata(SMALL[name])
    tokenizer.encode(text[:100])
    spent = []
    for part in (text[: len(text) // 10], text):
        begun = time.process_time()
        tokenizer.encode(part)
        spent.append(time.process_time() - begun)
    assert spent[1] < 50 * spent[0] + 0.5
