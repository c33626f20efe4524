"""Lookahead's trie (arXiv 2312.12728): all prompts and outputs, as branches with frequencies of
continuations."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count

from engine.speculation.drafter import TEXT, Draft, DraftBuilder, Verification

OUTPUT_WEIGHT = 1e-4  # outputs only break ties between equally frequent branches of the prompt


class Node:
    """Frequency of the path from the root to here, in the prompt and in outputs."""

    __slots__ = ("children", "f_in", "f_out")

    def __init__(self) -> None:
        self.f_in = 0
        self.f_out = 0.0
        self.children: dict[int, Node] = {}

    @property
    def score(self) -> float:
        return (1 - OUTPUT_WEIGHT) * self.f_in + OUTPUT_WEIGHT * self.f_out


class Trie:
    """A tree for each token, with branches of `branch_length` tokens after it, in at most
    `capacity` nodes of about 200 bytes.

    Each new token extends the branches of the tokens before it and starts its own, so a child is at
    most as frequent as its parent. When the trie is full, it is pruned to half of its capacity.
    """

    def __init__(self, branch_length: int = 12, capacity: int = 2**17) -> None:
        if branch_length < 1 or capacity < 2 * (branch_length + 1):
            raise ValueError(
                f"a trie of {capacity} nodes with branches of {branch_length} tokens: want branches"
                " of 1 or more, and room for two of them with their roots"
            )
        self.branch_length, self.capacity = branch_length, capacity
        self._top = Node()
        self._size = 0
        self._ends: list[Node] = []  # the last nodes of branches that are still growing

    def __len__(self) -> int:
        """Number of nodes, roots included."""
        return self._size

    def begin(self, prompt: Sequence[int]) -> None:
        """Replace the last prompt by another."""
        self._forget_prompt(self._top)
        self._ends = []
        for token in prompt:
            for node in self._grow(token):
                node.f_in += 1
        self._ends = []

    def read(self, output: Sequence[int]) -> None:
        """Add output that follows what was read before."""
        for token in output:
            for node in self._grow(token):
                node.f_out += 1

    def find(self, tokens: Sequence[int]) -> Node | None:
        """The node at the end of this path, if it occurred."""
        node: Node | None = self._top
        for token in tokens:
            if node is None:
                break
            node = node.children.get(token)
        return node

    def paths(self) -> Iterator[tuple[tuple[int, ...], Node]]:
        """All nodes with their paths."""
        waiting: list[tuple[tuple[int, ...], Node]] = [((), self._top)]
        while waiting:
            path, node = waiting.pop()
            if path:
                yield path, node
            waiting += (((*path, token), child) for token, child in node.children.items())

    def _grow(self, token: int) -> list[Node]:
        """Extend the growing branches by a token and start one; returns their new nodes."""
        if self._size + self.branch_length + 1 > self.capacity:
            self._prune()
        nodes = [self._child(end, token) for end in (*self._ends, self._top)]
        self._ends = nodes[-self.branch_length :]  # the longest branch comes first
        return nodes

    def _child(self, node: Node, token: int) -> Node:
        if token not in node.children:
            node.children[token] = Node()
            self._size += 1
        return node.children[token]

    def _prune(self) -> None:
        """Halve output frequencies and drop what occurred once, until half of the capacity is free;
        if the prompt alone is larger, drop it."""
        self._ends = []  # some of these nodes will be gone
        while self._size > self.capacity // 2:
            if any(root.f_out for root in self._top.children.values()):
                self._halve_outputs(self._top)
            else:
                self._forget_prompt(self._top)

    def _halve_outputs(self, node: Node) -> None:
        for token, child in [*node.children.items()]:
            child.f_out = child.f_out / 2 if child.f_out > 1 else 0.0
            self._halve_outputs(child)
            self._drop_if_unused(node, token)

    def _forget_prompt(self, node: Node) -> None:
        for token, child in [*node.children.items()]:
            if child.f_in:
                child.f_in = 0
                self._forget_prompt(child)
                self._drop_if_unused(node, token)

    def _drop_if_unused(self, node: Node, token: int) -> None:
        child = node.children[token]
        if not child.f_in and not child.f_out:  # it has no children any more
            del node.children[token]
            self._size -= 1


class TrieDrafter:
    """Proposes a tree: the most frequent continuations of the text's last `suffix` tokens, then of
    one token less, down to the last token alone, in at most `decoding_length` nodes.

    Outputs are kept between texts, in a trie that drafters may share one after the other; prompts
    until the next one begins.
    """

    def __init__(
        self, trie: Trie | None = None, suffix: int = 2, decoding_length: int = 64
    ) -> None:
        if suffix < 1 or decoding_length < 0:
            raise ValueError(
                f"suffixes of {suffix} tokens and {decoding_length} nodes: want at least 1 and 0"
            )
        self.trie = Trie() if trie is None else trie
        self._suffix, self._decoding_length = suffix, decoding_length

    def begin(self, prompt: Sequence[int]) -> None:
        self.trie.begin(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        branches = DraftBuilder()
        room = min(most, self._decoding_length)
        for n in range(min(self._suffix, len(text)), 0, -1):
            if found := self.trie.find(text[-n:]):
                _add_most_frequent(found, branches, room)
        return branches.build()

    def verified(self, step: Verification) -> None:
        self.trie.read(step.tokens)


def _add_most_frequent(found: Node, branches: DraftBuilder, room: int) -> None:
    """Fill a draft with the most frequent continuations of a node, by score.

    A parent scores no less than its children, so these are the nodes that the paper's threshold
    selects and then visits depth-first.
    """
    order = count()  # ties: first seen
    waiting: list[tuple[float, int, int, Node, int]] = []

    def push(node: Node, here: int) -> None:
        for token, child in node.children.items():
            heappush(waiting, (-child.score, next(order), token, child, here))

    push(found, TEXT)
    while waiting and len(branches) < room:
        _, _, token, node, parent = heappop(waiting)
        push(node, branches.add(parent, token))
