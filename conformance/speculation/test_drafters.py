"""Laws of all drafters without a model."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.toy import Target, alone, fickle, speak, verify
from engine.config import ModelError
from engine.speculation.drafter import Draft, DraftBuilder, Drafter
from engine.speculation.lookahead import LookaheadDrafter
from engine.speculation.prompt_lookup import PromptLookupDrafter
from engine.speculation.settings import Lookahead, LookaheadTrie, PromptLookup
from engine.speculation.trie import Trie, TrieDrafter

DRAFTERS = (PromptLookupDrafter, TrieDrafter, LookaheadDrafter)
every_drafter = pytest.mark.parametrize("make", DRAFTERS, ids=lambda make: make.__name__)
prompts = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@every_drafter
@given(prompts, st.integers(1, 3), st.integers(0, 99), st.integers(0, 80))
def test_any_draft_keeps_the_targets_text(make, prompt, context, seed, most):
    """For any drafts of any length, the text is the target's own."""
    target = fickle(context, 5, seed)
    text, steps = speak(target, make(), prompt, 30, most)
    assert text == alone(target, prompt, len(text) - len(prompt))
    assert steps <= 30


def threes(seen: tuple[int, ...]) -> int:
    return 3


@pytest.mark.parametrize(
    ("make", "a_step"), [(PromptLookupDrafter, 81), (TrieDrafter, 13), (LookaheadDrafter, 18)]
)
def test_constant_texts_are_drafted_at_full_length(make, a_step):
    """For a constant text every draft is right, and as long as possible: 80 tokens by lookup, a
    branch of 12 of the trie, all 14 + 3 before the last cell of a window."""
    text, steps = speak(threes, make(), [3] * 20, 10 * a_step, 80)
    assert (len(text), steps) == (20 + 10 * a_step, 10)


@pytest.mark.parametrize("make", [PromptLookupDrafter, LookaheadDrafter])
@given(prompts, prompts)
def test_drafts_depend_on_their_text_alone(make, one, other):
    """Drafts depend on this text alone, so seeded sampling is reproducible."""
    target = fickle(2, 5)
    used: Drafter = make()
    speak(target, used, one, 20, 80)
    assert drafts(used, target, other) == drafts(make(), target, other)


def drafts(drafter: Drafter, target: Target, prompt: list[int]) -> list[Draft]:
    text, drafted = list(prompt), []
    drafter.begin(prompt)
    for _ in range(5):
        drafted.append(drafter.draft(text, 80))
        step = verify(target, text, drafted[-1])
        text += step.tokens
        drafter.verified(step)
    return drafted


@given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=8))
def test_common_prefixes_share_nodes(paths):
    """A tree of paths has one node for each distinct prefix, and contains every path."""
    branches = DraftBuilder()
    ends = []
    for path in paths:
        node = -1
        for token in path:
            node = branches.add(node, token)
        ends.append(node)
    draft = branches.build()
    beginnings = {tuple(path[: i + 1]) for path in paths for i in range(len(path))}
    assert len(draft) == len(branches) == len(beginnings)
    for path, end in zip(paths, ends, strict=True):
        assert [draft.tokens[node] for node in draft.path(end)] == path


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((1, 2), (-1,), "2 tokens have 1 parents"),
        ((1, 2), (-1, 1), "node 1 has parent 1: want -1 or an earlier node"),
        ((1, 2), (-1, -2), "node 1 has parent -2"),
        ((1, 2, 1), (-1, 0, -1), "children with the same token"),
    ],
)
def test_invalid_trees_are_refused(tokens, parents, message):
    with pytest.raises(ValueError, match=message):
        Draft(tokens, parents)


@pytest.mark.parametrize(
    ("make", "sizes", "words"),
    [
        (PromptLookupDrafter, (0, 2), "want 1 <= least <= longest"),
        (PromptLookupDrafter, (3, 2), "want 1 <= least <= longest"),
        (LookaheadDrafter, (0, 5, 3), "want"),
        (LookaheadDrafter, (3, 1, 3), "want"),
        (LookaheadDrafter, (3, 3, -1), "want"),
        (Trie, (0, 100), "room for two"),
        (Trie, (5, 11), "room for two"),
        (partial(PromptLookup, prompt_lookup_min=0), (), "prompt_lookup_min"),
        (partial(PromptLookup, prompt_lookup_min=5, prompt_lookup_max=4), (), "prompt_lookup_max"),
        (partial(LookaheadTrie, branch_length=0), (), "branch_length"),
        (partial(Lookahead, W=0), (), "W"),
        (partial(Lookahead, N=1), (), "N"),
        (partial(Lookahead, G=-1), (), "G"),
    ],
)
def test_invalid_sizes_are_refused(make, sizes, words):
    """The constructor's error names the size."""
    with pytest.raises((ValueError, ModelError), match=words):
        make(*sizes)
