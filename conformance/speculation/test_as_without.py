"""With any drafts a generation is unchanged: tokens, texts, log-probabilities bit for bit, finish
reason, and the cache afterwards. The drafter is an oracle with a given error rate, so that drafts
are accepted whole, in part, and not at all."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.support.models.spelling import EOS, LETTERS, TEXT, letters, saying, spelled
from conformance.support.speculation.oracle import Oracle
from conformance.support.speculation.speculating import (
    VOCAB,
    demand_settled,
    drafting,
    ids,
    pieces,
    unmarked,
)
from engine import Engine
from reference.op import Array


def halved(_: list[int], logits: Array) -> Array:
    return logits * np.float32(0.5)


SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 7}
ENDING = [*letters("the cat"), EOS, *letters(" ran away")]
STOPPED = letters("it sat on the mat and sang")
# Parameters; `says` are tokens that a processor makes of the text, `how` goes to generate.
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 24},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "as many as a draft and one": {"max_tokens": 18},
    "as many as a draft": {"max_tokens": 17},
    "seeded": {**SEEDED, "max_tokens": 24},
    "penalties": {**SEEDED, "max_tokens": 24, "repetition_penalty": 1.3, "frequency_penalty": 0.5,
                  "presence_penalty": 0.2, "top_k": 40, "min_p": 0.01},
    "penalties on the last 8": {**SEEDED, "max_tokens": 24, "repetition_penalty": 1.5,
                                "penalty_last_n": 8},
    "dry": {"max_tokens": 24, "dry_multiplier": 2.0, "dry_sequence_breakers": [5]},
    "xtc": {**SEEDED, "max_tokens": 24, "xtc_probability": 0.5, "xtc_threshold": 0.001},
    "dynamic temperature": {**SEEDED, "max_tokens": 24, "dynatemp_range": 0.5, "top_p": 0.9,
                            "typical_p": 0.9},
    "mirostat 1": {"temperature": 1.0, "seed": 3, "mirostat": 1, "max_tokens": 24},
    "mirostat 2": {"temperature": 1.0, "seed": 3, "mirostat": 2, "mirostat_tau": 3.0,
                   "max_tokens": 24},
    "logprobs": {**SEEDED, "max_tokens": 24, "logprobs": 5},
    "prompt logprobs": {"max_tokens": 24, "prompt_logprobs": 1, "logprobs": 1},
    "a processor": {"max_tokens": 24, "logits_processors": [halved]},
    "bad words": {"max_tokens": 24, "bad_words": ["a", [LETTERS + 1, LETTERS + 2], "the"]},
    "biases": {**SEEDED, "max_tokens": 24, "logit_bias": {200: -np.inf, 280: 3.0, EOS: 2.0}},
    "allowed": {**SEEDED, "max_tokens": 24, "allowed_token_ids": letters("abcd")},
    "end of text": {"says": ENDING},
    "end of text shown": {"says": ENDING, "include_stop_str_in_output": True},
    "end of text ignored": {"says": ENDING, "ignore_eos": True, "max_tokens": 12},
    "end of text likely": {"max_tokens": 40, "logit_bias": {EOS: 2.5}, "temperature": 1.0,
                           "seed": 4, "min_tokens": 9},
    "a stop token": {"says": STOPPED, "stop_token_ids": letters("m")},
    "a stop string": {"says": STOPPED, "stop": ["the m", "nowhere"]},
    "a stop string shown": {"says": STOPPED, "stop": "on the", "include_stop_str_in_output": True},
    "nearly a stop string": {"says": STOPPED, "stop": "sang.", "max_tokens": len(STOPPED)},
    "bytes": {"says": spelled("één ☂ naïve".encode()), "max_tokens": 15},
    "no text": {**SEEDED, "max_tokens": 24, "detokenize": False},
    "to the context's end": {"max_tokens": None, "ignore_eos": True},
    "a shifted context": {"max_tokens": 150, "ignore_eos": True, "how": {"context_shift": True}},
    "a shift that keeps": {**SEEDED, "max_tokens": 150, "ignore_eos": True, "logprobs": 1,
                           "how": {"context_shift": True, "keep": 5}},
}  # fmt: skip
GUESSES: dict[str, dict[str, Any]] = {
    "right": {},
    "partly right": {"errors": 0.3},
    "wrong": {"errors": 1.0},
    "a tree": {"errors": 0.2, "siblings": 2},
}


def whole(engine: Engine, params: dict[str, Any]) -> list[Any]:
    """All pieces of a case; stateful processors are made anew."""
    given = dict(params)
    how = given.pop("how", {})
    if says := given.pop("says", None):
        given = {"max_tokens": len(says), "logits_processors": saying(says), **given}
    return pieces(engine, TEXT, given, **how)


@pytest.mark.parametrize("guesses", GUESSES.values(), ids=GUESSES.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_drafts_change_no_piece(engine, case, guesses):
    """Every parameter has its effect as without drafts, twice, and the cache ends up the same."""
    plain = whole(engine, case)
    left = engine.text.held, engine.text.drawn, engine.sampler_state
    demand_settled(engine)
    text = engine.encode(TEXT) + case.get("says", ids(plain))
    oracle = Oracle(text, VOCAB, **guesses)
    with drafting(engine, oracle):
        for _ in range(2):
            engine.reset()
            drafted = whole(engine, case)
            assert unmarked(drafted) == plain
            assert (engine.text.held, engine.text.drawn, engine.sampler_state) == left
            demand_settled(engine)
            assert_counts(engine, drafted)
    if not guesses and len(plain) > 2:
        assert any(piece.drafted for piece in drafted)
    if guesses == GUESSES["wrong"]:
        assert not any(piece.drafted for piece in drafted)


def assert_counts(engine: Engine, drafted: list[Any]) -> None:
    """Assert that timings count what the pieces report."""
    found = engine.timings.speculation
    drawn = drafted if drafted[-1].logprob or len(drafted) == 1 else drafted[:-1]
    assert found.accepted == sum(piece.drafted for piece in drafted)
    assert found.tokens == engine.timings.eval.tokens == len(drawn) - 1
    assert sum(found.accepted_at) == found.accepted <= found.drafted
    assert sum(found.drafted_at) <= found.drafted
    assert found.accepted <= found.tokens <= found.accepted + found.steps
    pairs = zip(found.accepted_at, found.drafted_at, strict=True)
    assert all(accepted <= steps <= found.steps for accepted, steps in pairs)
    assert found.tokens_per_step == (found.tokens / found.steps if found.steps else 0)


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_accepted_drafts_save_steps(engine, most):
    """Right drafts of n tokens give n + 1 a step; the last one drafts no more than needed."""
    count = 50
    plain = pieces(engine, [1], {"max_tokens": count, "ignore_eos": True})
    with drafting(engine, Oracle([1, *ids(plain)], VOCAB), most):
        engine.reset()
        drafted = pieces(engine, [1], {"max_tokens": count, "ignore_eos": True})
    found = engine.timings.speculation
    full, rest = divmod(count - 1, most + 1)
    assert found.steps == full + (rest > 0)
    assert found.drafted == found.accepted == count - 1 - found.steps
    assert found.drafted_at == [full + (rest > i + 1) for i in range(most)]
    assert [piece.drafted for piece in drafted[1:]] == [
        (i + 1) % (most + 1) > 0 and i + 2 < count for i in range(count - 1)
    ]


def test_acceptance_at_a_known_error_rate(engine):
    """With an error rate of 0.4 a draft's token is accepted, if all before it were, six times in
    ten: within five standard deviations, over some hundreds of drafts."""
    count, rate = 55, 0.4
    plain = pieces(engine, [1], {"max_tokens": count, "ignore_eos": True})
    accepted = tried = 0
    with drafting(engine, Oracle([1, *ids(plain)], VOCAB, errors=rate), 4):
        for _ in range(12):
            engine.reset()
            pieces(engine, [1], {"max_tokens": count, "ignore_eos": True})
            found = engine.timings.speculation
            accepted += found.accepted
            tried += found.drafted_at[0] + sum(
                min(a, d) for a, d in zip(found.accepted_at, found.drafted_at[1:], strict=False)
            )
    deviation = (rate * (1 - rate) / tried) ** 0.5
    assert tried > 500
    assert abs(accepted / tried - (1 - rate)) < 5 * deviation


def test_several_completions_run_without_drafts(engine):
    """n = 2 is two plain completions."""
    params = {**SEEDED, "n": 2, "max_tokens": 9}
    plain = pieces(engine, TEXT, params)
    with drafting(engine, Oracle([], VOCAB)):
        engine.reset()
        assert pieces(engine, TEXT, params) == plain
    assert engine.timings.speculation is None


def test_plain_generation_runs_no_speculation_code(engine):
    """A plain generation calls nothing in engine/speculation."""
    called: set[str] = set()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code.co_filename)

    def runs(generation: Callable[[], Any]) -> bool:
        called.clear()
        sys.setprofile(note)
        try:
            generation()
        finally:
            sys.setprofile(None)
        return any(Path(name).parts[-3:-1] == ("engine", "speculation") for name in called)

    assert not runs(lambda: pieces(engine, TEXT, {"max_tokens": 5}))
    with drafting(engine, Oracle([], VOCAB)):
        assert runs(lambda: pieces(engine, TEXT, {"max_tokens": 5}))
