"""Generations with drafts that are abandoned, cancelled, saved or resumed, and drafters and models
that fail: afterwards the cache holds exactly the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.models.small_models import Tensors, tampered
from conformance.support.models.spelling import TEXT, Spelling, letters
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
from engine import Engine, Piece
from engine.cache.session import restore, save
from engine.model import Model
from engine.speculation.drafter import Draft, Verification
from reference.models.transformer import Weight
from reference.op import Array

PROMPTS = [
    letters(text) for text in ("the cat sat", "the cat ran", "a cat", "the cat sat on a mat")
]
GREEDY: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 0.9, "seed": 7, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def plain(shared):
    """The engine's own continuation of each prompt."""
    found = []
    for prompt in PROMPTS:
        shared.reset()
        found.append(pieces(shared, prompt, GREEDY))
    return found


class KnownText:
    """An oracle for each of the prompts: it uses the one whose text matches."""

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

    def verified(self, step: Verification) -> None:
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
def test_abandoning_a_generation_at_any_piece(shared, plain, turns, siblings):
    """However earlier generations ended, the next one's pieces are the plain ones, and no cells are
    left without a text."""
    shared.reset()
    waiting = []  # generators that nobody closed
    with drafting(shared, KnownText(plain, siblings)):
        for which, count, ending in turns:
            generation = shared.stream(PROMPTS[which], sampling(GREEDY))
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
        shared.drop_drafts()
        demand_settled(shared)


@trees
def test_an_abandoned_generation_cannot_continue(engine, plain, siblings):
    """The first of two generations ends with the usual error; the second is whole."""
    with drafting(engine, KnownText(plain, siblings)):
        first = engine.stream(PROMPTS[0], sampling(GREEDY))
        for _ in range(5):
            next(first)
        second = engine.stream(PROMPTS[3], sampling(GREEDY))
        found = [next(second) for _ in range(5)]
        with pytest.raises(RuntimeError, match="another has begun on the same engine"):
            next(first)
        assert unmarked([*found, *second]) == plain[3]
        demand_settled(engine)


@trees
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("count", [1, 4, 9])
def test_sessions_saved_with_a_pending_draft(engine, small, tmp_path, siblings, params, count):
    """A session saved at any piece continues in another engine, with drafts or without, like the
    uninterrupted text; so does the generation that it was saved from."""
    whole = pieces(engine, TEXT, params)
    text = engine.encode(TEXT) + ids(whole)
    rest = {**params, "max_tokens": params["max_tokens"] - count}
    path = tmp_path / "talk.session"
    with drafting(engine, Oracle(text, VOCAB, 0.2, siblings)):
        engine.reset()
        generation = engine.stream(TEXT, sampling(params))
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
def test_resuming_equals_continuing(engine, siblings):
    """A generation and its resumption equal a single one, with the same random numbers and mu."""
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


def test_closing_the_engine_under_a_generation(small):
    """A generation with a pending draft outlives its engine without harm."""
    with Engine.load(small, threads=1, context=CONTEXT, **ROOM) as engine:
        engine.speculation = None
        text = [*PROMPTS[0], *ids(pieces(engine, PROMPTS[0], GREEDY))]
        with drafting(engine, Oracle(text, VOCAB)):
            generation = engine.stream(PROMPTS[0], sampling(GREEDY))
            for _ in range(4):
                next(generation)
            engine.close()
            generation.close()


