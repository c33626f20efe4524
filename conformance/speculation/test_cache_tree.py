"""A draft's cells: what each token sees during the step, and what remains afterwards."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.cells import Cells
from engine.speculation import cache_tree
from engine.speculation.drafter import TEXT, Draft


@st.composite
def drafts(draw: Any) -> Draft:
    """Trees of up to 12 nodes with distinct tokens; sometimes a chain."""
    count = draw(st.integers(0, 12))
    chain = draw(st.integers(0, 3)) == 0
    parents = [i - 1 if chain else draw(st.integers(TEXT, i - 1)) for i in range(count)]
    return Draft(tuple(range(100, 100 + count)), tuple(parents))


def stepped(draft: Draft, before: int, free: int = 0) -> tuple[Cells, list[list[int]]]:
    """Cells with a text of this many tokens, its last one and a draft just placed; and the cells
    that each of these sees."""
    ends = len(cache_tree.leaves(draft))
    cells = Cells(before + 1 + len(draft) + free, 1 + ends)
    # cells are not in order where earlier tokens came and went
    cells.place(range(before // 2), [(0,)] * (before // 2))
    cells.remove(0, begin=before // 4)
    cells.place(range(before // 4, before), [(0,)] * (before - before // 4))
    cache_tree.fork(cells, draft)
    positions = cache_tree.positions(draft, before)
    owners = cache_tree.sequences(draft)
    cells.place(positions, owners)
    spans = cells.spans(positions, owners)
    return cells, [cells.lists[sequence, a:b].tolist() for sequence, a, b in spans]


@given(drafts(), st.integers(0, 9))
def test_a_node_sees_the_text_and_its_ancestors(draft, before):
    """It sees each once, and itself, by position; no other branch."""
    cells, seen = stepped(draft, before)
    text = cells.list_of(0)[: before + 1].tolist()
    own = [seen[1 + node][-1] for node in range(len(draft))]
    assert seen[0] == text
    assert len({*text, *own}) == before + 1 + len(draft)
    for node in range(len(draft)):
        assert seen[1 + node] == text + [own[ancestor] for ancestor in draft.path(node)]
        assert cells.positions[seen[1 + node]].tolist() == list(range(len(seen[1 + node])))


@given(drafts(), st.integers(0, 9), st.data())
def test_the_accepted_path_is_kept(draft, before, data):
    """Sequence 0 continues with the path's cells, in order; all others are free again."""
    node = data.draw(st.integers(TEXT, len(draft) - 1))
    cells, seen = stepped(draft, before)
    cache_tree.commit(cells, draft, node, before)
    assert cells.list_of(0).tolist() == seen[1 + node]
    assert cells.positions_of(0).tolist() == list(range(before + 1 + len(draft.path(node))))
    assert not any(cells.lengths[1:])
    assert cells.free == cells.capacity - cells.lengths[0]
    assert (cells.positions >= 0).sum() == cells.lengths[0]
    # what is free can be used: once, and no cell of the text with it
    more = cells.place(range(cells.lengths[0], cells.capacity), [(0,)] * cells.free)
    assert not set(more.tolist()) & set(seen[1 + node])
    assert np.unique(cells.list_of(0)).size == cells.capacity


@given(drafts(), st.integers(1, 9))
def test_a_failed_step_restores_the_cells(draft, before):
    """After entering, rolling back and leaving, the cells are as before."""
    cells, _ = stepped(draft, before)
    text = cells.list_of(0)[:before].tolist()
    cells.unplace(cache_tree.positions(draft, before), cache_tree.sequences(draft))
    cache_tree.drop_leaves(cells, draft)
    assert cells.list_of(0).tolist() == text
    assert not any(cells.lengths[1:])
    assert cells.free == cells.capacity - before


@given(drafts(), st.integers(0, 14), st.integers(1, 4))
def test_pruning_keeps_the_first_nodes_that_fit(draft, nodes, branches):
    """In order, a node is kept if its parent is, within the limits of nodes and leaves."""
    kept: list[int] = []
    for node, parent in enumerate(draft.parents):
        tried = {*kept, node}
        ends = tried - {draft.parents[n] for n in tried}
        if parent in {TEXT, *kept} and len(tried) <= nodes and len(ends) <= branches:
            kept.append(node)
    found, which = cache_tree.prune(draft, nodes, branches)
    assert which == {TEXT: TEXT} | {node: i for i, node in enumerate(kept)}
    assert found.tokens == tuple(draft.tokens[node] for node in kept)
    assert [which[draft.parents[node]] for node in kept] == list(found.parents)
    assert len(found) <= nodes
    assert len(cache_tree.leaves(found)) <= branches


@given(drafts(), st.integers(0, 14), st.integers(1, 4))
def test_pruning_keeps_distributions(draft, nodes, branches):
    """Each node keeps its row of q; a draft that fits is unchanged."""
    q = np.arange(len(draft) * 3.0).reshape(len(draft), 3)
    whole = Draft(draft.tokens, draft.parents, q)
    found, which = cache_tree.prune(whole, nodes, branches)
    assert found.q.tolist() == [q[node].tolist() for node in which if node != TEXT]
    same, _ = cache_tree.prune(whole, len(draft), max(1, len(draft)))
    assert (same.tokens, same.parents) == (draft.tokens, draft.parents)
