"""Prompt lookup compared with a plain scan of the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.toy import nobody_asks
from engine.speculation.drafter import Draft, Verification
from engine.speculation.prompt_lookup import PromptLookupDrafter

tokens = st.lists(st.integers(0, 3), max_size=40)
lengths = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda n: (n[0], n[0] + n[1]))


def scan(text: list[int], least: int, longest: int) -> int | None:
    """The position after the latest earlier occurrence of the longest suffix."""
    for n in range(longest, least - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[len(text) - n :]:
                return start + n
    return None


def verification_of(step: list[int]) -> Verification:
    return Verification(tuple(step), nobody_asks)


@given(tokens, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=6), lengths,
       st.integers(0, 12))  # fmt: skip
def test_lookup_equals_a_scan(prompt, steps, lengths, most):
    """At every moment the draft is the continuation of the latest occurrence of the longest suffix,
    extended periodically into text and draft."""
    drafter = PromptLookupDrafter(*lengths)
    drafter.begin(prompt)
    text = list(prompt)
    for step in [[], *steps]:
        text += step
        drafter.verified(verification_of(step))
        start = scan(text, *lengths)
        draft = drafter.draft(text, most)
        if start is None:
            assert draft == Draft()
            continue
        together = [*text, *draft.tokens]
        assert len(draft) == most
        assert together[len(text) :] == together[start : start + most]


def test_memory_is_one_entry_per_ngram():
    """There is one entry for each n-gram with a continuation."""
    drafter = PromptLookupDrafter(1, 3)
    drafter.begin([0, 1, 2] * 5000)
    assert len(drafter._follows) == 3 * 3
    drafter.begin(list(range(1000)))
    assert len(drafter._follows) == 999 + 998 + 997


def test_an_unknown_text_is_refused():
    """Entries would belong to another text."""
    drafter = PromptLookupDrafter()
    drafter.begin([1, 2, 1])
    with pytest.raises(ValueError, match="the text has 2 tokens, 3 were passed"):
        drafter.draft([1, 2], 4)