class Failing:
    """An oracle that raises in one of its methods, the third time it is called."""

    def __init__(self, method: str, text: Sequence[int], siblings: int) -> None:
        self._method, self._left = method, 3 if method != "begin" else 1
        self._oracle = Oracle(text, VOCAB, 0.2, siblings)

    def _reach(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left == 0:
                raise ZeroDivisionError(f"in {method}")

    def begin(self, prompt: Sequence[int]) -> None:
        self._reach("begin")
        self._oracle.begin(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        self._reach("draft")
        return self._oracle.draft(text, min(most, 3))

    def verified(self, step: Verification) -> None:
        self._reach("verified")
        self._oracle.verified(step)


@trees
@pytest.mark.parametrize("method", ["begin", "draft", "verified"])
def test_a_drafters_exception_is_raised(engine, plain, method, siblings):
    """It is raised after the finished pieces; the engine remains usable."""
    text = [*PROMPTS[0], *ids(plain[0])]
    found: list[Piece] = []
    with drafting(engine, Failing(method, text, siblings)):
        with pytest.raises(ZeroDivisionError, match=method):
            found.extend(engine.stream(PROMPTS[0], sampling(GREEDY)))  # extend keeps what came
        demand_settled(engine)
        assert unmarked(pieces(engine, PROMPTS[0], GREEDY)) == plain[0]
    assert pieces(engine, PROMPTS[3], GREEDY) == plain[3]


class Proposing:
    """Always the same draft, whatever is requested."""

    def __init__(self, *tokens: int, tree: bool = False) -> None:
        parents = [-1] * len(tokens) if tree else range(-1, len(tokens) - 1)
        self._draft = Draft(tokens, tuple(parents))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def draft(self, _: Sequence[int], __: int) -> Draft:
        return self._draft

    def verified(self, step: Verification) -> None:
        pass


NONSENSE = {
    "beyond the vocabulary": Proposing(5, VOCAB),
    "negative": Proposing(5, -7, 6),
    "far beyond": Proposing(2**40),
    "a tree of such": Proposing(5, VOCAB, tree=True),
    "too many tokens": Proposing(*range(3, 200)),
    "too many branches": Proposing(*range(3, 200), tree=True),
    "nothing": Proposing(),
}


@pytest.mark.parametrize("drafter", NONSENSE.values(), ids=NONSENSE.keys())
def test_invalid_drafts_are_dropped(engine, plain, drafter):
    """Invalid tokens are dropped, and too long drafts are truncated."""
    with drafting(engine, drafter):
        assert unmarked(pieces(engine, PROMPTS[0], GREEDY)) == plain[0]
        demand_settled(engine)
        found = engine.timings.speculation
        assert found.drafted <= found.steps * 16


def with_nan(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
    """The embedding of token 200 is NaN."""
    rows = weights["token_embd.weight"].data.view(np.float32).copy()
    rows[200] = np.nan
    return weights | {"token_embd.weight": Weight(rows.view(np.uint8), "F32")}, norms


@pytest.fixture(scope="module")
def nan_engine(tmp_path_factory):
    path = tampered(Spelling(), with_nan).write(tmp_path_factory.mktemp("nan") / "nan.gguf")
    with Engine.load(path, threads=1, context=CONTEXT, **ROOM) as engine:
        yield engine


@pytest.mark.parametrize("drafter", [Proposing(5, 200, 6), Proposing(5, 200, tree=True)])
def test_drafts_with_nan_logits_are_rejected(nan_engine, drafter):
    """A token whose logits are NaN stops a text that contains it; a draft may contain it."""
    nan_engine.reset()
    params = {**GREEDY, "logit_bias": {200: -np.inf}}
    plain = pieces(nan_engine, PROMPTS[0], params)
    with drafting(nan_engine, drafter):
        nan_engine.reset()
        assert unmarked(pieces(nan_engine, PROMPTS[0], params)) == plain
        demand_settled(nan_engine)


def test_a_failing_step_fails_with_drafts_too(engine, plain, monkeypatch):
    """An error of the text itself occurs with drafts as well, and no cell is lost."""
    calls = 0
    step = Model.step

    def failing(model: Model, tokens: Sequence[int], *rest: Any) -> Array:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return step(model, tokens, *rest)

    with drafting(engine, Oracle([*PROMPTS[0], *ids(plain[0])], VOCAB, 0.2, 2)):
        monkeypatch.setattr(Model, "step", failing)
        with pytest.raises(KeyboardInterrupt):
            pieces(engine, PROMPTS[0], GREEDY)
        monkeypatch.undo()
        demand_settled(engine)
        assert unmarked(pieces(engine, PROMPTS[0], GREEDY)) == plain[0]
