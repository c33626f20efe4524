"""Adaptive draft length: as fast as the best fixed length, and off if none pays."""

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.models.spelling import letters
from conformance.support.speculation import speculating
from engine.speculation.adaptive import LONGEST_REST, PROBING, AdaptiveLength, expected_tokens
from engine.speculation.drafter import Draft, Verification

Cost = Callable[[int], tuple[float, float]]  # of drafting a length, and of the step
MOST = 16
STEPS = 3000
NOISE = 0.2  # standard deviation of a step's time, over its mean


def linear(draft: float, verify: float) -> Cost:
    """A token has constant costs to draft and to verify, relative to the target's own step."""
    return lambda length: (draft * length, 1 + verify * length)


def by_fours(length: int) -> tuple[float, float]:
    """Four tokens are verified at the cost of one, as in kernels with tiles of four rows."""
    return 0.02 * length, 0.7 + 0.3 * (1 + length // 4)


class Simulation:
    """Steps of a target with known acceptance and costs."""

    def __init__(self, most: int, seed: int = 0) -> None:
        self.adaptive = AdaptiveLength(most)
        self.random = np.random.default_rng(seed)

    def run(self, acceptance: list[float], cost: Cost, steps: int) -> float:
        """The expected speed of the chosen lengths, relative to the best fixed length."""
        most = self.adaptive.most
        tokens = np.array(expected_tokens(acceptance[:most]))
        seconds = np.array([sum(cost(length)) for length in range(most + 1)])
        chosen = [self.step(acceptance, cost) for _ in range(steps)]
        speed = tokens[chosen].sum() / seconds[chosen].sum()
        return float(speed / (tokens / seconds).max())

    def step(self, acceptance: list[float], cost: Cost) -> int:
        length = self.adaptive.choose()
        kept = self.random.random(length) < acceptance[:length]
        draft, verify = cost(length)
        noise = self.random.lognormal(-(NOISE**2) / 2, NOISE)
        accepted = int(np.cumprod(kept).sum())
        self.adaptive.record(length, accepted, draft * noise, verify * noise)
        return length


def even(alpha: float) -> list[float]:
    """Every token is accepted with the same probability."""
    return [alpha] * MOST


AS_FAST: list[tuple[list[float], Cost]] = [
    *((even(alpha), linear(draft, verify)) for alpha, draft, verify in product(
        (0, 0.2, 0.4, 0.6, 0.8, 0.9, 1), (0, 0.05, 0.3), (0.02, 0.1, 0.5))),
    *((even(alpha), by_fours) for alpha in (0, 0.5, 0.7, 0.9)),
    *(([first * 0.8**i for i in range(MOST)], linear(0.05, 0.1)) for first in (0.5, 0.9)),
]  # fmt: skip


@pytest.mark.parametrize(("acceptance", "cost"), AS_FAST)
def test_as_fast_as_the_best_fixed_length(acceptance, cost):
    """The speed is within 5% for any acceptance and costs, also stepwise ones."""
    assert Simulation(MOST).run(acceptance, cost, STEPS) > 0.95


@pytest.mark.parametrize(
    ("alpha", "cost"), [(0, linear(0.05, 0.1)), (0.3, linear(0.3, 0.1)), (0.5, linear(0.3, 0.5))]
)
def test_off_where_it_would_slow_things_down(alpha, cost):
    """Nearly all steps are the target's alone; the loss of the others is the exploration budget."""
    simulation = Simulation(MOST)
    simulation.run(even(alpha), cost, 500)
    chosen = np.array([simulation.step(even(alpha), cost) for _ in range(STEPS)])
    assert simulation.adaptive.best == 0
    assert (chosen == 0).mean() > 0.9
    assert (chosen > 0).any()


@pytest.mark.parametrize(("before", "after"), [(0, 0.9), (0.9, 0)])
def test_the_length_follows_changes(before, after):
    """If a useless draft becomes good, or vice versa, the length soon follows."""
    simulation, cost = Simulation(MOST), linear(0.1, 0.1)
    simulation.run([before] * MOST, cost, STEPS)
    simulation.run([after] * MOST, cost, 500)
    assert simulation.run([after] * MOST, cost, 500) > 0.9


def test_one_slow_step_changes_nothing():
    """The first step of a length takes a thousand times as long, as with compilation."""
    simulation, cost = Simulation(MOST), linear(0.05, 0.05)
    seen = set()

    def compiles(length: int) -> tuple[float, float]:
        first = length not in seen
        seen.add(length)
        draft, verify = cost(length)
        return draft, verify * (1000 if first else 1)

    for _ in range(STEPS):
        simulation.step([0.8] * MOST, compiles)
    assert simulation.run([0.8] * MOST, cost, 500) > 0.93


def test_useless_drafts_are_paused():
    """Useless drafts are soon paused, for few tokens at a time, and exploration costs no more than
    asking about every token; drafts that pay are never paused."""
    simulation, cost = Simulation(MOST), linear(0.3, 0.3)
    tokens, chosen = 0, list[int]()
    while tokens < STEPS:
        chosen.append(simulation.step([0] * MOST, cost))
        rest = simulation.adaptive.plain_steps()
        tokens += 1 + rest
        assert 0 <= rest <= LONGEST_REST
    lost = sum(sum(cost(length)) - 1 for length in chosen)
    assert lost < PROBING * STEPS * 1.5 + sum(cost(MOST))
    assert len(chosen) < tokens / 5
    useful = Simulation(MOST)
    useful.run([0.9] * MOST, linear(0.05, 0.05), 100)
    assert useful.adaptive.plain_steps() == 0
    assert AdaptiveLength(MOST).plain_steps() == AdaptiveLength(8).choose() == 0


def test_reading_after_a_pause_counts_as_exploration():
    """After 200 tokens without a request a drafter reads them first, for the time of 60 steps: the
    next try comes when these are a small enough share."""
    length = AdaptiveLength(MOST)
    while not length.plain_steps():
        n = length.choose()
        length.record(n, 0, float(n), 1.0)
    for _ in range(200):
        length.record_plain_step(1.0)
    length.record(1, 0, 60.0, 1.0)
    tokens = 0
    while length.choose() == 0 and tokens < 1e4:
        length.record_plain_step(1.0)
        tokens += 1
    assert tokens > 0.8 * 60 / PROBING - 200


@pytest.mark.parametrize("alpha", [0, 0.4, 0.6])
def test_break_even_drafts_cost_little(alpha):
    """A draft costs what it gains, or slightly more: from the first token on no more is lost than
    the exploration budget and 40 steps."""
    simulation, cost = Simulation(MOST), linear(alpha, 0.05)
    chosen = [simulation.step(even(alpha), cost) for _ in range(STEPS)]
    tokens = np.array(expected_tokens(even(alpha)))[chosen].sum()
    assert sum(sum(cost(length)) for length in chosen) < (1 + PROBING) * tokens + 40


@given(st.floats(0, 0.99), st.integers(0, 20))
def test_expected_tokens_are_the_formulas(alpha, length):
    """(1 - a^(n+1)) / (1 - a) if every token is accepted with the same probability."""
    tokens = expected_tokens([alpha] * length)
    assert len(tokens) == length + 1
    assert tokens[length] == pytest.approx((1 - alpha ** (length + 1)) / (1 - alpha))
    assert expected_tokens([0.9, 0.5, 0.8, 0])[-1] == pytest.approx(1 + 0.9 + 0.45 + 0.36)


@pytest.mark.parametrize(("asked", "accepted"), [(3, 4), (9, 0), (2, -1)])
def test_invalid_values_are_refused(asked, accepted):
    with pytest.raises(ValueError, match="accepted of"):
        AdaptiveLength(8).record(asked, accepted, 0.1, 1)


PROMPT = letters("the cat sat")
GREEDY: dict[str, Any] = {"max_tokens": speculating.CONTEXT - len(PROMPT) - 1, "ignore_eos": True}


class Useless:
    """Knows the text, proposes only wrong tokens, and is slow."""

    def __init__(self, text: Sequence[int]) -> None:
        self._text, self.told, self.asked_at = text, list[int](), list[int]()

    def begin(self, prompt: Sequence[int]) -> None:
        self.told = list(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        assert list(text) == self.told
        self.asked_at.append(len(text))
        time.sleep(0.02)
        right = self._text[len(text)] if len(text) < len(self._text) else 0
        return Draft.chain([(right + 1) % speculating.VOCAB] * most)

    def verified(self, step: Verification) -> None:
        assert 0 <= step.argmax(-1) < speculating.VOCAB
        self.told += step.tokens


def test_useless_drafts_are_paused_in_the_engine(engine):
    """The text is the plain one; after twenty tokens few are drafted; and the drafter is given
    every token, including those during a pause (record_plain_step)."""
    plain = speculating.pieces(engine, PROMPT, GREEDY)
    text = [*PROMPT, *speculating.ids(plain)]
    engine.reset()
    drafter = Useless(text)
    with speculating.drafting(engine, drafter, adaptive=True):
        found = speculating.pieces(engine, PROMPT, GREEDY)
    assert speculating.unmarked(found) == speculating.unmarked(plain)
    assert drafter.asked_at
    later = [at for at in drafter.asked_at if at > len(PROMPT) + 20]
    assert len(later) <= 2
    assert drafter.told == text[: len(drafter.told)]
