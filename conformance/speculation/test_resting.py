"""Drafts that do not pay rest, and the drafter is told all of the text afterwards."""

import time
from collections.abc import Sequence
from typing import Any

from conformance.support.speculation.speculating import (
    CONTEXT,
    VOCAB,
    drafting,
    ids,
    pieces,
    unmarked,
)
from conformance.support.spelling import letters
from engine import Engine
from engine.speculation.drafter import Draft, Verified

PROMPT = letters("the cat sat")
GREEDY: dict[str, Any] = {"max_tokens": CONTEXT - len(PROMPT) - 1, "ignore_eos": True}


class Useless:
    """Proposes what never follows, knowing the text, and takes its time."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self.told, self.asked_at = text, list[int](), list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.told = list(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        assert list(text) == self.told
        self.asked_at.append(len(text))
        time.sleep(0.02)
        right = self._text[len(text)] if len(text) < len(self._text) else 0
        return Draft.chain([(right + 1) % VOCAB] * most)

    def verified(self, step: Verified) -> None:
        assert 0 <= step.likeliest(-1) < VOCAB
        self.told += step.tokens


def test_useless_drafts_rest(engine: Engine) -> None:
    """The text is the plain one; after twenty tokens few are drafted for; and whenever the drafter
    is asked it was told every token before, those too for which it rested."""
    plain = pieces(engine, PROMPT, GREEDY)
    text = [*PROMPT, *ids(plain)]
    engine.reset()
    drafter = Useless(text)
    with drafting(engine, drafter, adaptive=True):
        found = pieces(engine, PROMPT, GREEDY)
    assert unmarked(found) == unmarked(plain)
    assert drafter.asked_at
    later = [at for at in drafter.asked_at if at > len(PROMPT) + 20]
    assert len(later) <= 2
    assert drafter.told == text[: len(drafter.told)]
