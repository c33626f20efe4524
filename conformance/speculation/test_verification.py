"""The verifier: compared with formulas, over many samples, and with a sampler."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.speculation.exactness import FORMULAS, KERNELS
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Sampler
from engine.speculation.drafter import TEXT, Draft
from engine.speculation.verification import Verifier, children
from reference.op import Array

VOCAB = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The accepted nodes, from the text on, and the token after the last of them: recovered after a
    rejection, otherwise the bonus token."""

    nodes: tuple[int, ...]
    token: int


@cache
def verifier(vocab: int) -> Verifier:
    return Verifier(vocab)


def verify(draft: Draft, p: Array, random: np.random.Generator) -> Outcome:
    """How much of a draft the target accepts. p float64 [nodes + 1, vocab]: the target's
    distributions after the text, then after each node. If p is one-hot, as for greedy, the outcome
    is deterministic."""
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
    """At most this many distinct tokens drawn from q float64 [vocab] in turn, and the distribution
    of each draw, float64 [drawn, vocab]; fewer if q has no more."""
    tokens: list[int] = []
    rows: list[Array] = []
    left = q[np.newaxis]
    while len(tokens) < count and left.any():
        tokens.append(int(KERNELS["pick"](p=left, u=np.array([random.random()]))[0]))
        rows.append(left[0])
        left = KERNELS["exclude"](p=left, tokens=np.array(tokens[-1:], np.int32))
    return tokens, np.array(rows).reshape(len(tokens), q.size)


def rows_of(random: np.random.Generator, count: int, vocab: int = VOCAB) -> Array:
    """Distributions with many zeros. [count vocab]"""
    weights = random.dirichlet(np.full(vocab, 0.3), count) * (random.random((count, vocab)) < 0.8)
    weights[np.arange(count), random.integers(vocab, size=count)] += 0.1
    return weights / weights.sum(axis=-1, keepdims=True)


@st.composite
def trees(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], np.random.Generator]:
    """Tokens and parents of a tree with distinct siblings."""
    nodes: dict[tuple[int, int], None] = {}
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.integers(TEXT, len(nodes) - 1))
        nodes.setdefault((parent, draw(st.integers(0, VOCAB - 1))))
    parents = tuple(parent for parent, _ in nodes)
    tokens = tuple(token for _, token in nodes)
    return tokens, parents, np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def oracle(draft: Draft, p: Array, random: np.random.Generator) -> Outcome:
    """The same by formulas, node by node."""
    formula: dict[str, Any] = dict(FORMULAS)
    at, path = TEXT, ()
    while True:
        left, token = p[at + 1 : at + 2], None
        for node in range(len(draft)) if draft.q is not None else ():
            if draft.parents[node] == at and token is None:
                drafted = left, draft.q[node : node + 1], np.array(draft.tokens[node : node + 1])
                if formula["accept"](*drafted, np.array([random.random()]))[0]:
                    token = draft.tokens[node]
                else:
                    left = formula["recover"](*drafted)
        if token is None:
            token = int(formula["pick"](left, np.array([random.random()]))[0])
        behind = [
            n for n in range(len(draft)) if (draft.parents[n], draft.tokens[n]) == (at, token)
        ]
        if not behind:
            return Outcome(path, token)
        (at,) = behind
        path = (*path, at)


@given(trees(), st.booleans(), st.integers(0, 2**32 - 1))
def test_verification_equals_the_formulas(tree, certain, seed):
    """Any tree, with or without q, gives the same path and token for equal random numbers."""
    tokens, parents, random = tree
    p = rows_of(random, len(tokens) + 1)
    draft = Draft(tokens, parents, None if certain else rows_of(random, len(tokens)))
    found = verify(draft, p, np.random.default_rng(seed))
    assert found == oracle(draft, p, np.random.default_rng(seed))
    assert found.nodes == (draft.path(found.nodes[-1]) if found.nodes else ())
    assert p[1 + (found.nodes[-1] if found.nodes else TEXT), found.token] > 0


@given(trees(), st.booleans(), st.integers(0, 2**32 - 1))
def test_greedy_targets_accept_only_their_own_tokens(tree, certain, seed):
    """With one-hot p drafts are accepted as long as they are the target's tokens, for any random
    numbers and q, even 0."""
    tokens, parents, random = tree
    best = random.integers(VOCAB, size=len(tokens) + 1)
    draft = Draft(tokens, parents, None if certain else rows_of(random, len(tokens)))
    found = verify(draft, np.eye(VOCAB)[best], np.random.default_rng(seed))
    at, path = TEXT, []
    while here := [n for n in children(draft, at) if tokens[n] == best[1 + at]]:
        at = here[0]
        path.append(at)
    assert found == Outcome(tuple(path), int(best[1 + at]))


