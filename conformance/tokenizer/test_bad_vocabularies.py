"""Invalid vocabularies are refused in one line, and damaged ones do no harm."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.support.tokenizer.small_vocabularies import SMALL
from conformance.support.tokenizer.vocabularies import NORMAL, bpe_metadata, spm_metadata
from engine.tokenizer import Tokenizer, TokenizerError
from engine.tokenizer.charsmap import Charsmap

KNOWN = {"spm": spm_metadata(), "bpe": bpe_metadata(), **SMALL}
quick = settings(deadline=None, max_examples=150, derandomize=True)
# A tuple's value is that of each token.
BAD: list[tuple[str, str, Any, str]] = [
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
    ("spm", "token_type", [1] * 4 + [6] * 255 + [1] * 18, "255 byte tokens; there must be 256"),
    ("spm", "bos_token_id", 277, "bos_token_id is 277, outside the vocabulary of 277 tokens"),
    ("spm", "eot_token_id", -1, "eot_token_id is -1, outside the vocabulary"),
    ("bpe", "eos_token_id", "2", "tokenizer.ggml.eos_token_id must be int, got str"),
    ("spm", "add_bos_token", 1, "tokenizer.ggml.add_bos_token must be bool, got int"),
    ("unigram", "scores", None, "tokenizer.ggml.scores is missing"),
    ("unigram", "scores", [0.0], r"tokenizer.ggml.scores has 1 elements for \d+ tokens"),
    ("unigram", "unknown_token_id", 10**6, "unknown_token_id is 1000000, outside"),
    ("unigram", "precompiled_charsmap", [1, 2], "precompiled_charsmap: its 2 bytes are too few"),
    ("unigram", "precompiled_charsmap", [4, 0, 0, 0, 9, 9, 9, 9], "its 8 bytes are too few"),
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
    ("plamo2", "scores", (3e8,), r"tokenizer.ggml.scores\[260\] is too large"),
    ("plamo2", "token_type", (1,), "has 0 byte tokens; there must be 256"),
    ("gemma4", "merges", None, "tokenizer.ggml.merges is missing"),
    ("gemma4", "merges", ["a zz"], "'a zz' needs 'zz', which is not a token"),
    ("gemma4", "bos_token_id", None, "tokenizer.ggml.bos_token_id is missing"),
]


@pytest.mark.parametrize(("name", "key", "value", "message"), BAD)
def test_bad_vocabulary_gets_one_plain_line(name, key, value, message):
    """A malformed vocabulary is refused with one line that names the key and the fault."""
    metadata, key = dict(KNOWN[name]), f"tokenizer.ggml.{key}"
    if value is None:
        del metadata[key]
    elif key.endswith("tokens") and name in SMALL:
        metadata |= {key: value, "tokenizer.ggml.token_type": [NORMAL] * len(value)}
    else:
        each = isinstance(value, tuple)
        metadata[key] = list(value) * len(metadata[key]) if each else value
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)


junk = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary()


@settings(quick, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), metadata=st.sampled_from([spm_metadata(), bpe_metadata()]))
def test_any_damage_is_refused_or_harmless(data, metadata):
    """With any one value of the metadata damaged, loading works or ends in one plain line."""
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
    """A cyclic map would be walked through a whole text from each position."""
    units = [0] * 256
    units[0] = 1 << 10  # its children are about unit 1
    units[1 ^ ord("a")] = (1 ^ 1 ^ ord("a")) << 10 | ord("a")  # and so are its own
    blob = [*np.array([4 * 256, *units], "<u4").tobytes(), 0]
    with pytest.raises(TokenizerError, match="unit 96 is reached from itself"):
        Charsmap({"tokenizer.ggml.precompiled_charsmap": blob})
