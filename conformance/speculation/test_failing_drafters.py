"""Drafters that raise, propose what is no token, or more than was asked for; models that fail."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

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
from conformance.support.spelling import Spelling, letters
from engine import Engine, Piece
from engine.model import Model
from engine.speculation.drafter import Draft, Verified
from reference.op import Array
from reference.transformer import Weight

PROMPTS = [letters("the cat sat"), letters("the cat sat on a mat")]
GREEDY: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
trees = pytest.mark.parametrize("siblings", [0, 2], ids=["chains", "trees"])


@pytest.fixture(scope="module")
def plain(shared: Engine) -> list[list[Piece]]:
    """What the engine alone writes behind each prompt."""
    found = []
    for prompt in PROMPTS:
        shared.reset()
        found.append(pieces(shared, prompt, GREEDY))
    return found


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

    def verified(self, step: Verified) -> None:
        self._reach("verified")
        self._oracle.verified(step)


@trees
@pytest.mark.parametrize("method", ["begin", "draft", "verified"])
def test_a_drafter_that_raises(
    engine: Engine, plain: list[list[Piece]], method: str, siblings: int
) -> None:
    """Its error comes out, behind the pieces that were there; the engine is as it was left, and
    goes on with the same drafter or none."""
    text = [*PROMPTS[0], *ids(plain[0])]
    found: list[Piece] = []
    with drafting(engine, Failing(method, text, siblings)):
        with pytest.raises(ZeroDivisionError, match=method):
            found.extend(engine.generate(PROMPTS[0], sampling(GREEDY)))  # extend keeps what came
        demand_settled(engine)
        assert unmarked(pieces(engine, PROMPTS[0], GREEDY)) == plain[0]
    assert pieces(engine, PROMPTS[1], GREEDY) == plain[1]


class Proposing:
    """Always the same draft, whatever is asked for."""

    def __init__(self, *tokens: int, tree: bool = False) -> None:
        parents = [-1] * len(tokens) if tree else range(-1, len(tokens) - 1)
        self._draft = Draft(tokens, tuple(parents))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def draft(self, _: Sequence[int], __: int) -> Draft:
        return self._draft

    def verified(self, step: Verified) -> None:
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
def test_nonsense_is_no_draft(engine: Engine, plain: list[list[Piece]], drafter: Proposing) -> None:
    """What is no token cannot be in the text, and of too much the beginning is run."""
    with drafting(engine, drafter):
        assert unmarked(pieces(engine, PROMPTS[0], GREEDY)) == plain[0]
        demand_settled(engine)
        found = engine.timings.speculation
        assert found is not None
        assert found.drafted <= found.steps * 16


class Spoilt(Spelling):
    """Whose token 200 has an embedding of NaN."""

    def tensors(self) -> tuple[dict[str, Weight], dict[str, Array]]:
        weights, norms = super().tensors()
        rows = weights["token_embd.weight"].data.view(np.float32).copy()
        rows[200] = np.nan
        return weights | {"token_embd.weight": Weight(rows.view(np.uint8), "F32")}, norms


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = Spoilt().write(tmp_path_factory.mktemp("spoilt") / "spoilt.gguf")
    with Engine.load(path, threads=1, context=CONTEXT, **ROOM) as engine:
        yield engine


@pytest.mark.parametrize("drafter", [Proposing(5, 200, 6), Proposing(5, 200, tree=True)])
def test_a_draft_that_gives_no_numbers_is_none(spoilt: Engine, drafter: Proposing) -> None:
    """A token whose logits are NaN stops the text that has it; a draft may name it."""
    spoilt.reset()
    params = {**GREEDY, "logit_bias": {200: -np.inf}}
    plain = pieces(spoilt, PROMPTS[0], params)
    with drafting(spoilt, drafter):
        spoilt.reset()
        assert unmarked(pieces(spoilt, PROMPTS[0], params)) == plain
        demand_settled(spoilt)


def test_a_step_that_fails_without_a_draft_too(
    engine: Engine, plain: list[list[Piece]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stops the text itself stops it with drafts as well, and no cell is lost."""
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
