"""Speculation keeps the text's distribution: exactly by calculation, and over 100,000 samples.

A test of an exact method fails by chance once in 10^9, see `exactness.limit`.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from conformance.support.speculation.exactness import (
    DRAWS,
    EXACT,
    FALSE_ALARM,
    FORMULAS,
    KERNELS,
    WRONG,
    Verification,
    law_of_texts,
    limit,
    numbered,
    one_draft,
    surprise,
    texts,
)
from reference.op import Array
from reference.verification import exclude, recover

WEIGHTS = (0.0, 0.0, 1.0, 1.0, 2.0, 5.0, 100.0, 1e-9, 1e-300)  # zeros, ties, almost nothing
OPS = {"formulas": FORMULAS, "kernels": KERNELS}
by_either = st.sampled_from(list(OPS))


@st.composite
def rows(draw: st.DrawFn, vocab: int, count: int) -> Array:
    """Distributions, [count vocab]."""
    weights = st.lists(st.sampled_from(WEIGHTS), min_size=vocab, max_size=vocab).filter(any)
    found = np.array([draw(weights) for _ in range(count)])
    return found / found.sum(axis=-1, keepdims=True)


@st.composite
def models(draw: st.DrawFn) -> tuple[Array, Array]:
    """Target and draft, by the last token; in one case of five they are equal."""
    vocab = draw(st.integers(2, 4))
    target = draw(rows(vocab, vocab))
    return target, target if draw(st.integers(0, 4)) == 0 else draw(rows(vocab, vocab))


def surprise_of(way, ops, target: Array, draft: Array, length: int, seed: int) -> tuple[float, int]:
    """The texts' surprise, and the number of possible texts."""
    v = Verification(ops, np.random.default_rng(seed))
    law = law_of_texts(target, length)
    written = numbered(texts(way, v, target, draft, length), len(target))
    return surprise(np.bincount(written, minlength=len(law)), law), int((law > 0).sum())


@pytest.mark.parametrize("name", EXACT)
@given(by_either, models(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_texts_are_distributed_as_the_targets(name, ops, both, length, seed):
    """Whole texts, drafts and their continuations, for p and q with zeros, ties and near-zeros."""
    found, cells = surprise_of(EXACT[name], OPS[ops], *both, length, seed)
    assert found <= limit(cells)


TARGET = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.0, 0.9, 0.0, 0.1]])
DRAFT = np.array([[0.2, 0.2, 0.5, 0.1], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.25] * 4])


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("name", WRONG)
def test_inexact_rules_are_detected(name, ops):
    """Inexact rules, such as llama.cpp's tree, fail the same test far beyond its limit."""
    found, cells = surprise_of(WRONG[name], OPS[ops], TARGET, DRAFT, 2, seed=0)
    assert found > 10 * limit(cells)


@pytest.mark.parametrize("cells", [2, 4, 64])
def test_false_alarm_rate_is_bounded(cells):
    """The limit as a bound, where it can be counted: with FALSE_ALARM for 1 in 10, samples from a
    law with near-zeros exceed it less often."""
    d = cells - 1
    at_limit = limit(cells)
    exponent = at_limit - d - d * math.log(at_limit / d)
    assert exponent == pytest.approx(-math.log(FALSE_ALARM))
    random = np.random.default_rng(cells)
    law = random.dirichlet(np.full(cells, 0.2))
    found = np.array([surprise(c, law) for c in random.multinomial(1000, law, 2000)])
    for x in np.linspace(1.5, 4, 6) * d:
        assert (found >= x).mean() <= math.exp(-(x - d - d * math.log(x / d)))


@given(st.data(), st.integers(2, 5), st.integers(0, 4))
def test_siblings_are_exact_by_calculation(data, vocab, count):
    """The probability of every token, summed over all siblings drawn, is p within rounding."""
    p, q = data.draw(rows(vocab, 2))
    assert_allclose(distribution_of_siblings(p, q, count), p, rtol=0, atol=1e-12)


def distribution_of_siblings(p: Array, q: Array, count: int) -> Array:
    """The distribution of the resulting token for this many siblings, drawn without replacement."""
    if not count or not q.any():
        return p
    law = np.zeros(len(p))
    for token in np.flatnonzero(q):
        ratio, drawn = min(1.0, p[token] / q[token]), np.array([token])
        left, rest = recover(p[None], q[None], drawn)[0], exclude(q[None], drawn)[0]
        law[token] += q[token] * ratio
        law += q[token] * (1 - ratio) * distribution_of_siblings(left, rest, count - 1)
    return law


@given(by_either, st.data(), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_expected_tokens_per_step(ops, data, gamma, seed):
    """E = (1 - a^(gamma + 1)) / (1 - a) with a = sum min(p, q), the bonus token included.

    A step gives 1 to gamma + 1 tokens, so by Hoeffding the mean of n is off by more than
    gamma sqrt(ln(2 / FALSE_ALARM) / 2n) with a probability below FALSE_ALARM.
    """
    p, q = data.draw(rows(data.draw(st.integers(2, 5)), 2))
    v = Verification(OPS[ops], np.random.default_rng(seed))
    tokens, going = np.ones(DRAWS), np.ones(DRAWS, bool)
    for _ in range(gamma):
        going &= one_draft(v, np.tile(p, (DRAWS, 1)), np.tile(q, (DRAWS, 1)))[1]
        tokens += going
    a = np.minimum(p, q).sum()
    expected = gamma + 1 if a > 1 - 1e-12 else (1 - a ** (gamma + 1)) / (1 - a)
    slack = gamma * math.sqrt(math.log(2 / FALSE_ALARM) / (2 * DRAWS))
    assert abs(tokens.mean() - expected) <= slack
