"""Whole drafts verified by the engine's rule for one place, and siblings drawn for it."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from conformance.support.speculation.exactness import KERNELS
from engine.speculation.drafter import TEXT, Draft
from engine.speculation.verification import Verifier, children
from reference.op import Array


@dataclass(frozen=True, slots=True)
class Outcome:
    """The accepted nodes, from the text on, and the token behind the last of them: recovered where
    a draft was rejected, else the bonus of a draft that was accepted to its end."""

    nodes: tuple[int, ...]
    token: int


@cache
def verifier(vocab: int) -> Verifier:
    return Verifier(vocab)


def verify(draft: Draft, p: Array, random: np.random.Generator) -> Outcome:
    """How far the target goes along a draft.

    p float64 [nodes + 1, vocab]: what the target draws from behind the text, then behind each
    node. Where p is certain of one token, as a greedy target is, so is the outcome.
    """
    vocab = p.shape[-1]
    assert len(p) == len(draft) + 1
    nodes: list[int] = []
    at = TEXT
    while True:
        behind = children(draft, at)
        drafted = [draft.tokens[node] for node in behind]
        if draft.q is None:  # which is a token of the target's alone
            token = verifier(vocab).choose(p[1 + at], [], np.empty((0, vocab)), random)
        else:
            token = verifier(vocab).choose(p[1 + at], drafted, draft.q[behind], random)
        if token not in drafted:
            return Outcome(tuple(nodes), token)
        at = behind[drafted.index(token)]
        nodes.append(at)


def siblings(q: Array, count: int, random: np.random.Generator) -> tuple[list[int], Array]:
    """At most so many different tokens drawn from q float64 [vocab] in turn, and what each was
    drawn from, float64 [drawn, vocab]; fewer if q has no more."""
    tokens: list[int] = []
    rows: list[Array] = []
    left = q[np.newaxis]
    while len(tokens) < count and left.any():
        tokens.append(int(KERNELS["pick"](p=left, u=np.array([random.random()]))[0]))
        rows.append(left[0])
        left = KERNELS["exclude"](p=left, tokens=np.array(tokens[-1:], np.int32))
    return tokens, np.array(rows).reshape(len(tokens), q.size)
