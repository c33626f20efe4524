"""Drafts in the target's KV cache: branches share the cells of the text and of their ancestors.

A chain is in sequence 0, after the text. In a tree each leaf has a sequence, which holds the text
and the leaf's ancestors: a node attends to the cells of its first sequence up to its own position,
which are its ancestors. No cells are copied, only lists of cells.
"""

from engine.cache.cells import Cells
from engine.speculation.drafter import TEXT, Draft


def is_chain(draft: Draft) -> bool:
    """Whether each node follows the one before."""
    return draft.parents == tuple(range(TEXT, len(draft) - 1))


def leaves(draft: Draft) -> list[int]:
    """Nodes without children."""
    return sorted(set(range(len(draft))) - set(draft.parents))


def sequences(draft: Draft) -> list[tuple[int, ...]]:
    """The sequences of the text's last token and of each node."""
    if is_chain(draft):
        return [(0,)] * (1 + len(draft))
    found: list[list[int]] = [[] for _ in range(len(draft))]
    ends = leaves(draft)
    for sequence, leaf in enumerate(ends, start=1):
        for node in draft.path(leaf):
            found[node].append(sequence)
    return [tuple(range(len(ends) + 1)), *map(tuple, found)]


def positions(draft: Draft, last: int) -> list[int]:
    """Positions of the text's last token (at `last`) and of each node."""
    found = [last]
    for parent in draft.parents:
        found.append(found[parent + 1] + 1)
    return found


def depth(draft: Draft) -> int:
    """Number of nodes in the longest branch."""
    return max(positions(draft, 0))


def fork(cells: Cells, draft: Draft) -> None:
    """Fork the text into the sequences of the leaves, before the step."""
    if not is_chain(draft):
        for sequence in range(1, 1 + len(leaves(draft))):
            cells.copy(0, sequence)


def commit(cells: Cells, draft: Draft, node: int, last: int) -> None:
    """Commit the path to `node` (-1: nothing) to the text after a step, and drop all other nodes.
    The text's last token is at position `last`."""
    if not draft:
        return
    path = draft.path(node)
    if is_chain(draft):
        cells.remove(0, begin=last + 1 + len(path))
        return
    if path:
        ends = leaves(draft)
        winner = 1 + next(i for i, leaf in enumerate(ends) if node in draft.path(leaf))
        cells.remove(0)
        cells.copy(winner, 0, end=last + 1 + len(path))
    drop_leaves(cells, draft)


def drop_leaves(cells: Cells, draft: Draft) -> None:
    """Drop the leaves' sequences."""
    if not is_chain(draft):
        for sequence in range(1, 1 + len(leaves(draft))):
            cells.remove(sequence)


def prune(draft: Draft, nodes: int, branches: int) -> tuple[Draft, dict[int, int]]:
    """Limit a draft to its first `nodes` nodes on at most `branches` branches; also returns the
    kept nodes' new indices by old ones (-1 for -1)."""
    parents: list[int] = []
    kept: dict[int, int] = {TEXT: TEXT}
    ends: set[int] = set()
    for node, parent in enumerate(draft.parents):
        if len(parents) == nodes or parent not in kept:
            continue
        extends = (parent == TEXT and not ends) or kept[parent] in ends
        if not extends and len(ends) == branches:
            continue
        ends.discard(kept[parent])
        kept[node] = len(parents)
        ends.add(kept[node])
        parents.append(kept[parent])
    chosen = [node for node in kept if node != TEXT]
    tokens = tuple(draft.tokens[node] for node in chosen)
    q = None if draft.q is None else draft.q[chosen]
    return Draft(tokens, tuple(parents), q), kept
