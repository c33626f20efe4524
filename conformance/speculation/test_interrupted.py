"""Generations with drafts that are left, cancelled, saved or resumed: what goes on afterwards finds
the cache as the text has it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.oracle import Oracle
from conformance.support.speculation.speculating import (
    CONTEXT,
    ROOM,
    VOCAB,
    demand_settled,
    drafting,
    ids,
    pieces,
    sampling,
    unmarked,
)
from conformance.support.spelling import TEXT, letters
from engine import Engine, Piece
from engine.session import restore, save
from engine.speculation.drafter import Draft, Verified

PROMPTS = [
    letters(text) for text in ("the cat sat", "the cat ran", "a cat", "the cat sat on a mat")
]
GREEDY: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 0.9, "seed": 7, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def plain(shared: Engine) -> list[list[Piece]]:
    """What the engine alone writes behind each prompt."""
    found = []
    for prompt in PROMPTS:
        shared.reset()
        found.append(pieces(shared, prompt, GREEDY))
    return found


class Foretelling:
    """An oracle for each of the prompts: the one whose text it is."""

    def __init__(
        self, plain: Sequence[Sequence[Piece]], siblings: int, errors: float = 0.2
    ) -> None:
        self._oracles = [
            Oracle([*prompt, *ids(found)], VOCAB, errors, siblings)
            for prompt, found in zip(PROMPTS, plain, strict=True)
        ]

    def begin(self, prompt: Sequence[int]) -> None:
        found = [o for o in self._oracles if list(o.text[: len(prompt)]) == list(prompt)]
        (self._now,) = found
        self._now.begin(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        return self._now.draft(text, most)

    def verified(self, step: Verified) -> None:
        self._now.verified(step)


trees = pytest.mark.parametrize("siblings", [0, 2], ids=["chains", "trees"])

# How a generation ends before its text does, after so many of its pieces.
ENDINGS = ("closed", "cancelled", "abandoned", "reset", "read")


@given(
    turns=st.lists(
        st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(1, 22), st.sampled_from(ENDINGS)),
        min_size=2,
        max_size=6,
    ),
    siblings=st.sampled_from([0, 2]),
)
def test_generations_left_at_any_piece(
    shared: Engine,
    plain: list[list[Piece]],
    turns: list[tuple[int, int, str]],
    siblings: int,
) -> None:
    """However earlier generations ended, the next one's pieces are the plain ones, and nobody finds
    cells that no text holds."""
    shared.reset()
    waiting = []  # generators that nobody closed
    with drafting(shared, Foretelling(plain, siblings)):
        for which, count, ending in turns:
            generation = shared.generate(PROMPTS[which], sampling(GREEDY))
            found = [piece for _, piece in zip(range(count), generation, strict=False)]
            assert unmarked(found) == plain[which][:count]
            match ending:
                case "closed":
                    generation.close()
                case "cancelled":
                    shared.cancel()
                    rest = list(generation)
                    assert [piece.finish_reason for piece in rest] == ["cancelled"] * len(rest)
                    assert len(rest) == (count < len(plain[which]))
                case "abandoned":
                    waiting.append(generation)
                    continue
                case "reset":
                    shared.reset()
                    waiting.append(generation)
                case "read":
                    shared.logits(PROMPTS[which])
                    generation.close()
            demand_settled(shared)
        shared.settle()
        demand_settled(shared)


@trees
def test_an_abandoned_generation_may_not_go_on(
    engine: Engine, plain: list[list[Piece]], siblings: int
) -> None:
    """Two generations begun on one engine: the first one ends with the error that it always had,
    and takes nothing from the second."""
    with drafting(engine, Foretelling(plain, siblings)):
        first = engine.generate(PROMPTS[0], sampling(GREEDY))
        for _ in range(5):
            next(first)
        second = engine.generate(PROMPTS[3], sampling(GREEDY))
        found = [next(second) for _ in range(5)]
        with pytest.raises(RuntimeError, match="another has begun on the same engine"):
            next(first)
        assert unmarked([*found, *second]) == plain[3]
        demand_settled(engine)


@trees
@pytest.mark.parametrize("taken", [4, 9])
def test_a_text_goes_on_from_an_abandoned_one(
    engine: Engine, plain: list[list[Piece]], siblings: int, taken: int
) -> None:
    """A prompt that has what an abandoned generation wrote shares its cells, those among them that
    came from a draft; what it had drafted beyond is gone."""
    text = [*PROMPTS[0], *ids(plain[0])]
    with drafting(engine, Oracle(text, VOCAB, 0.0, siblings)):
        first = engine.generate(PROMPTS[0], sampling(GREEDY))
        drafted = [next(first).drafted for _ in range(taken)]
        assert any(drafted[:-1])
        params = {**GREEDY, "max_tokens": len(plain[0]) - taken}
        more = pieces(engine, text[: len(PROMPTS[0]) + taken], params)
        assert engine.timings.prompt.tokens == 1
        assert ids(more) == ids(plain[0][taken:])
        assert [piece.logprob for piece in more] == [piece.logprob for piece in plain[0][taken:]]
        demand_settled(engine)
        first.close()
        demand_settled(engine)


@trees
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_session_saved_while_a_draft_waits(
    engine: Engine, small: Path, tmp_path: Path, siblings: int, params: dict[str, Any], count: int
) -> None:
    """A session saved at any piece goes on in another engine, with drafts or without, as the text
    does that was never interrupted; so does the generation that it was saved from."""
    whole = pieces(engine, TEXT, params)
    text = engine.encode(TEXT) + ids(whole)
    rest = {**params, "max_tokens": params["max_tokens"] - count}
    path = tmp_path / "talk.session"
    with drafting(engine, Oracle(text, VOCAB, 0.2, siblings)):
        engine.reset()
        generation = engine.generate(TEXT, sampling(params))
        begun = [next(generation) for _ in range(count)]
        save(engine, path)
        demand_settled(engine)
        assert unmarked([*begun, *generation]) == whole
    with Engine.load(small, threads=1, context=50, **ROOM) as other:
        for drafter in (None, Oracle(text, VOCAB, 0.1, siblings)):
            tokens = restore(other, path)
            if drafter is None:
                found = pieces(other, tokens, rest, resume=True)
            else:
                with drafting(other, drafter):
                    found = pieces(other, tokens, rest, resume=True)
            assert ids(found) == ids(whole[count:])
            assert [p.logprob for p in found] == [p.logprob for p in whole[count:]]


@trees
def test_resuming_is_going_on(engine: Engine, siblings: int) -> None:
    """Two generations, the second of which resumes, are one, with its randomness and mu too."""
    for params in (SEEDED, {**GREEDY, "temperature": 1.0, "seed": 2, "mirostat": 2}):
        engine.reset()
        whole = pieces(engine, TEXT, params)
        text = engine.encode(TEXT) + ids(whole)
        with drafting(engine, Oracle(text, VOCAB, 0.2, siblings)):
            engine.reset()
            first = pieces(engine, TEXT, {**params, "max_tokens": 7})
            more = {**params, "max_tokens": params["max_tokens"] - 7}
            second = pieces(engine, engine.encode(TEXT) + ids(first), more, resume=True)
        assert ids([*first, *second]) == ids(whole)
        demand_settled(engine)


def test_closing_the_engine_under_a_generation(small: Path) -> None:
    """A generation that waits with a draft outlives its engine without harm."""
    with Engine.load(small, threads=1, context=CONTEXT, **ROOM) as engine:
        engine.speculation = None
        text = [*PROMPTS[0], *ids(pieces(engine, PROMPTS[0], GREEDY))]
        with drafting(engine, Oracle(text, VOCAB)):
            generation = engine.generate(PROMPTS[0], sampling(GREEDY))
            for _ in range(4):
                next(generation)
            engine.close()
            generation.close()
