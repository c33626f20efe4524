"""Drafts, and the interface of drafters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.op import Array

TEXT = -1  # the parent of tokens that follow the text itself


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of tokens that may follow a text; a chain is one too.

    - `parents[i]` is the node that `tokens[i]` follows: an earlier one, or -1 for the text's last
      token. A node attends to the text, its ancestors and itself, not to other branches.
    - `q` [nodes, vocab] are the distributions from which the tokens were sampled (after
      temperature, top-k etc.). None: the draft is deterministic, which is verified as q = 1.

    Raises ValueError if the parts are inconsistent. Siblings are different tokens.
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
            raise ValueError("a node has two children with the same token")
        if self.q is not None and (self.q.ndim != 2 or len(self.q) != len(self.tokens)):
            raise ValueError(f"q is {list(self.q.shape)} for {len(self.tokens)} nodes")

    @classmethod
    def chain(cls, tokens: Sequence[int], q: Array | None = None) -> "Draft":
        """A chain of tokens."""
        return cls(tuple(tokens), tuple(range(TEXT, len(tokens) - 1)), q)

    def __len__(self) -> int:
        return len(self.tokens)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the text to this one, inclusive."""
        nodes = []
        while node != TEXT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a draft.

    - `tokens` are appended to the text: the accepted ones and one more.
    - `argmax(node)` is the target's argmax after a node, or after the text's last token for -1;
      to be called sparingly, and only during `Drafter.verified`.
    """

    tokens: tuple[int, ...]
    argmax: Callable[[int], int]


class Drafter(Protocol):
    """Proposes continuations. For each text: `begin`, then `draft` and `verified` alternately.

    A drafter cannot make the text wrong, only slow: whatever it proposes, the text is the target's.
    """

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text. Knowledge of earlier texts may be kept."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        """Propose at most `most` tokens, possibly none. `text` is the prompt and all tokens passed
        to `verified` since, at least one in all."""

    def verified(self, step: Verification) -> None:
        """Receive the result of the last draft."""


class DraftBuilder:
    """Builds a deterministic draft; branches with common prefixes share nodes."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, parent: int, token: int) -> int:
        """The node of this token after `parent` (-1: after the text), added if it is new."""
        return self._nodes.setdefault((parent, token), len(self._nodes))

    def build(self) -> Draft:
        parents, tokens = zip(*self._nodes, strict=True) if self._nodes else ((), ())
        return Draft(tokens, parents)
