"""LookAhead's trie compared with dicts from paths to counts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.toy import nobody_asks
from engine.speculation.drafter import Verification
from engine.speculation.trie import OUTPUT_WEIGHT, Trie, TrieDrafter

tokens = st.lists(st.integers(0, 3), max_size=30)
texts = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=4)


def occurrences(text: list[int], length: int) -> Counter[tuple[int, ...]]:
    """Counts of every run of 1 to length + 1 tokens."""
    runs = Counter()
    for n in range(1, length + 2):
        runs.update(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
    return runs


def counts(trie: Trie) -> dict[tuple[int, ...], tuple[int, float]]:
    return {path: (node.f_in, node.f_out) for path, node in trie.paths()}


@given(texts, st.integers(1, 4), st.data())
def test_counts_equal_the_texts(texts, length, data):
    """All outputs count, in any pieces, and the last prompt, and nothing else."""
    trie = Trie(length)
    written = Counter()
    for prompt, output in texts:
        trie.begin(prompt)
        cut = data.draw(st.integers(0, len(output)))
        trie.read(output[:cut])
        trie.read(output[cut:])
        written += occurrences(output, length)
    read = occurrences(texts[-1][0], length)
    assert counts(trie) == {path: (read[path], written[path]) for path in read | written}
    assert len(trie) == len(read | written)


@given(texts, st.integers(1, 3), st.integers(0, 3))
def test_memory_is_bounded(texts, length, room):
    """Nodes are no more than allowed; each one's count is right, and at most its parent's."""
    trie = Trie(length, 2 * (length + 1) + room)
    seen = Counter()
    for prompt, output in texts:
        trie.begin(prompt)
        for i in range(len(output)):
            trie.read(output[i : i + 1])
            assert len(trie) <= trie.capacity
        seen |= occurrences(prompt, length)
        seen += occurrences(output, length)
        found = counts(trie)
        assert len(trie) == len(found)
        for path, (f_in, f_out) in found.items():
            assert path in seen
            assert f_in or f_out
            if len(path) > 1:
                above = found[path[:-1]]
                assert f_in <= above[0]
                assert f_out <= above[1]


def test_pruning_halves_counts():
    trie = Trie(1, 12)
    for output in ([1, 2], [1, 2], [1, 2], [1, 3], [4, 5]):
        trie.begin([])
        trie.read(output)
    trie.begin([6, 7])
    assert len(trie) == 11
    trie.read([8])
    assert counts(trie) == {
        (1,): (0, 2), (2,): (0, 1.5), (1, 2): (0, 1.5),
        (6,): (1, 0), (7,): (1, 0), (6, 7): (1, 0), (8,): (0, 1),
    }  # fmt: skip


def test_long_prompts_are_stored_from_their_end():
    trie = Trie(2, 20)
    trie.begin(list(range(100)))
    assert trie.find([99]).f_in == 1
    assert trie.find([0]) is None


@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 3),
       st.integers(1, 4), st.integers(0, 40), st.integers(0, 40))  # fmt: skip
def test_drafts_are_the_most_frequent_continuations(texts, end, suffix, length, room, most):
    """Continuations of the longest suffix are first, each by score, within the limits."""
    trie = Trie(length)
    drafter = TrieDrafter(trie, suffix, room)
    for prompt, output in texts:
        drafter.begin(prompt)
        drafter.verified(Verification(tuple(output), nobody_asks))
    draft = drafter.draft(end, most)
    paths = [tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))]
    expected: set[tuple[int, ...]] = set()
    for n in range(min(suffix, len(end)), 0, -1):
        ending = tuple(end[-n:])
        known = {
            path[n:]: score(*counted)
            for path, counted in counts(trie).items()
            if path[:n] == ending and len(path) > n and path[n:] not in expected
        }
        drafted = paths[len(expected) :][: len(known)]
        assert set(drafted) <= set(known)
        assert [known[path] for path in drafted] == sorted(known.values())[::-1][: len(drafted)]
        expected |= set(known)
    assert len(paths) == min(room, most, len(expected))


def score(f_in: int, f_out: float) -> float:
    return (1 - OUTPUT_WEIGHT) * f_in + OUTPUT_WEIGHT * f_out
