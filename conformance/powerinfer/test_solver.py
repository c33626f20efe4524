"""Groups of neurons within a budget: the solver's answers are optimal and fit."""

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.placement import solver
from engine.placement.solver import GROUP, Layer, densest, grouped, searched, solve


@st.composite
def layer(draw: st.DrawFn, neuron_bytes: tuple[int, ...], ragged: bool) -> Layer:
    """1 to 3 groups, the last possibly partial, with counts up to 9 so that there are ties."""
    whole = draw(st.integers(0, 2))
    rest = draw(st.sampled_from([1, 100, GROUP]) if ragged else st.just(GROUP))
    levels = draw(st.lists(st.integers(0, 9), min_size=whole + 1, max_size=whole + 1))
    counts = np.repeat(levels, [GROUP] * whole + [rest])
    return grouped(counts, draw(st.sampled_from(neuron_bytes)), 1.0)


def layers(neuron_bytes: tuple[int, ...], ragged: bool) -> st.SearchStrategy[list[Layer]]:
    return st.lists(layer(neuron_bytes, ragged), min_size=1, max_size=4)


def objective(layers: Sequence[Layer], groups: Sequence[int], cost: float) -> float:
    """The objective, directly: what groups save, minus the cost of each split layer."""
    return sum(
        float(layer.saves[:many].sum()) - cost * (0 < many < len(layer.saves))
        for layer, many in zip(layers, groups, strict=True)
    )


def groups_taken(layers: Sequence[Layer], groups: Sequence[int]) -> int:
    return sum(int(a.sizes[:many].sum()) for a, many in zip(layers, groups, strict=True))


def best_by_brute_force(layers: Sequence[Layer], capacity: int, cost: float) -> float:
    """The best answer that fits, by brute force."""
    every = itertools.product(*(range(len(layer.sizes) + 1) for layer in layers))
    return max(objective(layers, g, cost) for g in every if groups_taken(layers, g) <= capacity)


COSTS = st.sampled_from([0.0, 100.0, 3000.0])
SHARES = st.floats(0, 1.1)


@given(layers((3, 4), ragged=True), SHARES, COSTS)
def test_solutions_are_optimal(layers, share, cost):
    """Brute force finds no better answer, and the capacity is kept."""
    capacity = int(share * groups_taken(layers, [len(layer.sizes) for layer in layers]))
    found = solve(layers, capacity, cost)
    assert groups_taken(layers, found.groups) <= capacity
    assert found.gap == 0
    assert (
        found.worth
        == objective(layers, found.groups, cost)
        == best_by_brute_force(layers, capacity, cost)
    )
    assert solve(layers, capacity, cost) == found


@given(layers((3,), ragged=False), SHARES)
def test_greedy_is_optimal_without_split_costs(layers, share):
    capacity = int(share * groups_taken(layers, [len(layer.sizes) for layer in layers])) + 1
    greedy = objective(layers, densest(layers, capacity), 0.0)
    assert greedy == solve(layers, capacity).worth
    assert (
        greedy
        == searched(layers, capacity, 0.0).worth
        == best_by_brute_force(layers, capacity, 0.0)
    )


def test_a_stopped_search_states_its_gap(monkeypatch):
    """Its answer fits, and the best one is worth at most its value plus the gap."""
    rng = np.random.default_rng(5)
    hard = [
        grouped(rng.integers(0, 1000, 20 * GROUP + 7 * i), 1000 + 37 * i, 1.0) for i in range(12)
    ]
    capacity = groups_taken(hard, [6] * 12)
    exact = solve(hard, capacity, 1e6)
    monkeypatch.setattr(solver, "NODES", 0)
    ended = solve(hard, capacity, 1e6)
    assert exact.gap == 0 < ended.gap
    assert groups_taken(hard, ended.groups) <= capacity
    assert ended.worth <= exact.worth
    assert exact.worth <= (ended.worth + ended.gap) * (1 + 1e-6)  # 1e-6: HiGHS's own tolerance