class Fixed(np.random.Generator):
    """A source of fixed numbers."""

    def __init__(self, u: float) -> None:
        super().__init__(np.random.PCG64(0))
        self._u = u

    def random(self) -> float:
        return self._u


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval(u):
    """u = 0 accepts every possible token only; u just below 1 only tokens with p >= q."""
    q = np.array([[0.5, 0.5, 0.0]])
    draft = Draft.chain([0], q)
    for p, accepts in (([0.0, 0.5, 0.5], False), ([0.5, 0.5, 0.0], True), ([1.0, 0, 0], True)):
        found = verify(draft, np.array([p, p]), Fixed(u))
        assert bool(found.nodes) == accepts
        assert p[found.token] > 0
    little = np.array([[2.0**-60, 1 - 2.0**-60, 0]] * 2)
    assert bool(verify(draft, little, Fixed(u)).nodes) == (u == 0)


def logits_after(text: tuple[int, ...]) -> Array:
    """A toy model that depends on the last two tokens."""
    return np.random.default_rng(text[-2:]).normal(0, 2, VOCAB).astype(np.float32)


def constant_draft(draft: Draft) -> Callable[[tuple[int, ...]], Draft]:
    """This draft for any text."""
    return lambda _: draft


def generated(
    sampler: Sampler, drafts: Callable[[tuple[int, ...]], Draft], length: int
) -> list[int]:
    """A text, by target steps that each verify a draft."""
    text: tuple[int, ...] = (0, 0)
    while len(text) < length + 2:
        draft, node = drafts(text), TEXT
        while True:
            sampled = verifier(VOCAB).sample(sampler, logits_after(text), draft, node)
            sampler.accept(sampled.token)
            text = (*text, sampled.token)
            here = [n for n in children(draft, node) if draft.tokens[n] == sampled.token]
            if not here:
                break
            (node,) = here
    return list(text[2 : length + 2])


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_p": 0.8, "repetition_penalty": 1.4, "frequency_penalty": 0.3},
    {"mirostat": 2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "min_tokens": 30},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_deterministic_drafts_change_no_token(options):
    """With a seed the text is the one without drafts, for any drafts, chains and trees."""
    params = SamplingParams(seed=4, max_tokens=None, **options)
    plain = generated(Sampler(params, VOCAB, [1]), constant_draft(Draft()), 60)
    tree = Draft((0, 3, 1, 2, 4, 2), (TEXT, TEXT, 0, 1, 1, TEXT))
    assert generated(Sampler(params, VOCAB, [1]), constant_draft(tree), 60) == plain
    guess = Draft.chain([2, 3, 2, 3])
    assert generated(Sampler(params, VOCAB, [1]), constant_draft(guess), 60) == plain
    other = generated(Sampler(replace(params, seed=5), VOCAB, [1]), constant_draft(tree), 60)
    assert (other == plain) == (params.temperature == 0)


@pytest.mark.parametrize("options", OPTIONS)
def test_sampled_drafts_are_reproducible(options):
    """The same text twice; the plain one for a greedy target; and no draft brings a banned token,
    here the end before min_tokens."""
    params = SamplingParams(seed=4, max_tokens=None, **options)

    def by(seed: int) -> list[int]:
        random = np.random.default_rng(0)

        def drawn(text: tuple[int, ...]) -> Draft:
            tokens, rows = siblings(rows_of(random, 1)[0], 3, random)
            return Draft(tuple(tokens), (TEXT,) * len(tokens), rows)

        return generated(Sampler(replace(params, seed=seed), VOCAB, [1]), drawn, 60)

    assert by(4) == by(4)
    assert (by(4) == by(5)) == (params.temperature == 0)
    if params.temperature == 0:
        assert by(4) == generated(Sampler(params, VOCAB, [1]), constant_draft(Draft()), 60)
    assert 1 not in by(4)[: params.min_tokens]


def test_malformed_drafts_are_refused():
    """Other types and sizes are refused: kernels would read out of bounds."""
    p, random, choose = np.full(4, 0.25), np.random.default_rng(0), verifier(4).choose
    q = np.full((1, 4), 0.25)
    with pytest.raises(ValueError, match=r"p: want float64 \[4\], got float64 \[3\]"):
        choose(p[:3], [1], q, random)
    with pytest.raises(ValueError, match=r"p: want float64 \[4\], got float32 \[4\]"):
        choose(p.astype(np.float32), [1], q, random)
    with pytest.raises(ValueError, match=r"q: want float64 \[1, 4\], got float64 \[1, 5\]"):
        choose(p, [1], np.full((1, 5), 0.2), random)
    with pytest.raises(ValueError, match=r"q: want float64 \[2, 4\], got float64 \[1, 4\]"):
        choose(p, [1, 2], q, random)
    with pytest.raises(ValueError, match="token 4 is outside the vocabulary of 4"):
        choose(p, [4], q, random)
