"""Lookahead decoding: its window, its pool, and the n-grams that the window adds to the pool."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.toy import alone, fickle, speak, verify
from engine.speculation.drafter import DraftBuilder
from engine.speculation.lookahead import LookaheadDrafter, NgramPool, Window

sizes = st.tuples(st.integers(1, 6), st.integers(2, 5))
ahead = st.lists(st.integers(1, 8), min_size=1, max_size=12)
seeds = st.integers(0, 9)


def advance(window, target, text, steps):
    """Advance the text by these numbers of tokens; returns each step's n-grams."""
    for count in steps:
        branches = DraftBuilder()
        last_row = window.add_to(text[-1], branches)
        draft = branches.build()
        argmax = verify(target, text, draft).argmax
        yield window.advance([argmax(node) for node in last_row])
        text += alone(target, text, count)[len(text) :]
        window.slide(count - 1)


@given(sizes, st.lists(st.integers(0, 99), min_size=1), seeds)
def test_attention_of_window_cells(size, prompt, seed):
    """The last cell of column j follows j tokens of the first row and the rest of its column, so
    its position is j + N - 2 tokens after the text's last."""
    W, N = size
    window, branches = Window(W, N, seed), DraftBuilder()
    window.begin(prompt)
    nodes = window.add_to(prompt[-1], branches)
    draft = branches.build()
    rows = window._rows
    assert rows[0][0] == prompt[-1]
    assert len(nodes) == W
    assert len(draft) <= window.size == W * (N - 1) - 1
    for j, node in enumerate(nodes):
        seen = [draft.tokens[i] for i in draft.path(node)]
        assert seen == rows[0][1 : j + 1] + [row[j] for row in rows[1:]]


@given(sizes, ahead, seeds)
def test_guesses_keep_their_positions(size, steps, seed):
    """However many tokens a step accepts, a guess keeps its position in the text: for a target that
    depends only on positions all are right, and so are its n-grams."""
    W, N = size
    window, text = Window(W, N, seed), [0]
    window.begin([-1])
    for ngrams in advance(window, len, text, steps):
        for token, following in ngrams:
            assert list(following) == list(range(following[0], following[0] + N - 1))
            assert token in (following[0] - 1, -1)
        for j, age in enumerate(window._ages):
            made = [row[j] for row in window._rows][N - 1 - min(age, N - 1) :]
            behind = len(text) + j + N - 2
            assert made == list(range(behind - len(made) + 1, behind + 1))


@given(sizes, ahead, seeds)
def test_ngrams_equal_the_targets(size, steps, seed):
    """If only the last token counts, every token of an n-gram but the first two must follow the one
    before it; and a full window yields an n-gram a column."""
    W, N = size
    target = fickle(1, 50, seed)
    window = Window(W, N, seed)
    window.begin(range(50))
    for step, ngrams in enumerate(advance(window, target, [1], steps)):
        for _, following in ngrams:
            assert len(following) == N - 1
            assert all(target((a,)) == b for a, b in pairwise(following))
        if all(count == 1 for count in steps):
            assert len(ngrams) == (W if step >= N - 2 else 0)


@given(st.integers(0, 3), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=40))
def test_the_pool_keeps_the_latest_ngrams(most, found):
    """Each token keeps its last few distinct n-grams, newest first."""
    pool = NgramPool(most)
    for token, following in found:
        pool.add(token, (following,))
    for token in range(3):
        tuples = [(following,) for t, following in reversed(found) if t == token]
        assert pool.continuations(token) == list(dict.fromkeys(tuples))[:most]


@given(sizes, st.integers(0, 6), seeds, st.integers(0, 40))
def test_tokens_per_step_are_bounded(size, G, seed, most):
    """They are at most (W + G)(N - 1) with the text's last one, and no more than allowed."""
    W, N = size
    drafter, target = LookaheadDrafter(W, N, G, seed), fickle(1, 9, seed)
    text = [1, 2, 3]
    drafter.begin(text)
    for _ in range(12):
        draft = drafter.draft(text, most)
        assert 1 + len(draft) <= (W + G) * (N - 1)
        assert len(draft) <= most
        step = verify(target, text, draft)
        text += step.tokens
        drafter.verified(step)


def test_ngrams_are_found_and_verified():
    """No token of the prompt is repeated, so random guesses are never right: n-grams found in the
    window after a token are proposed when the text reaches it, and accepted."""

    def ring(seen):
        return 100 + (seen[-1] + 1) % 30

    drafter = LookaheadDrafter(4, 4, 4)
    text, steps = speak(ring, drafter, [1, 2], 300, 100)
    assert text == alone(ring, [1, 2], len(text) - 2)
    assert steps <= 150


def test_without_room_for_a_window_there_are_ngrams_only():
    """Near the end of the context known n-grams are still verified, and the window pauses."""
    drafter, target = LookaheadDrafter(5, 3, 5), fickle(1, 7)
    text, _ = speak(target, drafter, [0, 1], 60, 50)
    draft = drafter.draft(text, 8)
    assert 2 <= len(draft) <= 8
    step = verify(target, text, draft)
    assert len(step.tokens) == 3
    drafter.verified(step)
    assert len(drafter.draft([*text, *step.tokens], 50)) >= 9
