"""What a draft is, and what a drafter does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.op import Array

TEXT = -1  # the parent of tokens that follow the text itself


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of tokens that may follow a text; a chain is one too.

    - `parents[i]` is the node that `tokens[i]` follows: an earlier one, or -1 for the text's last
      token. A node sees the text, its ancestors and itself, no other branch.
    - `q` [nodes, vocab] has the distribution from which each token was drawn, after temperature,
      top-k and so on. None: the draft is deterministic, which is verified as q = 1.

    Raises ValueError where the parts contradict each other. Siblings are different tokens.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: Array | None = None

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens have {len(self.parents)} parents")
        for node, parent in enumerate(self.parents):
            if not TEXT <= parent < node:
                raise ValueError(f"node {node} has parent {parent}: want -1 or an earlier node")
        if len(set(zip(self.parents, self.tokens, strict=True))) != len(self.tokens):
            raise ValueError("a node has the same token twice behind it")
        if self.q is not None and (self.q.ndim != 2 or len(self.q) != len(self.tokens)):
            raise ValueError(f"q is {list(self.q.shape)} for {len(self.tokens)} nodes")

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Array | None = None) -> "Draft":
        """Each token follows the one before."""
        return cls(tuple(tokens), tuple(range(TEXT, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes that lead from the text to this one, which is the last of them."""
        nodes = []
        while node != TEXT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


@dataclass(frozen=True, slots=True)
class Verified:
    """What a step of the target said of a draft.

    - `tokens` go to the text: those of the draft that were accepted and the one behind them.
    - `likeliest(node)` is the target's most likely token behind a node, or behind the text's last
      token for -1. It is asked for few nodes, during `Drafter.verified` only.
    """

    tokens: tuple[int, ...]
    likeliest: Callable[[int], int]


class Drafter(Protocol):
    """Proposes what may follow a text. For each text: `begin`, then `draft` and `verified` in turn.

    A drafter never errs, it only guesses badly: whatever it proposes, the text is the target's.
    """

    def begin(self, prompt: Sequence[int]) -> None:
        """A text begins. What earlier texts taught may stay."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        """At most so many tokens, maybe none, that may follow. `text` is the prompt and all tokens
        that `verified` told since, at least one in all."""

    def verified(self, step: Verified) -> None:
        """What became of the last draft."""


class Branches:
    """A deterministic draft in the making: branches that begin alike share their nodes."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, parent: int, token: int) -> int:
        """The node of this token behind that node, or behind the text for -1."""
        return self._nodes.setdefault((parent, token), len(self._nodes))

    def draft(self) -> Draft:
        parents, tokens = zip(*self._nodes, strict=True) if self._nodes else ((), ())
        return Draft(tokens, parents)
