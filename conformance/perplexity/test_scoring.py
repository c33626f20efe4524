"""Scores of continuations, compared with the formula on the engine's logits."""

import math

import pytest

from conformance.support.models.formula import log_softmax
from engine import Engine, PromptError, SamplingParams
from engine.generation.scoring import tokenize_pair

PROMPT = "Once upon a time, there was"
# What lm-evaluation-harness 0.4.13 takes for the continuation (test_harness.py asks it live).
BORDERS = {
    (PROMPT, " a little girl"): [" a", " little", " girl"],
    ("Once upon a ", "time"): [" time"],
    ("Once  ", " upon"): [" ", " ", " upon"],
    ("On", "ce upon"): [" upon"],  # "Once" is one token
    ("The dog\n", "ran"): ["\n", "r", "an"],
    ("The cat sa", "t. They"): [".", " They"],  # " sat" is one token
    ("", "Once upon"): ["Once", " upon"],
}
CONTINUATIONS = (" a little girl", " a", " dog", " three bears and a very long day in the park")


def split_tokens(story, prompt, continuation):
    """The pair's tokens if no token crosses the border."""
    own, whole = story.encode(prompt), story.encode(prompt + continuation)
    assert whole[: len(own)] == own
    return own, whole[len(own) :]


@pytest.mark.parametrize("continuation", CONTINUATIONS)
def test_scores_are_log_probabilities_of_the_logits(story, continuation):
    """Each token's score is the formula's on the engine's logits, within the op's bound."""
    own, wanted = split_tokens(story, PROMPT, continuation)
    rows = story.logits(own + wanted)[len(own) - 1 : -1]
    score = story.score(PROMPT, continuation)
    assert score.token_ids == tuple(wanted)
    for row, token, got in zip(rows, wanted, score.logprobs, strict=True):
        expected, error = log_softmax(row)
        assert abs(got - expected[token]) <= error
    assert score.cumulative_logprob == math.fsum(score.logprobs)
    assert score.is_greedy == (rows.argmax(axis=-1).tolist() == wanted)


@pytest.mark.parametrize(("prompt", "continuation"), BORDERS)
def test_boundaries(story, prompt, continuation):
    """Spaces at the border belong to the continuation, which is the whole text's tokens after as
    many as the prompt has alone."""
    own, wanted = tokenize_pair(story.tokenizer, prompt, continuation)
    assert [story.tokenizer.piece(token) for token in wanted] == BORDERS[prompt, continuation]
    assert own == story.encode(prompt.rstrip())
    assert story.score(prompt, continuation) == story.score(own, wanted)


def test_is_greedy(story):
    """Text generated at temperature 0 is reported as greedy, with the same bits of
    log-probabilities; with another last token it is not."""
    tokens = story.encode(PROMPT)
    written = story.generate(tokens, SamplingParams(max_tokens=9, temperature=0, logprobs=0))
    said = list(written.outputs[0].token_ids)
    score = story.score(tokens, said)
    assert score.is_greedy
    assert score.cumulative_logprob == written.outputs[0].cumulative_logprob
    assert not story.score(tokens, [*said[:-1], said[-1] ^ 1]).is_greedy


def test_batch_order_and_chunks_change_no_bit(story):
    """A list's scores are those of each alone, for any order, batch and outputs of a step."""
    alone = [story.score(PROMPT, continuation) for continuation in CONTINUATIONS]
    assert story.score(PROMPT, CONTINUATIONS) == alone
    assert story.score([PROMPT] * 4, CONTINUATIONS[::-1]) == alone[::-1]
    with Engine.load("story", threads=2, batch=5, outputs=2) as other:
        assert other.score(PROMPT, CONTINUATIONS) == alone


def test_a_shared_prompt_is_evaluated_once(story):
    """A prompt with many continuations is evaluated once."""
    pairs = [split_tokens(story, PROMPT, continuation) for continuation in CONTINUATIONS]
    story.reset()
    story.score(PROMPT, CONTINUATIONS)
    most = len(pairs[0][0]) + sum(len(wanted) for _, wanted in pairs)
    assert story.timings.prompt.tokens <= most


@pytest.mark.parametrize(
    ("prompt", "continuation", "wrong"),
    [
        ("Once", "", "the continuation has no token of its own"),
        ("a" * 5000, " b", r"the prompt has \d+ tokens, the context holds"),
        ([], [5], "or one of either: 0 and 1"),
        ([5], [10**6], "token 1000000 is outside the vocabulary"),
        ("Once", [5], "both be texts, or both token ids"),
        (["a", "b"], ["c", "d", "e"], "or one of either: 2 and 3"),
        ("Once", [" upon", ""], "pair 1: the continuation has no token"),
    ],
)
def test_bad_pairs_are_refused(story, prompt, continuation, wrong):
    with pytest.raises(PromptError, match=wrong):
        story.score(prompt, continuation)


def test_generation_continues_after_scoring(story):
    """The cache is left in a state that a generation can use."""
    params = SamplingParams(max_tokens=8, temperature=0)
    expected = story.generate(PROMPT, params).text
    story.score(PROMPT, CONTINUATIONS)
    story.embed([PROMPT, "The dog"])
    assert story.generate(PROMPT, params).text == expected
