"""What continuations cost, against the formula on the engine's logits."""

import math

import pytest

from conformance.support.formula import log_softmax
from engine import Engine, PromptError, SamplingParams
from engine.generation.scoring import cut

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


@pytest.fixture(name="engine", scope="module")
def _engine():
    with Engine.load("story", threads=1, sequences=3) as engine:
        yield engine


def parted(engine, prompt, continuation):
    """The pair's tokens where no token lies across the border."""
    own, whole = engine.encode(prompt), engine.encode(prompt + continuation)
    assert whole[: len(own)] == own
    return own, whole[len(own) :]


@pytest.mark.parametrize("continuation", CONTINUATIONS)
def test_scores_are_the_logits_log_probabilities(engine, continuation):
    """Each token's is that of the formula on the engine's logits, within the op's bound."""
    own, wanted = parted(engine, PROMPT, continuation)
    rows = engine.logits(own + wanted)[len(own) - 1 : -1]
    score = engine.score(PROMPT, continuation)
    assert score.token_ids == tuple(wanted)
    for row, token, got in zip(rows, wanted, score.logprobs, strict=True):
        expected, error = log_softmax(row)
        assert abs(got - expected[token]) <= error
    assert score.cumulative_logprob == math.fsum(score.logprobs)
    assert score.is_greedy == (rows.argmax(axis=-1).tolist() == wanted)


@pytest.mark.parametrize(("prompt", "continuation"), BORDERS)
def test_borders(engine, prompt, continuation):
    """Spaces at the border are the continuation's, and so is what tokens of the whole are behind as
    many as the prompt has alone."""
    own, wanted = cut(engine.tokenizer, prompt, continuation)
    assert [engine.tokenizer.piece(token) for token in wanted] == BORDERS[prompt, continuation]
    assert own == engine.encode(prompt.rstrip())
    assert engine.score(prompt, continuation) == engine.score(own, wanted)


def test_what_greedy_says_is_greedy(engine):
    """The text that the engine writes at temperature 0 is greedy, with the same log-probabilities
    to the last bit; with another last token it is not."""
    tokens = engine.encode(PROMPT)
    written = engine.generate(tokens, SamplingParams(max_tokens=9, temperature=0, logprobs=0))
    said = list(written.outputs[0].token_ids)
    score = engine.score(tokens, said)
    assert score.is_greedy
    assert score.cumulative_logprob == written.outputs[0].cumulative_logprob
    assert not engine.score(tokens, [*said[:-1], said[-1] ^ 1]).is_greedy


def test_company_order_and_chunks_change_no_bit(engine):
    """A list's scores are those of each alone, whatever the order, batch and outputs of a step."""
    alone = [engine.score(PROMPT, continuation) for continuation in CONTINUATIONS]
    assert engine.score(PROMPT, CONTINUATIONS) == alone
    assert engine.score([PROMPT] * 4, CONTINUATIONS[::-1]) == alone[::-1]
    with Engine.load("story", threads=2, batch=5, outputs=2) as other:
        assert other.score(PROMPT, CONTINUATIONS) == alone


def test_what_continuations_share_is_evaluated_once(engine):
    """Of a prompt with many continuations its own tokens are read once."""
    pairs = [parted(engine, PROMPT, continuation) for continuation in CONTINUATIONS]
    engine.reset()
    engine.score(PROMPT, CONTINUATIONS)
    most = len(pairs[0][0]) + sum(len(wanted) for _, wanted in pairs)
    assert engine.timings.prompt.tokens <= most


@pytest.mark.parametrize(
    ("prompt", "continuation", "wrong"),
    [
        ("Once", "", "the continuation has no token of its own"),
        ("a" * 5000, " b", r"the prompt has \d+ tokens, the context holds"),
        ([], [5], "as many, or one of either: 0 and 1"),
        ([5], [10**6], "token 1000000 is outside the vocabulary"),
        ("Once", [5], "both texts, or both token ids"),
        (["a", "b"], ["c", "d", "e"], "as many, or one of either: 2 and 3"),
        ("Once", [" upon", ""], "pair 1: the continuation has no token"),
    ],
)
def test_bad_pairs(engine, prompt, continuation, wrong):
    with pytest.raises(PromptError, match=wrong):
        engine.score(prompt, continuation)


def test_a_score_can_be_gone_on_from(engine):
    """What the cache holds afterwards is what a generation expects of it."""
    params = SamplingParams(max_tokens=8, temperature=0)
    expected = engine.generate(PROMPT, params).text
    engine.score(PROMPT, CONTINUATIONS)
    engine.embed([PROMPT, "The dog"])
    assert engine.generate(PROMPT, params).text == expected
